"""The compiled loops of every processor against numpy: by the machine's own compiler, or under an emulator.

Numbers are whole and small, so that sums in float32 are exact in whatever order they are added up.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from actstore.search import compiled
from actstore.search.compiled import PROCESSORS
from actstore.search.ranking import fold

pytestmark = pytest.mark.numeric
LOOPS = Path(compiled.__file__).parent / "loops"
DRIVER = Path(__file__).with_name("loops_driver.c")
IS_ARM = platform.machine() in ("arm64", "aarch64")
CROSS, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
PANEL = 16
LEVELS = np.array([-126, -95, -74, -58, -43, -30, -18, -6, 6, 18, 30, 43, 58, 74, 95, 126])  # loops/processors.h


class Driver:
    """The loops of a processor in a program. most: the size of a query's code that all may have at once."""

    def __init__(self, command: list[str], folder: Path, most: int) -> None:
        self.command, self.folder, self.most = command, folder, most

    def run(self, what: str, *arrays: NDArray[Any]) -> Reader:
        with (self.folder / "input").open("wb") as file:
            for array in arrays:
                held = np.ascontiguousarray(array).tobytes()
                file.write(held + bytes(-len(held) % 64))
        subprocess.run([*self.command, what, self.folder / "input", self.folder / "output"], check=True, timeout=60)
        return Reader((self.folder / "output").read_bytes())


class Reader:
    def __init__(self, held: bytes) -> None:
        self.held, self.place = held, 0

    def read(self, kind: Any, count: int) -> NDArray[Any]:
        array = np.frombuffer(self.held, kind, count, self.place)
        self.place += array.nbytes
        return array


@pytest.fixture(scope="module", params=PROCESSORS)
def driver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Driver:
    processor, folder = request.param, tmp_path_factory.mktemp(request.param)
    emulated = processor == "neon" and not IS_ARM
    compiler = shutil.which(CROSS if emulated else "cc")
    if compiler is None or (emulated and shutil.which(EMULATOR) is None):
        pytest.skip(f"{processor} needs {f'{CROSS} and {EMULATOR}' if emulated else 'a C compiler'} here")
    if not emulated and processor not in compiled.able_processors():
        pytest.skip(f"this processor cannot run the loops of {processor}")
    program = folder / "driver"
    static = ["-static"] if emulated else []
    subprocess.run([compiler, "-O2", "-Wall", "-Wextra", "-Werror", *static, f'-DLOOPS="{processor}.c"', "-I", LOOPS,
                    DRIVER, "-lm", "-o", program], check=True)  # fmt: skip
    emulator = [EMULATOR, "-cpu", "max"] if emulated else []
    return Driver([*emulator, str(program)], folder, 32 if processor == "avx2" else 127)


