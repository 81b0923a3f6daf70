"""Categories as points of a plane, by their mean activation and by their parameters (Figure 2 of the paper); and
matrices as heat maps: phi and its channels (Figure 5), and how alike representations are."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from actstore.errors import DamagedError, InvalidInputError
from actstore.storage.atomic_file import as_utf8, write_atomic
from predictor.figures.style import COLOURS, GREY, LINES, MARKERS, family_style, new_figure, readable, tidy
from predictor.protocol.results import LABELS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PERPLEXITY = 20.0  # about how many neighbours a point has
STEPS = 1000


def tsne(points: NDArray[Any], steps: int = STEPS) -> NDArray[np.float64]:
    """(n, dim) -> (n, 2), centred, with neighbours in the plane as they are among the points. The same points always
    give the same map. steps: 250 or more.

    van der Maaten and Hinton, Visualizing Data using t-SNE, JMLR 9, 2008, by scikit-learn.
    """
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    if points.ndim != 2 or len(points) < 4:
        raise InvalidInputError(f"t-SNE needs 4 points or more (n, dim), got {points.shape}")
    if not np.isfinite(points).all():
        raise InvalidInputError("t-SNE needs finite points, got a NaN or an infinity; leave that point out")
    perplexity = min(PERPLEXITY, (len(points) - 1) / 3)  # beyond, neighbours would have to be nearly equally near
    has_axes = points.shape[1] > 1 and bool(np.ptp(points, axis=0).any())  # equal points have no principal axis
    model = TSNE(perplexity=perplexity, max_iter=steps, init="pca" if has_axes else "random", random_state=0)
    with threadpool_limits(1):  # several threads add in any order, and the map would differ from run to run
        places = np.asarray(model.fit_transform(np.asarray(points, np.float64)), np.float64)
    centred: NDArray[np.float64] = places - places.mean(0)
    return centred


GROUPS, GROUP_SIZE = 5, 8
NEIGHBOURS = 10  # compared between the two sides
LISTED = 5  # nearest categories named for each
FAINT = "#c8c8c8"
LONGEST = 130  # letters of a line of the legend, which is as wide as the picture
NAMED = 8  # members of a group that the legend names


@dataclass(frozen=True)
class ClassMap:
    """names: all categories, the first n_base are the base. means: a place (x, y) of each.

    with_parameters: positions of the categories that have parameters; parameters: their places, turned to fit the
    means. parameters_are: what they are. groups: positions of similar categories. nearest: of every category, by the
    cosine of the means. agreement: share of the 10 nearest categories that both sides have in common, 0 to 1.
    """

    names: list[str]
    n_base: int
    means: list[list[float]]
    with_parameters: list[int]
    parameters: list[list[float]]
    parameters_are: str
    groups: list[list[int]]
    nearest: list[list[int]]
    agreement: float

    @property
    def chance(self) -> float:
        """The agreement of two unrelated orders."""
        return min(1.0, NEIGHBOURS / max(1, len(self.with_parameters) - 1))

    def save(self, path: Path) -> None:
        write_atomic(path, as_utf8(json.dumps(asdict(self), ensure_ascii=False)))

    @classmethod
    def load(cls, path: Path) -> Self:
        try:
            return cls(**json.loads(path.read_text("utf-8")))
        except (ValueError, TypeError) as error:
            raise DamagedError(f"{path} is damaged: {error}; make it again with `ppa figures`") from error


def make_class_map(
    names: Sequence[str],
    n_base: int,
    means: NDArray[Any],
    with_parameters: Sequence[int],
    parameters: NDArray[Any],
    parameters_are: str,
    steps: int = STEPS,
) -> ClassMap:
    """means: (n, dim) of the names; parameters: (m, dim) of the categories at the positions with_parameters.

    Both sides by direction alone, as cosines compare them. Groups are chosen by the means, and then shown on both.
    """
    positions = np.asarray(with_parameters, np.int64)
    if means.shape[0] != len(names) or parameters.shape[0] != len(positions):
        raise InvalidInputError(
            f"a class map needs a mean for each of {len(names)} names and parameters for each of {len(positions)}, "
            f"got {means.shape[0]} and {parameters.shape[0]}"
        )
    left = tsne(unit_rows(means), steps)
    right = turned_to(tsne(unit_rows(parameters), steps), left[positions])
    size = min(GROUP_SIZE, max(2, len(positions) // (2 * GROUPS)))
    groups = similar_groups(means[positions], GROUPS, size)
    return ClassMap(
        names=list(names),
        n_base=n_base,
        means=np.round(left, 3).tolist(),
        with_parameters=positions.tolist(),
        parameters=np.round(right, 3).tolist(),
        parameters_are=parameters_are,
        groups=[positions[group].tolist() for group in groups],
        nearest=nearest_rows(means, LISTED).tolist(),
        agreement=shared_neighbours(means[positions], parameters, NEIGHBOURS),
    )


def turned_to(places: NDArray[Any], model: NDArray[Any]) -> NDArray[np.float64]:
    """Places (n, 2) rotated and mirrored, nothing else, to lie as near as can be to those of the model (n, 2)."""
    centred = places - places.mean(0)
    left, _, right = np.linalg.svd(centred.T @ (model - model.mean(0)))
    turned: NDArray[np.float64] = centred @ (left @ right)
    return turned


def draw_class_maps(shown: ClassMap) -> Figure:
    """Left t-SNE of the mean activations, right of the parameters; same colour and marker, same categories."""
    figure = new_figure(12, 6.9)
    left, right = figure.subplots(1, 2)
    means, parameters = np.asarray(shown.means), np.asarray(shown.parameters)
    _draw_novel(left, means, set(range(shown.n_base, len(shown.names))))
    place = {category: row for row, category in enumerate(shown.with_parameters)}
    novel = {place[category] for category in range(shown.n_base, len(shown.names)) if category in place}
    _draw_novel(right, parameters, novel)
    for number, group in enumerate(shown.groups):
        style = {"color": COLOURS[number], "marker": MARKERS[number], "s": 46, "edgecolors": "black", "linewidths": 0.6}
        named = [readable(shown.names[category]) for category in group[:NAMED]]
        names = textwrap.shorten((" " if max(map(len, named)) == 1 else ", ").join(named), LONGEST, placeholder=" …")
        left.scatter(*means[group].T, **style, zorder=3, label=names)
        right.scatter(*parameters[[place[category] for category in group]].T, **style, zorder=3)
    left.set_title(f"mean activation of {len(shown.names):,} categories")
    right.set_title(f"{shown.parameters_are} of {len(place):,} categories")
    for panel in (left, right):
        panel.set_xticks([])
        panel.set_yticks([])
        panel.set_aspect("equal", adjustable="datalim")
        panel.spines[:].set_color(GREY)
    handles, names = left.get_legend_handles_labels()
    columns = 1 if max(map(len, names), default=0) > 60 else 3
    figure.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
    figure.suptitle(
        f"t-SNE. Of a category's {NEIGHBOURS} nearest by mean, {shown.agreement:.0%} are also nearest by parameters "
        f"({shown.chance:.1%} by chance)"
    )
    return figure


def _draw_novel(panel: Any, places: Any, novel: set[int]) -> None:
    is_novel = np.isin(np.arange(len(places)), list(novel))
    panel.scatter(*places[~is_novel].T, s=9, color=FAINT, label="other base categories", zorder=1)
    if novel:
        panel.scatter(
            *places[is_novel].T, s=16, facecolors="none", edgecolors="#555555", linewidths=0.8,
            label="novel categories", zorder=2,
        )  # fmt: skip


def unit_rows(rows: NDArray[Any]) -> NDArray[np.float64]:
    """(n, dim) of length 1; a row of zeros stays one."""
    values = np.asarray(rows, np.float64)
    found: NDArray[np.float64] = values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-12)
    return found


def cosines(rows: NDArray[Any]) -> NDArray[np.float64]:
    """(n, dim) -> (n, n), -inf on the diagonal: nothing is its own neighbour."""
    units = unit_rows(rows)
    found: NDArray[np.float64] = units @ units.T
    np.fill_diagonal(found, -np.inf)
    return found


def nearest_rows(rows: NDArray[Any], count: int) -> NDArray[np.int64]:
    """(n, dim) -> (n, count) of highest cosine, the nearest first."""
    order: NDArray[np.int64] = np.argsort(-cosines(rows), axis=1, kind="stable")[:, : min(count, len(rows) - 1)]
    return order


def similar_groups(rows: NDArray[Any], groups: int, size: int) -> list[list[int]]:
    """Up to `groups` disjoint lists of `size` rows of (n, dim): a row and its nearest ones by cosine.

    The tightest neighbourhood comes first; a later one is centred farther from the earlier centres than half of all
    pairs are, so that the groups show different regions.
    """
    similar = cosines(rows)
    if size < 2 or len(similar) < size:
        return []
    nearest = np.argsort(-similar, axis=1, kind="stable")[:, : size - 1]
    tightness = np.take_along_axis(similar, nearest, 1).mean(1)
    far = float(np.median(similar[np.isfinite(similar)]))
    disjoint: list[list[int]] = []
    for centre in np.argsort(-tightness, kind="stable").tolist():
        members = [centre, *nearest[centre].tolist()]
        taken = {member for group in disjoint for member in group}
        is_apart = all(similar[centre, group[0]] <= far for group in disjoint)
        if is_apart and not taken & set(members):
            disjoint.append(members)
        if len(disjoint) == groups:
            break
    return disjoint


def shared_neighbours(first: NDArray[Any], second: NDArray[Any], count: int) -> float:
    """The share of each row's `count` nearest rows that both sets (n, dim), (n, any) have in common, mean over rows."""
    pairs = zip(nearest_rows(first, count), nearest_rows(second, count), strict=True)
    return float(np.mean([len(np.intersect1d(ours, theirs)) / len(ours) for ours, theirs in pairs]))


