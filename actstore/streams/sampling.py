"""Which rows a training step uses: a pure function of the class index, the seed and the step. No I/O.

A counter-based generator (Philox) is placed at the step directly, so resuming needs nothing but the
step's number.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum, unique
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actstore.errors import InvalidInputError
from actstore.layout.class_index import ClassIndex


@unique
class Stream(IntEnum):
    """Every stream of random numbers, so that no two that are drawn with one seed are the same; a comment says what a
    step is. The numbers are part of what a seed means: another one changes draws, splits and resumed trainings."""

    CLASS_BATCHES = 0  # step of a training: statistics and queries
    EPOCH_ORDER = 1  # epoch
    HELD_OUT_IMAGES = 2  # class
    CROP_SHIFTS = 3  # epoch
    FLIPS = 4  # epoch
    TASKS = 5  # number of the task
    CROP_BOXES = 6  # epoch
    MIXUP = 7  # step of a training
    NEIGHBOUR_SHARES = 16  # class
    HELD_OUT_ROWS = 17  # class
    LARGE_SAMPLE = 18  # step of a training
    TRIPLETS = 19  # step of a training
    NOVEL_EXAMPLES = 20  # step of a training
    UNTESTED_ROWS = 21  # class
    STAND_IN_EXAMPLES = 22  # number of the task
    MORE_EXAMPLES = 23  # step of a training: the further rows of a statistic
    ATTENTION_TASKS = 24  # step of a training
    SYNTHETIC_CLASSES = 100  # class
    SYNTHETIC_FEATURES = 101
    SYNTHETIC_ORDER = 102
    SYNTHETIC_ROWS = 103  # tile of rows
    ROTATION = 200  # 0: rows to fit on, 2 and 3: turns of the first and second level
    INDEX = 201  # 0: queries to tune on, 1: rotation
    INDEX_PROBES = 202  # 1: rows to choose levels by
    BLOCK_ORDER = 203  # 1
    COMPARED_ROWS = 300  # 0: rows of which all pairs are compared, then number of the resample
    MAPPED_ROWS = 301  # 0: rows, 1: their order on the page, 2: rows with thumbnails, 3: start of the layout
    SUPPORT = 1 << 32  # draw; one stream per class follows


# Step: a task, whose stand-ins for novel categories are chosen. It shares its number with CROP_SHIFTS since 0.1.0: one
# is drawn while a backbone is trained, the other while a phi is calibrated, and calibrations are to stay as they are.
STAND_INS = 3


@dataclass(frozen=True)
class BatchPlan:
    """One statistic and one query for each of the classes (n_class,).

    labels: their labels in the store. targets: their positions in the whole batch, 0..n_class-1.
    use_mean: whether the statistic is the class mean; where not, it is the row in statistic_rows, or the mean of that
    row and the first `more` (n_class,) of more_rows (n_class, most).
    """

    step: int
    labels: NDArray[np.int64]
    targets: NDArray[np.int64]
    use_mean: NDArray[np.bool_]
    statistic_rows: NDArray[np.int64]
    query_rows: NDArray[np.int64]
    more: NDArray[np.int64]
    more_rows: NDArray[np.int64]

    def shard(self, rank: int, world_size: int) -> BatchPlan:
        """The part of one of several processes; all parts in order make up the whole."""
        if not 0 <= rank < world_size:
            raise InvalidInputError(f"rank must be 0 to {world_size - 1}, got {rank}")
        part = share(len(self.labels), rank, world_size)
        arrays = ("labels", "targets", "use_mean", "statistic_rows", "query_rows", "more", "more_rows")
        return replace(self, **{name: getattr(self, name)[part] for name in arrays})


def share(length: int, rank: int, world_size: int) -> slice:
    """The contiguous part of `length` things that belongs to one of several processes."""
    return slice(length * rank // world_size, length * (rank + 1) // world_size)


def generator(seed: int, step: int, stream: int = 0) -> np.random.Generator:
    """Independent random numbers for every (seed, step, stream)."""
    if seed < 0 or step < 0:
        raise InvalidInputError(f"seed and step must not be negative, got seed {seed}, step {step}")
    return np.random.Generator(np.random.Philox(key=[seed, stream], counter=[0, 0, 0, step]))


def plan_batch(
    index: ClassIndex, labels: NDArray[Any], seed: int, step: int, p_mean: float, examples: tuple[int, int] = (1, 1)
) -> BatchPlan:
    """One statistic and one query per class. The statistic is the class mean with probability p_mean, else the mean of
    some uniform rows: at least and at most as many as `examples` says.

    Rows are drawn independently: as in the paper, statistic and query may be the same row. The first row of a statistic
    and the query are the same for any `examples`.
    """
    if not 0 <= p_mean <= 1:
        raise InvalidInputError(f"p_mean must be a probability between 0 and 1, got {p_mean}")
    classes = np.asarray(labels, np.int64)
    starts, counts = index.offsets[classes], index.counts[classes]
    if (counts == 0).any():
        empty = index.names[int(classes[np.flatnonzero(counts == 0)[0]])]
        raise InvalidInputError(f"class {empty!r} has no rows to sample; leave it out of the batch")
    random = generator(seed, step, Stream.CLASS_BATCHES)
    use_mean = random.random(len(classes)) < p_mean
    statistic = index.row_at(starts + random.integers(0, counts))
    query = index.row_at(starts + random.integers(0, counts))
    more, more_rows = np.zeros(len(classes), np.int64), np.empty((len(classes), 0), np.int64)
    least, most = examples
    if most > 1:
        random = generator(seed, step, Stream.MORE_EXAMPLES)
        more = random.integers(least - 1, most, len(classes))
        drawn = random.integers(0, counts[:, None], (len(classes), most - 1))
        more_rows = index.row_at(starts[:, None] + drawn)
    return BatchPlan(step, classes, np.arange(len(classes)), use_mean, statistic, query, more, more_rows)


def draw_support(index: ClassIndex, labels: NDArray[Any], shots: int, seed: int, draw: int) -> NDArray[np.int64]:
    """Different rows of each class -> (n_class, shots).

    The rows of a draw with fewer shots are the first of one with more, and a class's rows do not depend on which
    other classes are drawn: methods, shots and splits are compared on the same examples.
    """
    if shots < 1:
        raise InvalidInputError(f"shots must be at least 1, got {shots}")
    classes = np.asarray(labels, np.int64)
    if len(classes) and int(index.counts[classes].min()) < shots:
        poor = int(classes[index.counts[classes].argmin()])
        raise InvalidInputError(
            f"class {index.names[poor]!r} has {int(index.counts[poor]):,} rows, too few for {shots} shots; "
            "use fewer (--shots), or leave it out"
        )
    rows = np.empty((len(classes), shots), np.int64)
    for place, label in enumerate(classes.tolist()):
        order = generator(seed, draw, stream=Stream.SUPPORT + label).permutation(int(index.counts[label]))
        rows[place] = index.row_at(index.offsets[label] + order[:shots])
    return rows


def epoch_order(rows: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """A permutation of the rows for one pass over them."""
    return generator(seed, epoch, Stream.EPOCH_ORDER).permutation(rows)
