"""Labels beside points so that none covers another label or a point: a greedy search over places around each point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import cos, pi, sin

ANGLES = 24
RADII = (0, 6, 14, 26, 42, 62, 86, 114, 146)  # pixels beyond the point's own rim
RIM = 6.0  # pixels around a point that stay free
GAP = 2.0  # pixels around a label that stay free


@dataclass(frozen=True)
class Box:
    """A rectangle in pixels."""

    left: float
    bottom: float
    right: float
    top: float

    def overlap(self, other: Box) -> float:
        """Area in common."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.top, other.top) - max(self.bottom, other.bottom)
        return max(0.0, width) * max(0.0, height)

    def outside(self, frame: Box) -> float:
        """Area that sticks out of the frame."""
        return (self.right - self.left) * (self.top - self.bottom) - self.overlap(frame)


@dataclass(frozen=True)
class Placed:
    """A label's box; is_far: whether a line should lead to its point."""

    box: Box
    is_far: bool


def place_labels(
    points: Sequence[tuple[float, float]],
    sizes: Sequence[tuple[float, float]],
    frame: Box,
    obstacles: Sequence[Box] = (),
) -> list[Placed]:
    """A box of each size beside its point, all in pixels. Crowded points are served first; of the places that cover
    least, the nearest is taken. obstacles: what else should stay uncovered, such as error bars."""
    taken = [*(Box(x - RIM, y - RIM, x + RIM, y + RIM) for x, y in points), *obstacles]
    placed: dict[int, Placed] = {}
    for number in sorted(range(len(points)), key=lambda one: (-_crowd(points, one), one)):
        choices = _choices(points[number], sizes[number])
        best = min(choices, key=lambda choice: _cost(choice[1].box, choice[0], taken, frame))[1]
        placed[number] = best
        taken.append(best.box)
    return [placed[number] for number in range(len(points))]


def _crowd(points: Sequence[tuple[float, float]], number: int) -> int:
    x, y = points[number]
    return sum(abs(x - other[0]) < 90 and abs(y - other[1]) < 45 for other in points)


def _choices(point: tuple[float, float], size: tuple[float, float]) -> list[tuple[float, Placed]]:
    """(distance, place) around a point, to the right first."""
    (x, y), (width, height) = point, size
    choices = []
    for radius in RADII:
        for number in range(ANGLES):
            turn = ((number + 1) // 2) * (1 if number % 2 else -1)
            dx, dy = cos(2 * pi * turn / ANGLES), sin(2 * pi * turn / ANGLES)
            reach = radius + RIM + GAP
            middle_x = x + dx * (reach + width / 2)
            middle_y = y + dy * (reach + height / 2)
            box = Box(middle_x - width / 2, middle_y - height / 2, middle_x + width / 2, middle_y + height / 2)
            choices.append((radius + abs(turn) / ANGLES, Placed(box, radius > RADII[1])))
    return choices


def _cost(box: Box, distance: float, taken: Sequence[Box], frame: Box) -> tuple[float, float]:
    wide = Box(box.left - GAP, box.bottom - GAP, box.right + GAP, box.top + GAP)
    covered = sum(wide.overlap(other) for other in taken) + 10 * wide.outside(frame)
    return covered, distance