def some_codes(driver: Driver, random: np.random.Generator, rows: int, count: int, width: int) -> tuple[Any, Any]:
    """(rows, width) stored, (count, width) of queries: random ones, and those that make the largest sums."""
    stored = random.integers(1, 256, (rows, width), dtype=np.uint8)
    stored[0], stored[1], stored[2, ::2] = 255, 1, 255
    queries = random.integers(-driver.most, driver.most + 1, (count, width), dtype=np.int8)
    queries[0], queries[-1, : width // 2] = driver.most, -driver.most
    return stored, queries


def small(random: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    return random.integers(-20, 21, shape).astype(np.float32)


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("chosen", ["all", "some", "allowed"])
@pytest.mark.parametrize(("width", "count"), [(16, 1), (100, 4), (640, 3), (16, 5), (24, 17), (160, 32), (512, 33)])
def test_rows_are_bounded(driver: Driver, width: int, count: int, chosen: str, keeps: bool) -> None:
    random, rows, top = np.random.default_rng(width + count), 301, 4
    stored, queries = some_codes(driver, random, rows, count, width)
    factors, coefficients = small(random, rows, 6), np.zeros((6, count), np.float32)
    factors[:, 0] = 1
    coefficients[1:] = small(random, 5, count)
    places = np.sort(random.choice(rows, 97, replace=False)) if chosen == "some" else np.empty(0, np.int64)
    allowed = random.random(rows) < 0.4
    ranges = np.array([[0, 50], [60, 97]] if chosen == "some" else [[0, 130], [140, 141], [150, rows]])
    estimates = (stored.astype(np.int64) - 128) @ queries.astype(np.int64).T + np.outer(factors[:, 2], coefficients[2])
    bounds = estimates + coefficients[1] + factors[:, 3:] @ coefficients[3:]  # (rows, count)
    looked_at = np.concatenate([np.arange(start, stop) for start, stop in ranges])
    looked_at = places[looked_at] if chosen == "some" else looked_at
    looked_at = looked_at[allowed[looked_at]] if chosen == "allowed" else looked_at
    limits = np.quantile(bounds[looked_at], 0.8, axis=0).astype(np.float32) if keeps else np.full(count, -1e30, "f4")

    panels = 0 if count <= 4 else -(-count // PANEL)
    lanes = panels * PANEL or count
    filled = np.zeros((lanes, width), np.int8)
    filled[:count] = queries
    ordered = filled.T.reshape(-1, 4, panels, PANEL).transpose(2, 0, 3, 1) if panels else filled
    terms, scales, all_limits = np.zeros((6, lanes), np.float32), np.full(lanes, 2, np.float32), np.full(lanes, np.inf)
    terms[:, :count], all_limits[:count] = coefficients, limits
    sizes = [width, rows, len(places), len(ranges), count, panels, top, keeps, chosen == "allowed"]
    found = driver.run(
        "rows", np.array(sizes), stored, factors, places, ranges, allowed, ordered, 128 * filled.sum(1, dtype=np.int32),
        terms, all_limits.astype(np.float32), scales, np.full((lanes, top), -np.inf, np.float32),
    )  # fmt: skip

    number = int(found.read(np.int64, 1)[0])
    pairs = list(zip(*(found.read(kind, number).tolist() for kind in (np.int64, np.int64, np.float32)), strict=True))
    reached = bounds[looked_at] >= limits
    row, query = (looked_at[np.nonzero(reached)[0]], np.nonzero(reached)[1]) if keeps else ([], [])
    expected = [(int(r), int(q), 2 * float(bounds[r, q])) for r, q in zip(row, query, strict=True)]
    assert sorted(pairs) == sorted(expected)
    guesses = found.read(np.float32, lanes * top).reshape(lanes, top)
    likely = found.read(np.int64, lanes * top).reshape(lanes, top)
    for one in range(count):
        best = np.sort(estimates[looked_at[reached[:, one]], one])[::-1][:top]
        there = guesses[one] > -np.inf
        np.testing.assert_array_equal(np.sort(guesses[one][there])[::-1], best)
        np.testing.assert_array_equal(estimates[likely[one][there], one], guesses[one][there])
    assert (guesses[count:] == -np.inf).all()


@pytest.mark.parametrize("kind", [np.float16, np.float32])
@pytest.mark.parametrize("has_second", [True, False])
@pytest.mark.parametrize(("count", "sampled", "spare"), [(1, 0, 0), (4, 7, 900), (16, 7, 0), (40, 0, 9000)])
def test_the_nearest_are_scored_on_the_way(
    driver: Driver, count: int, sampled: int, spare: int, has_second: bool, kind: type
) -> None:
    """sampled: rows of each query that give the first thresholds. spare: room for pairs beyond those of some rows."""
    random, rows, top, width, second, dim = np.random.default_rng(count), 700, 5, 24, 40, 33
    stored, queries = some_codes(driver, random, rows, count, width)
    again, queries_again = some_codes(driver, random, rows, count, second)
    reaches, reaches_again = random.random(rows) < 0.9, random.random(rows) < 0.9  # by far, or not at all
    factors, tails = np.zeros((rows, 6), np.float32), np.zeros((rows, 8), np.float32)
    factors[:, 3], tails[:, 1] = np.where(reaches, 1e6, -1e6), np.where(reaches_again, 1e6, -4e6)
    factors[:, 0] = tails[:, 0] = 1
    panels = 0 if count <= 4 else -(-count // PANEL)
    lanes = panels * PANEL or count
    filled, terms = np.zeros((lanes, width), np.int8), np.zeros((6, lanes), np.float32)
    filled[:count], terms[3] = queries, 1
    ordered = filled.T.reshape(-1, 4, panels, PANEL).transpose(2, 0, 3, 1) if panels else filled
    norms, limits = np.tile(np.float32([1, 1, 0, 0, 0, 0, 0, 0]), (count, 1)), np.full(lanes, np.inf, np.float32)
    limits[:count] = -1000
    values, vectors = small(random, rows, dim).astype(kind), small(random, count, dim)
    scales = random.choice([0.5, 1, 2], rows).astype(np.float32)
    scores = (values.astype(np.float64) @ vectors.T * scales[:, None]).astype(np.float32)  # (rows, count)
    possible = np.flatnonzero(reaches & reaches_again) if has_second else np.flatnonzero(reaches)
    likely = np.stack([random.choice(possible, sampled, replace=False) for _ in range(lanes)])
    estimates = np.zeros((lanes, sampled), np.float32)
    estimates[:, 6:] = -np.inf
    capacity = 128 * lanes + spare if spare else rows * lanes
    sizes = [width, second, rows, count, panels, top, dim, kind == np.float16, has_second, sampled, capacity]
    found = driver.run(
        "closer", np.array(sizes), stored,
        factors, ordered, 128 * filled.sum(1, dtype=np.int32), terms, limits, np.ones(lanes, np.float32),
        np.concatenate([again, tails.view(np.uint8)], 1), queries_again, 128 * queries_again.sum(1, dtype=np.int32),
        norms, values, vectors, scales, np.full(count, -1000, np.float32), np.full((lanes, top), -np.inf, np.float32),
        estimates, likely,
    )  # fmt: skip

    number, examined = found.read(np.int64, 2)
    of_rows, owners, given = (found.read(kind, number) for kind in (np.int64, np.int64, np.float32))
    np.testing.assert_array_equal(given, scores[of_rows, owners])
    assert set(of_rows) <= set(possible)
    assert len(given) < examined
    kth = np.sort(scores[possible], axis=0)[-top]  # (count,)
    np.testing.assert_array_equal(found.read(np.float32, count), np.maximum(kth - np.float32(0.25), -1000))
    for query in range(count):
        nearest = possible[scores[possible, query] >= kth[query]]
        assert set(nearest) <= set(of_rows[owners == query])


@pytest.mark.parametrize("is_normal", [True, False])
@pytest.mark.parametrize(("width", "count"), [(16, 1), (100, 2), (576, 1), (1024, 2)])
def test_short_codes_bound_what_they_stand_for(driver: Driver, width: int, count: int, is_normal: bool) -> None:
    """What they and the first level leave is what the first level alone does."""
    random, rows = np.random.default_rng(width + count), 90
    stored, queries = some_codes(driver, random, rows, count, width)
    if is_normal:
        stored = np.clip(np.rint(random.standard_normal((rows, width)) * 35), -127, 127).astype(np.int16) + 128
    stored[5] = 128  # a row of zeros
    stored = stored.astype(np.uint8)
    factors = np.abs(small(random, rows, 6)) / 32  # parts of unit vectors
    factors[:, 0], factors[:, 4] = random.choice([0.5, 1, 2], rows) / 1024, random.integers(0, 2, rows)
    factors[:, 2], factors[:, 5] = random.uniform(-1, 1, rows), random.uniform(0, 1, rows)
    factors[:4, 2] = 1, -1, 1 - 2.0**-17, 2.0**-17 - 1
    coefficients = np.abs(small(random, 6, count))
    coefficients[2] *= random.choice([-300, 300], count)  # what rounds the first coordinate is seen
    coefficients[3] = np.ceil(np.linalg.norm(queries.astype(float), axis=1))  # what a row's error is multiplied by
    chosen = np.sort(random.choice(rows, 70, replace=False))
    codes, asked, of = stored.astype(np.float64) - 128, queries.astype(np.float64), coefficients.astype(np.float64)
    level = factors[:, :1] * (codes @ asked.T) + np.outer(factors[:, 2], of[2]) + of[1] + factors[:, 3:] @ of[3:]
    limits = np.sort(level[chosen], axis=0)[55:57].mean(0).astype(np.float32)  # (count,) amid two of them
    found = driver.run(
        "short", np.array([width, rows, count, len(chosen)]), stored, factors, chosen, queries,
        128 * queries.sum(1, dtype=np.int32), coefficients, limits, np.ones(count, np.float32),
        np.ones(rows, np.float32), limits, np.ones(rows, np.float32),  # every score is the threshold, which stays
        limits, np.full(count, -np.inf, np.float32),
    )  # fmt: skip

    made = found.read(np.uint8, rows * (width // 2 + 8)).reshape(rows, -1)
    halves, short = made[:, : width // 2], made[:, width // 2 :].copy().view(np.uint16)
    unit, first, lengths = short[:, :1] * 2.0**-20, short[:, 1].view(np.int16) * 2.0**-15, short[:, 2:] * 2.0**-14
    means = unit * LEVELS[np.concatenate([halves & 15, halves >> 4], 1)]  # (rows, width) what they stand for
    lost = np.linalg.norm(factors[:, :1] * codes - means, axis=1)
    assert np.abs(first - factors[:, 2]).max() <= 2.0**-15
    assert (lengths[:, 1] >= factors[:, 5]).all()
    assert (lengths[:, 1] <= factors[:, 5] + 2.0**-14).all()
    assert (lengths[:, 0] >= factors[:, 3] + lost).all()
    assert (lengths[:, 0] <= factors[:, 3] + lost * (1 + 1e-3) + 2.0**-13).all()
    bound = means @ asked.T + np.outer(first, of[2]) + of[1] + of[4] + np.abs(of[2]) * 2.0**-15
    bound += np.outer(lengths[:, 0], of[3] + of[4]) + np.outer(lengths[:, 1], of[5])
    assert (bound >= level - 1e-9).all()
    if is_normal:
        assert np.median(lost) < 0.105 * np.median(np.linalg.norm(factors[:, :1] * codes, axis=1))

    _, left, number = found.read(np.int64, 3)
    pairs = set(zip(found.read(np.int64, number).tolist(), found.read(np.int64, number).tolist(), strict=True))
    reached = level[chosen] >= limits
    row, query = np.nonzero(reached)
    assert pairs == set(zip(chosen[row].tolist(), query.tolist(), strict=True))
    assert reached.sum() <= left <= reached.size


@pytest.mark.parametrize("width", [16, 24, 64, 100, 384])
def test_pairs_are_bounded_by_the_second_level(driver: Driver, width: int) -> None:
    random, rows, count, pairs = np.random.default_rng(width), 60, 5, 400
    stored, queries = some_codes(driver, random, rows, count, width)
    tails, norms = small(random, rows, 8), small(random, count, 8)
    tails[:, 0], norms[:, 0] = 1, 1
    of_rows, owners, bounds = random.integers(0, rows, pairs), random.integers(0, count, pairs), small(random, pairs)
    sums = (stored.astype(np.int64) - 128) @ queries.astype(np.int64).T
    after = sums[of_rows, owners] + (tails[of_rows, 1:] * norms[owners, 1:]).sum(1) + bounds
    limits = np.full(count, -5, np.float32)
    second = np.concatenate([stored, tails.view(np.uint8)], 1)
    found = driver.run("pairs", np.array([width, rows, count, pairs]), second, of_rows, owners, bounds, queries,
                       128 * queries.sum(1, dtype=np.int32), norms, limits)  # fmt: skip
    kept = (bounds >= -5) & (after >= -5)
    assert 0 < kept.sum() < pairs
    assert found.read(np.int64, 1)[0] == kept.sum()
    for kind, expected in ((np.int64, of_rows), (np.int64, owners), (np.float32, after)):
        np.testing.assert_array_equal(found.read(kind, int(kept.sum())), expected[kept])


@pytest.mark.parametrize("kind", [np.float16, np.float32])
@pytest.mark.parametrize("dim", [1, 3, 4, 7, 8, 16, 17, 65, 200, 512])
def test_rows_are_multiplied_and_summed(driver: Driver, kind: type, dim: int) -> None:
    random, rows, count, pairs = np.random.default_rng(dim), 40, 3, 90
    values = (random.standard_normal((rows, dim)) * 10.0 ** random.uniform(-5, 3, (rows, 1))).astype(kind)
    vectors, scales = (
        random.standard_normal((count, dim)).astype(np.float32),
        random.uniform(0.5, 2, rows).astype(np.float32),
    )
    of_rows, owners = random.integers(0, rows, pairs), random.integers(0, count, pairs)
    found = driver.run("values", np.array([kind == np.float16, dim, rows, count, pairs]), values, of_rows, owners,
                       vectors, scales)  # fmt: skip
    wide, asked = values.astype(np.float64)[of_rows], vectors.astype(np.float64)[owners]
    products = np.einsum("rd,qd->rqd", values, vectors, dtype=np.float64)
    exact, margin = products.sum(2), (dim + 2) * 2.0**-24 * np.abs(products).sum(2)  # (rows, count)
    off = found.read(np.float32, pairs) / scales[of_rows] - exact[of_rows, owners]
    assert (np.abs(off) <= 1.01 * margin[of_rows, owners]).all()
    assert (np.abs(found.read(np.float32, rows * count).reshape(rows, count) - exact) <= margin).all()
    np.testing.assert_array_equal(found.read(np.float64, pairs), fold(wide * asked))
    np.testing.assert_array_equal(found.read(np.float64, pairs), fold(wide * wide))


@pytest.mark.parametrize("kind", [np.float16, np.float32])
@pytest.mark.parametrize("widths", [(16, 24), (8, 16, 40), (16, 8, 8, 3), (32, 0)])
@pytest.mark.parametrize(("rows", "k"), [(40, 3), (300, 7)])
def test_rows_are_joined(driver: Driver, rows: int, k: int, widths: tuple[int, ...], kind: type) -> None:
    """Rows are what their codes say, in another order than their numbers; many scores are equal."""
    random, dim = np.random.default_rng(rows), sum(widths)
    values = random.integers(-2, 3, (rows, dim)) * (random.random((rows, 1)) < 0.9)
    numbers, lanes, done = random.permutation(rows), -(-rows // 32) * 32, 0
    arrays: list[NDArray[Any]] = []
    for place, width in enumerate(widths):
        codes, filled = values[:, done : done + width], np.zeros((lanes, width), np.int8)
        filled[:rows], done = codes, done + width
        is_last = place == len(widths) - 1
        ordered = filled if is_last else filled.reshape(-1, PANEL, width // 4, 4).transpose(0, 2, 1, 3)
        rests = np.zeros(rows + 64, np.float32)
        rests[:rows] = np.linalg.norm(values[:, done:], axis=1) * 1.001
        arrays += [(codes + 128).astype(np.uint8), ordered, 128 * filled.sum(1, dtype=np.int32), rests, 0 * rests]
    reaches = np.full(rows + 64, -1e30, np.float32)
    reaches[rows:] = np.inf
    ranges = np.array([[0, 17], [17, rows]])
    windows = np.stack([np.arange(0, lanes, PANEL) // 2, np.minimum(np.arange(0, lanes, PANEL) + 20, rows)], 1)
    best, neighbours = np.full((rows, k), -1000, np.float32), np.full((rows, k), -1)
    sizes = [rows, k, dim, kind == np.float16, len(widths), len(ranges), lanes]
    found = driver.run("join", np.array(sizes), np.array(widths), *arrays, values.astype(kind), numbers, ranges,
                       windows, best, reaches, neighbours)  # fmt: skip
    products = (values @ values.T).astype(np.float32)
    np.fill_diagonal(products, -1000)
    order = np.lexsort((np.tile(numbers, (rows, 1)), -products), axis=1)[:, :k]
    scores = np.take_along_axis(products, order, 1)
    np.testing.assert_array_equal(found.read(np.float32, rows * k).reshape(rows, k), scores)
    np.testing.assert_array_equal(found.read(np.int64, rows * k).reshape(rows, k), numbers[order])
    examined, scored = found.read(np.int64, 2)
    assert scored <= examined <= rows * (rows - 1) // 2
    np.testing.assert_array_equal(found.read(np.float64, rows), (values**2).sum(1))
