"""The compiled loops do what torch and numpy do; without them, searches go the other way to the same answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from actstore.errors import InvalidInputError
from actstore.search import RowTable, compiled, query_codes, ranking, scoring
from actstore.search.compiled import PROCESSORS, SWITCH, address, kernels
from actstore.search.queries import unit
from actstore.search.query_codes import encode_queries
from actstore.search.ranking import Pairs, canonical_scores, rounding
from actstore.search.scoring import score_pairs, thin_out

pytestmark = pytest.mark.numeric
needs_kernels = pytest.mark.skipif(kernels() is None, reason="no compiled loops for this processor")
HERE = [*compiled.able_processors(), "auto"]
SEARCH = """
import json, numpy as np
from actstore.search import BoundedSearch, compiled, level_building
level_building.choose_widths = lambda *_: (16, 16)
random = np.random.default_rng(0)
rows = random.standard_normal((5000, 12)) @ random.standard_normal((12, 96)) + 0.05 * random.standard_normal((5000, 96))
engine = BoundedSearch(rows.astype(np.float16))
found = [engine.search(rows[:count], 4, some)[1].tolist()
         for count in (1, 3, 33) for some in (None, np.arange(0, 5000, 4), np.arange(0, 5000, 2))]
print(json.dumps([compiled.kernels() and compiled.kernels().processor, engine.fell_back, found]))
"""


def some_pairs(random: np.random.Generator, rows: int, queries: int, count: int) -> Pairs:
    owners = np.sort(random.integers(0, queries, count))
    return Pairs(random.integers(0, rows, count), owners, np.zeros(count, np.float32))


@needs_kernels
@pytest.mark.parametrize("kind", [np.float16, np.float32])
@pytest.mark.parametrize("dim", [1, 15, 16, 17, 63, 64, 65, 200, 512])
def test_scores_are_those_of_torch(kind: type, dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(dim)
    values = random.standard_normal((300, dim)).astype(kind)
    values[5] = 0
    table, units = RowTable(values), unit(torch.from_numpy(random.standard_normal((7, dim)).astype(np.float32)))
    pairs = some_pairs(random, 300, 7, 1000)
    exact = unit(torch.from_numpy(values)).double().numpy()[pairs.rows] * units.double().numpy()[pairs.queries]
    for workers in (1, 2):
        found = score_pairs(table, units, pairs, workers).scores
        assert np.abs(found - exact.sum(1)).max() <= 2 * rounding(dim)
    monkeypatch.setattr(scoring, "kernels", lambda: None)
    assert np.abs(score_pairs(table, units, pairs, 2).scores - found).max() <= 2 * rounding(dim)


@pytest.mark.parametrize("compiled", [True, False])
def test_pairs_in_any_order_are_thinned_out(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiled:
        monkeypatch.setattr(scoring, "kernels", lambda: None)
    random = np.random.default_rng(3)
    values = random.standard_normal((300, 24)).astype(np.float32)
    table, units = RowTable(values), unit(torch.from_numpy(random.standard_normal((5, 24)).astype(np.float32)))
    rows, owners = np.nonzero(random.random((300, 5)) < 0.4)  # by row, and views with a stride, as engines hand them on
    kept = thin_out(table, units, Pairs(rows, owners, np.zeros(len(rows), np.float32)), 3, 2)
    cosines = unit(torch.from_numpy(values)).double().numpy() @ units.double().numpy().T  # (rows, queries)
    for query in range(5):
        of_query = rows[owners == query]
        nearest = of_query[np.argsort(-cosines[of_query, query])[:3]]
        assert set(kept.rows[kept.queries == query].tolist()) == set(nearest.tolist())


@needs_kernels
@pytest.mark.parametrize("kind", [np.float16, np.float32])
@pytest.mark.parametrize("dim", [1, 2, 7, 8, 9, 100, 513])
def test_canonical_scores_are_the_same_to_the_bit(kind: type, dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(dim)
    values = (random.standard_normal((300, dim)) * 10.0 ** random.uniform(-3, 3, (300, 1))).astype(kind)
    values[5] = 0
    vectors, pairs = (
        torch.from_numpy(random.standard_normal((7, dim)).astype(np.float32)),
        some_pairs(random, 300, 7, 700),
    )
    for metric in ("cosine", "inner"):
        found = canonical_scores(RowTable(values), vectors, pairs, metric)
        with monkeypatch.context() as patch:
            patch.setattr(ranking, "kernels", lambda: None)
            np.testing.assert_array_equal(found, canonical_scores(RowTable(values), vectors, pairs, metric))


@needs_kernels
def test_rows_of_a_store_are_multiplied_where_they_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import actstore

    values = np.random.default_rng(1).standard_normal((3000, 64)).astype(np.float16)
    path = str(tmp_path / "x.zarr")
    actstore.from_arrays(path, {"train": (values, np.zeros(3000, np.int32))}, classes=["one"])
    rows = np.arange(0, 3000, 7)
    split = actstore.open(path)["train"]
    assert split.rows.in_memory is not None
    assert actstore.open(path, checked=True)["train"].rows.in_memory is None  # a look into memory checks nothing
    found = split.search(values[:2], k=3, rows=rows)
    monkeypatch.setattr("actstore.search.exact.kernels", lambda: None)
    for one, other in zip(found, split.search(values[:2], k=3, rows=rows), strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_answers_are_the_same_with_all_loops_and_without() -> None:
    said = {}
    for switch in ("0", "1", *HERE):
        run = subprocess.run([sys.executable, "-c", SEARCH], env={**os.environ, SWITCH: switch}, capture_output=True,
                             text=True, check=True)  # fmt: skip
        said[switch] = json.loads(run.stdout)
        assert said[switch][1:] == said["0"][1:]
    assert said["0"][0] is None
    assert [said[name][0] for name in HERE[:-1]] == HERE[:-1]
    assert said["1"] == said["auto"] == said[HERE[0] if HERE[1:] else "0"]


@pytest.fixture
def switch(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """For tests that set the switch: what was chosen before is forgotten, and what they choose after them."""
    _forget()
    yield monkeypatch
    monkeypatch.undo()
    _forget()


def _forget() -> None:
    compiled.kernels.cache_clear()
    compiled._library.cache_clear()


@pytest.mark.parametrize("asked", ["avx", "AVX2", "yes", "2"])
def test_loops_that_nobody_knows_are_refused(asked: str, switch: pytest.MonkeyPatch) -> None:
    switch.setenv(SWITCH, asked)
    with pytest.raises(InvalidInputError, match=f"{SWITCH} .*{asked}"):
        compiled.kernels()


def test_loops_for_another_processor_are_refused(switch: pytest.MonkeyPatch) -> None:
    other = next(name for name in PROCESSORS if name not in HERE)  # none is both x86 and ARM
    switch.setenv(SWITCH, other)
    with pytest.raises(InvalidInputError, match=f"{SWITCH} .*{other}"):
        compiled.kernels()


@needs_kernels
@pytest.mark.parametrize("processor", HERE[:-1])
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), width=st.sampled_from([16, 96, 640]), spread=st.floats(0, 8))
def test_codes_of_queries_cannot_overflow(processor: str, seed: int, width: int, spread: float) -> None:
    along = np.random.default_rng(seed).standard_normal((3, width)) ** 3 * 10.0**-spread
    along[1, 6:8], along[2] = 5.0, along[2, 0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(query_codes, "kernels", lambda: compiled.Kernels(compiled._library(), processor))
        made = encode_queries(along)
    codes = made.codes.numpy().astype(np.int64).T
    assert np.abs(codes).max() <= 127
    if processor == "avx2":  # which adds products with these four of eight codes, and with the others, in 16 bits
        fours = np.abs(codes).reshape(3, -1, 8)[:, :, [0, 1, 4, 5, 2, 3, 6, 7]].reshape(3, -1, 4)
        assert fours.sum(2).max() * 255 < 2**15
    assert (np.linalg.norm(along - codes * made.scale[:, None], axis=1) <= made.error).all()


def test_only_contiguous_values_have_an_address() -> None:
    values = np.zeros((4, 4), np.float32)
    assert address(None) is None
    assert address(values) == address(torch.from_numpy(values))
    with pytest.raises(ValueError, match="contiguous"):
        address(values[:, ::2])
    with pytest.raises(ValueError, match="contiguous"):
        address(torch.from_numpy(values)[:, ::2])


def test_what_cannot_be_used_is_passed_over(switch: pytest.MonkeyPatch) -> None:
    class Library:
        def __init__(self, version: int) -> None:
            self.kernels_version, self.kernels_run = lambda: version, lambda _: 0

    def broken(_: str) -> None:
        raise OSError("invalid ELF header")

    switch.delenv(SWITCH, raising=False)
    # no such processor, another version, nothing that can be loaded
    for load in (lambda _: Library(compiled._VERSION), lambda _: Library(1), broken):
        switch.setattr(compiled.ctypes, "CDLL", load)
        _forget()
        assert compiled.kernels() is None
