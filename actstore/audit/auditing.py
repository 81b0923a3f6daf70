"""The audit of a store: every split with every other that can be compared with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from actstore.analysis.neighbours import SPARE, Neighbours, find_neighbours, pieces, remove_blocks
from actstore.analysis.similarity import unit
from actstore.audit import detection
from actstore.audit.outcome import BLOCKS, Audit, Finding, Kind, folder_of, key_of, load_audit, save_audit
from actstore.errors import DamagedError, InvalidInputError
from actstore.images.opening import image_sources
from actstore.progress import Progress
from actstore.spec import Json
from actstore.split import Split
from actstore.storage.atomic_file import FileLock
from actstore.store import ActivationStore

K = 10
SAME = 1 - 1e-5  # similarity of a row that was computed twice: batches of other sizes round otherwise
OUTLIER_ABOVE = 3.0  # robust standard deviations of the logarithm of the mean distance to the neighbours


def audit_store(
    store: ActivationStore,
    splits: Sequence[str] = (),
    k: int = K,
    folder: Path | None = None,
    restart: bool = False,
    progress: Progress | None = None,
) -> Audit:
    """Of these splits, by default all. k: neighbours that are looked at.

    Kept in `folder`, by default beside the store; what is kept of the same rows and settings is not computed again,
    and an interrupted audit goes on. restart: discard it instead. progress: is told of every row twice.
    """
    if k < 1:
        raise InvalidInputError(f"k must be a positive whole number, got {k}")
    audited = _in_order([store[name] for name in dict.fromkeys(splits or store.splits)])
    if not audited:
        raise InvalidInputError(f"{store.path} has no split to audit yet")
    place = folder_of(store.path) if folder is None else folder
    contents, settings = {split.name: split.content for split in audited}, {"k": k}
    if not restart and (kept := _kept_of(place, folder is None, contents, settings)) is not None:
        return kept
    with FileLock(place / ".lock", f"another process is auditing {store.path}; wait for it to end, or stop it"):
        if restart:
            remove_blocks(place / BLOCKS)
        elif (kept := _kept_of(place, folder is None, contents, settings)) is not None:
            return kept  # the other one's
        parts = [_audit_group(group, k, place / BLOCKS, progress) for group in _comparable(audited)]
        audit = Audit(
            contents,
            settings,
            [finding for part in parts for finding in part.findings],
            {name: scores for part in parts for name, scores in part.label_scores.items()},
            {", ".join(part.contents): part.measured for part in parts},
            [note for part in parts for note in part.notes],
        )
        save_audit(place, audit)
        remove_blocks(place / BLOCKS)
    return audit


def _kept_of(place: Path, is_own: bool, contents: dict[str, str], settings: dict[str, Json]) -> Audit | None:
    """What is kept of these rows and settings; a damaged one is made again. is_own: a folder that holds nothing but
    audits of the store."""
    try:
        kept = load_audit(place)
    except DamagedError:
        return None
    except InvalidInputError:  # a file of another kind
        if is_own:
            return None
        raise
    return kept if kept is not None and (kept.contents, kept.settings) == (contents, settings) else None


def _in_order(splits: Sequence[Split]) -> list[Split]:
    """train first: what is also in another split is a leak from there."""
    return sorted(splits, key=lambda split: (split.name != "train", not split.name.startswith("train"), split.name))


def _comparable(splits: Sequence[Split]) -> list[list[Split]]:
    """Splits of one length of rows and one layer of the network."""
    groups: dict[tuple[int, str], list[Split]] = {}
    for split in splits:
        layers = ["", *(str(source["layer"]) for source in image_sources(split))]
        groups.setdefault((split.dim, layers[-1]), []).append(split)
    return list(groups.values())


@dataclass(frozen=True)
class _Group:
    """Splits one after the other: places number the rows of all of them."""

    splits: Sequence[Split]
    surveys: Sequence[detection.Survey]

    @property
    def starts(self) -> NDArray[np.int64]:
        return np.cumsum([0, *(len(split) for split in self.splits)])

    @property
    def labels(self) -> NDArray[np.int32]:
        return np.concatenate([split.labels for split in self.splits])

    @property
    def is_zero(self) -> NDArray[np.bool_]:
        return np.concatenate([survey.is_zero for survey in self.surveys])

    def place(self, place: int) -> tuple[str, int]:
        number = int(np.searchsorted(self.starts, place, side="right")) - 1
        return self.splits[number].name, place - int(self.starts[number])

    def slices(self) -> Iterator[tuple[str, slice]]:
        for split, start in zip(self.splits, self.starts[:-1].tolist(), strict=True):
            yield split.name, slice(start, start + len(split))


def _audit_group(splits: Sequence[Split], k: int, blocks: Path, progress: Progress | None) -> Audit:
    group = _Group(splits, [detection.survey_split(split, progress) for split in splits])
    contents, settings = {split.name: split.content for split in splits}, {"k": k}
    first, is_zero = detection.copy_groups(group.surveys), group.is_zero
    nearest = find_neighbours(splits, is_zero, k + SPARE, blocks, key_of(contents, settings), progress)
    # a copy of the row is reported as such, and tells nothing about what else is near
    near = nearest.pick((nearest.places >= 0) & (first[nearest.places] != first[:, None]), k)
    copies = detection.find_near_copies(near.scores)
    labels = _judge_labels(group, near)
    findings = [
        *_copies(group, first),
        *_near_copies(group, near, copies),
        *_suspects(group, near, labels),
        *_outliers(group, near),
        *(Finding("empty-row", *group.place(place)) for place in np.flatnonzero(is_zero).tolist()),
        *_dead_features(group),
    ]
    measured = {
        "rows": len(first),
        "dim": splits[0].dim,
        "dimension": round(copies.dimension, 3),
        "near_copy_ratio": round(copies.ratio, 6),
        "judged_labels": int(np.count_nonzero(labels.suggested >= 0)),
    }
    scores = {name: labels.score[part] for name, part in group.slices()}
    return Audit(contents, settings, findings, scores, measured, _notes(group, k, copies, labels))


def _judge_labels(group: _Group, near: Neighbours) -> detection.LabelScores:
    """Block by block: distances to all class means are (rows, classes)."""
    labels, is_zero = group.labels, group.is_zero
    counts = np.sum([survey.class_counts for survey in group.surveys], axis=0)
    sums = np.sum([survey.class_sums for survey in group.surveys], axis=0)
    judged = (labels >= 0) & ~is_zero & (np.count_nonzero(counts) > 1)
    judged[judged] = counts[labels[judged]] > 1
    margins, own, other = (np.zeros(len(labels)) for _ in range(3))
    suggested = np.full(len(labels), -1, np.int64)
    for split, (_, whole) in zip(group.splits, group.slices(), strict=True):
        for part in pieces(len(split)):
            rows = part.start + np.flatnonzero(judged[whole][part])
            if not len(rows):
                continue
            at = whole.start + rows
            units = unit(split.take(rows).astype(np.float64))
            margins[at], suggested[at] = detection.mean_margins(units, labels[at], sums, counts)
            places = near.places[at]
            own[at], other[at] = detection.votes(labels[at], np.where(places >= 0, labels[places], -1))
    return detection.judge(margins, own, other, suggested, judged)


def _copies(group: _Group, first: NDArray[np.int64]) -> Iterator[Finding]:
    for place in np.flatnonzero(first != np.arange(len(first))).tolist():
        yield Finding("copy", *group.place(place), *group.place(int(first[place])), similarity=1.0)


def _near_copies(group: _Group, near: Neighbours, copies: detection.NearCopies) -> Iterator[Finding]:
    """Each pair once, the later row first; nearest pairs first."""
    pairs: dict[tuple[int, int], float] = {}
    for place, column in copies.pairs.tolist():
        other = int(near.places[place, column])
        pairs[max(place, other), min(place, other)] = float(near.scores[place, column])
    furthest = np.where(near.places >= 0, near.distances, 0).max(axis=1, initial=0)
    for (place, other), score in sorted(pairs.items(), key=lambda pair: (-pair[1], pair[0])):
        distance = np.sqrt(2 - 2 * min(score, 1.0))
        ratio = float(distance / furthest[place]) if furthest[place] > 0 else 0.0
        kind: Kind = "copy" if score >= SAME else "near-copy"
        yield Finding(kind, *group.place(place), *group.place(other), similarity=score, score=ratio)


def _suspects(group: _Group, near: Neighbours, judged: detection.LabelScores) -> Iterator[Finding]:
    """The most suspect first, each with a neighbour that has the suggested label, else the nearest one."""
    places, labels = np.flatnonzero(judged.is_suspect), group.labels
    for place in places[np.argsort(judged.score[places], kind="stable")].tolist():
        suggested, score = int(judged.suggested[place]), float(judged.score[place])
        present = near.places[place] >= 0
        column = int(np.argmax(present & (labels[near.places[place]] == suggested)))
        other = group.place(int(near.places[place, column]))
        similarity = float(near.scores[place, column])
        yield Finding("suspect-label", *group.place(place), *other, similarity, score, suggested)


def _outliers(group: _Group, near: Neighbours) -> Iterator[Finding]:
    """The furthest from their neighbours first."""
    present = near.places >= 0
    counted = np.flatnonzero(present.any(axis=1))
    if len(counted) < detection.LEAST_ROWS:
        return
    mean = (near.distances * present)[counted].sum(axis=1) / np.count_nonzero(present[counted], axis=1)
    deviations = detection.robust_deviations(np.log(np.maximum(mean, 1e-6)))
    far = np.flatnonzero(deviations > OUTLIER_ABOVE)
    for at in far[np.argsort(-deviations[far], kind="stable")].tolist():
        place = int(counted[at])
        other, similarity = group.place(int(near.places[place, 0])), float(near.scores[place, 0])
        yield Finding("outlier", *group.place(place), *other, similarity, float(deviations[at]))


def _dead_features(group: _Group) -> Iterator[Finding]:
    """Of each split that is not tiny: features that have one value in all of its rows, mostly zero."""
    for split, survey in zip(group.splits, group.surveys, strict=True):
        if len(split) >= detection.LEAST_ROWS:
            for feature in np.flatnonzero(survey.lowest == survey.highest).tolist():
                yield Finding("dead-feature", split.name, feature, score=float(survey.lowest[feature]))


def _notes(group: _Group, k: int, copies: detection.NearCopies, labels: detection.LabelScores) -> list[str]:
    names = ", ".join(split.name for split in group.splits)
    notes = []
    if np.count_nonzero(~group.is_zero) < detection.LEAST_ROWS:
        notes.append(
            f"{names}: too few rows to tell near copies, outliers and dead features, {detection.LEAST_ROWS} are needed"
        )
    elif k < detection.LEAST_NEIGHBOURS:
        notes.append(f"{names}: near copies are told by {detection.LEAST_NEIGHBOURS} neighbours or more, k is {k}")
    elif copies.dimension == 0:
        notes.append(f"{names}: too few rows have {k} neighbours that are no copies to tell near copies; lower k")
    if not (group.labels >= 0).any():
        notes.append(f"{names}: no row has a label, so no label is suspect")
    elif not (labels.suggested >= 0).any():
        notes.append(f"{names}: labels are judged where two classes have two rows each or more")
    return notes