SHOWN = 256  # channels, as in the paper
FLOOR = 1e-5  # below, the logarithm shows noise


def draw_channels(weight: NDArray[Any], similarities: Mapping[str, NDArray[Any]]) -> Figure:
    """weight: phi1's matrix (dim, dim); its upper left part is shown. similarities: phi -> OS(k) for k = 1..dim."""
    from matplotlib.colors import LogNorm

    count = min(SHOWN, len(weight))
    figure = new_figure(11.4 if similarities else 6, 5)
    panel, *others = figure.subplots(1, 2 if similarities else 1, squeeze=False)[0]
    size = np.maximum(np.abs(np.asarray(weight)[:count, :count]), FLOOR)
    low = max(float(np.quantile(size, 0.02)), FLOOR)
    image = panel.imshow(size, norm=LogNorm(low, max(float(size.max()), 10 * low)), cmap="cividis", rasterized=True)
    figure.colorbar(image, ax=panel, shrink=0.85, label="|weight|, log scale")
    panel.set_xlabel("channel of the activation")
    panel.set_ylabel("channel of the parameters")
    panel.set_title(f"phi1, upper left {count} × {count} of {len(weight)} × {len(weight)}")
    for other in others:
        _draw_similarity_curves(other, similarities)
    return figure


def _draw_similarity_curves(panel: Any, similarities: Mapping[str, NDArray[Any]]) -> None:
    for number, (kind, curve) in enumerate(similarities.items()):
        ks = np.arange(1, len(curve) + 1)
        name = LABELS[kind] + ("" if kind == "phi1" else ", first layer")
        panel.plot(ks, curve, color=family_style(kind)[0], linestyle=LINES[number], label=name, linewidth=1.6)
    dim = len(next(iter(similarities.values())))
    panel.plot([1, dim], [1 / dim, 1], color=GREY, linestyle=":", label="random order (k / dim)")
    panel.set_xlabel("k channels of most impact")
    panel.set_ylabel("share in common, OS(k)")
    panel.set_ylim(0, 1.02)
    panel.set_xlim(0, dim)
    panel.set_title("Top-k similarity with w_large^pt")
    panel.legend(frameon=False, loc="lower right")
    tidy(panel)


_MOST_NUMBERS = 12  # representations: of more, figures in the cells could not be read


def draw_similarities(names: Sequence[str], matrices: Mapping[str, NDArray[Any]]) -> Figure:
    """matrices: measure -> (n, n) similarities of n representations; all panels share one scale."""
    side = max(2.6, 0.62 * len(names) + 0.9)
    figure = new_figure(side * len(matrices) + 2.2, side + 0.8)
    panels = figure.subplots(1, len(matrices), squeeze=False)[0]
    lowest = min(0.0, min(float(np.nanmin(matrix)) for matrix in matrices.values()))
    images = []
    for number, (panel, (measure, matrix)) in enumerate(zip(panels, matrices.items(), strict=True)):
        images.append(panel.imshow(matrix, vmin=lowest, vmax=1, cmap="cividis"))
        panel.set_title(measure)
        panel.set_xticks(range(len(names)), names, rotation=45, ha="right")
        panel.set_yticks(range(len(names)), names if number == 0 else [""] * len(names))
        for (row, column), value in np.ndenumerate(matrix) if len(names) <= _MOST_NUMBERS else ():
            shade = "white" if value <= (1 + lowest) / 2 else "black"  # also where it is no number
            text = "–" if np.isnan(value) else f"{value:.2f}"
            panel.text(column, row, text, ha="center", va="center", fontsize=8, color=shade)
    figure.colorbar(images[0], ax=panels.tolist(), shrink=0.85, label="similarity")
    return figure
