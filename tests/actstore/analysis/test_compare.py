"""Measures against plain float64 references, rows aligned by id, and what is said of rows that do not count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import pearsonr, rankdata, spearmanr

import actstore
from actstore.analysis import MEASURES, Comparison, similarity
from actstore.errors import InvalidInputError, MissingSplitError, NotAStoreError

Values = NDArray[Any]
Make = Callable[..., actstore.Split]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A split of these rows, with ids row0, row1, … unless others are given."""

    def make(name: str, values: Values, ids: Sequence[str] | bool | None = True, **options: Any) -> actstore.Split:
        named = [f"row{row}" for row in range(len(values))] if ids is True else ids
        return actstore.from_arrays(tmp_path / f"{name}.zarr", {"train": (values, None, named)}, **options)["train"]

    return make


@pytest.fixture
def pair(make: Make, random: np.random.Generator) -> tuple[actstore.Split, actstore.Split, Values, Values]:
    """Two representations of 300 rows that have something in common, far from the origin and of different sizes."""
    common = random.standard_normal((300, 6))
    one = common @ random.standard_normal((6, 24)) + 0.3 * random.standard_normal((300, 24)) + 5
    other = 100 * common[:, :4] @ random.standard_normal((4, 40)) + 30 * random.standard_normal((300, 40)) - 900
    values = one.astype(np.float32), other.astype(np.float32)
    return make("one", values[0]), make("other", values[1]), *(part.astype(np.float64) for part in values)


def linear_reference(one: Values, other: Values) -> dict[str, float]:
    x, y = one - one.mean(0), other - other.mean(0)
    return {
        "cka": np.linalg.norm(x.T @ y) ** 2 / (np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)),
        "procrustes": float(np.linalg.norm(x.T @ y, "nuc") / (np.linalg.norm(x) * np.linalg.norm(y))),
    }


def reference(one: Values, other: Values, k: int = 10) -> dict[str, float]:
    """Each measure as its definition says, with whole matrices."""
    rdms = [1 - np.corrcoef(rows)[np.triu_indices(len(rows), 1)] for rows in (one, other)]
    near = []
    for rows in (one, other):
        cosines = rows @ rows.T / np.outer(np.linalg.norm(rows, axis=1), np.linalg.norm(rows, axis=1))
        np.fill_diagonal(cosines, -2)
        near.append(np.argsort(-cosines, axis=1)[:, :k])
    shared = [len(set(a) & set(b)) / k for a, b in zip(*map(np.ndarray.tolist, near), strict=True)]
    return {
        **linear_reference(one, other),
        "rsa-spearman": spearmanr(*rdms).statistic,
        "rsa-pearson": pearsonr(*rdms).statistic,
        "knn": float(np.mean(shared)),
    }


def values_of(found: Comparison) -> dict[str, float]:
    return {each.measure: each.value for each in found.similarities}


@pytest.mark.numeric
def test_every_measure_equals_its_definition(pair: Any) -> None:
    found = actstore.compare(pair[0], pair[1], sample=300)
    assert found.rows == found.sampled == 300
    assert values_of(found) == pytest.approx(reference(*pair[2:]), abs=1e-5)
    for each in found.similarities:
        assert each.low < each.value < each.high, each.measure


@pytest.mark.numeric
def test_one_pass_of_blocks_and_chunks_gives_the_same(
    make: Make, random: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actstore.analysis.comparison._BLOCK_ROWS", 37)
    one, other = random.standard_normal((200, 8)).astype("f4"), random.standard_normal((200, 12)).astype("f2")
    splits = make("one", one, chunk_rows=16), make("other", other, chunk_rows=50, codec="blosc")
    seen: list[int] = []
    found = actstore.compare(*splits, sample=200, resamples=0, progress=seen.append)
    assert values_of(found) == pytest.approx(reference(one.astype("f8"), other.astype("f8")), abs=1e-5)
    assert sum(seen) == 200
    assert all(np.isnan(each.low) for each in found.similarities)


@pytest.mark.numeric
def test_a_turned_scaled_and_shifted_copy_is_the_same_to_cka_and_procrustes(
    make: Make, random: np.random.Generator
) -> None:
    rows = random.standard_normal((100, 8))
    turned = 3 * rows @ np.linalg.qr(random.standard_normal((8, 8)))[0] + 1
    splits = make("one", rows.astype("f4")), make("other", turned.astype("f4"))
    found = actstore.compare(*splits, measures=["cka", "procrustes"])
    for each in found.similarities:
        assert (each.value, each.low, each.high) == pytest.approx((1, 1, 1), abs=1e-5)
    assert found.sampled == 0


@pytest.mark.numeric
def test_rows_are_aligned_by_id_whatever_their_order(pair: Any, make: Make, random: np.random.Generator) -> None:
    one, _, first, second = pair
    order = random.permutation(300)[:250]
    ids = [*(f"row{row}" for row in order), "stranger", "row999"]
    shuffled = make("shuffled", np.concatenate([second[order], second[:2]]).astype("f4"), ids)
    found = actstore.compare(one, shuffled, sample=300)
    kept = np.sort(order)
    assert found.rows == 250
    assert values_of(found) == pytest.approx(reference(first[kept], second[kept]), abs=1e-5)
    assert [note.split(":")[0] for note in found.notes] == ["one.zarr/train", "shuffled.zarr/train"]
    assert "50 of 300" in found.notes[0]
    assert "2 of 252" in found.notes[1]


def test_ids_that_occur_twice_align_with_nothing(pair: Any, make: Make) -> None:
    ids = ["row0", "row0", *(f"row{row}" for row in range(2, 300))]
    found = actstore.compare(pair[0], make("twice", pair[3].astype("f4"), ids), measures=["cka"])
    assert found.rows == 298


def test_rows_without_ids_are_compared_by_number_or_refused(make: Make, random: np.random.Generator) -> None:
    rows = random.standard_normal((50, 4)).astype("f4")
    plain, fewer = make("plain", rows, None), make("fewer", rows[:40], None)
    found = actstore.compare(plain, make("also", 2 * rows, None), measures=["cka"])
    assert found.similarities[0].value == pytest.approx(1, abs=1e-6)
    assert "no ids" in found.notes[0]
    with pytest.raises(InvalidInputError, match="fewer"):
        actstore.compare(plain, fewer)
    with pytest.raises(InvalidInputError, match="plain"):
        actstore.compare(make("named", rows), plain)


def test_stores_with_nothing_in_common_are_refused_with_examples(pair: Any, make: Make) -> None:
    strangers = make("strangers", pair[3].astype("f4"), [f"image{row}" for row in range(300)])
    with pytest.raises(InvalidInputError, match="'image0'"):
        actstore.compare(pair[0], strangers)
    few = make("few", pair[3][:300].astype("f4"), [f"row{row}" if row < 2 else f"image{row}" for row in range(300)])
    with pytest.raises(InvalidInputError, match="2 rows"):
        actstore.compare(pair[0], few)


@pytest.mark.numeric
def test_constant_columns_rows_of_zeros_and_copies_of_one_row(make: Make, random: np.random.Generator) -> None:
    one, other = random.standard_normal((80, 6)), random.standard_normal((80, 6))
    one[:, 2] = 7
    one[[3, 50]] = 0
    splits = make("one", one.astype("f4")), make("other", other.astype("f4"))
    found = actstore.compare(*splits, sample=100)
    for measure, expected in linear_reference(one, other).items():
        assert values_of(found)[measure] == pytest.approx(expected, abs=1e-5)
    kept = np.setdiff1d(np.arange(80), [3, 50])
    rest = reference(one[kept], other[kept])
    for measure in ("rsa-spearman", "rsa-pearson", "knn"):
        assert values_of(found)[measure] == pytest.approx(rest[measure], abs=1e-5)
    assert any(note.startswith("sampled rows with one value") and note.endswith(": 2") for note in found.notes)
    same = make("same", np.tile(np.arange(6, dtype="f4"), (80, 1)))
    nothing = actstore.compare(splits[1], same)
    assert np.isnan([values_of(nothing)[name] for name in ("cka", "procrustes")]).all()
    assert nothing.records()[0]["value"] is None
    assert any("cka" in note for note in nothing.notes)


def test_a_sample_is_drawn_by_its_seed_and_said(pair: Any) -> None:
    runs = [actstore.compare(*pair[:2], sample=60, resamples=5, seed=seed) for seed in (1, 1, 2)]
    assert runs[0].similarities == runs[1].similarities
    assert values_of(runs[0])["knn"] != values_of(runs[2])["knn"]
    assert values_of(runs[0])["cka"] == values_of(runs[2])["cka"]
    assert (runs[0].rows, runs[0].sampled) == (300, 60)
    assert "60" in str(runs[0])


def test_three_layers_make_a_symmetric_matrix_and_a_table(make: Make, random: np.random.Generator) -> None:
    rows = random.standard_normal((60, 5)).astype("f4")
    noise = random.standard_normal((60, 5)).astype("f4")
    found = actstore.compare(*(make(f"n{share}", rows + share * noise) for share in (0, 1, 5)), resamples=0)
    cka = found.matrix("cka")
    np.testing.assert_array_equal(cka, cka.T)
    assert cka[0, 1] > cka[0, 2]
    assert list(found.to_pandas().columns) == ["one", "other", "measure", "value", "low", "high"]
    assert len(found.to_pandas()) == 3 * len(MEASURES)
    with pytest.raises(InvalidInputError, match="measure"):
        found.matrix("cosine")


@pytest.mark.parametrize("settings", [
    {"measures": ["cca"]}, {"measures": []}, {"distance": "manhattan"}, {"sample": 2}, {"k": 0}, {"resamples": -1},
    {"names": ["a", "a"]}, {"names": ["a"]},
])  # fmt: skip
def test_settings_that_make_no_sense_are_refused(pair: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        actstore.compare(*pair[:2], **settings)


def test_one_alone_is_refused_and_paths_name_splits(make: Make, tmp_path: Path, random: np.random.Generator) -> None:
    rows = random.standard_normal((20, 4)).astype("f4")
    split = make("one", rows)
    with pytest.raises(InvalidInputError, match="two"):
        actstore.compare(split)
    actstore.from_arrays(tmp_path / "two.zarr", {"a": (rows, None), "b": (rows, None)})
    found = actstore.compare(tmp_path / "two.zarr/a", str(tmp_path / "two.zarr/b"), measures=["cka"])
    assert found.names == ("two.zarr/a", "two.zarr/b")
    with pytest.raises(MissingSplitError, match="a, b"):
        actstore.compare(tmp_path / "two.zarr", split)
    with pytest.raises(NotAStoreError, match="labels"):
        actstore.compare(tmp_path / "two.zarr/a/labels", split)


@pytest.mark.numeric
@pytest.mark.slow
def test_intervals_cover_the_value_of_many_rows(make: Make) -> None:
    """Of 30 draws of 150 rows, the 95% interval holds the value of 20,000 rows in at least 24: fewer have a
    probability of 0.3% if intervals are what they say, and CKA, which is biased at few rows, has few features here."""
    random = np.random.default_rng(3)
    mixing = random.standard_normal((3, 4)), random.standard_normal((3, 4))

    def draw(count: int) -> list[Values]:
        common = random.standard_normal((count, 3))
        return [(common @ part + random.standard_normal((count, 4))).astype("f4") for part in mixing]

    measures = ["cka", "procrustes", "rsa-spearman", "rsa-pearson"]
    whole = [make(f"whole{i}", part) for i, part in enumerate(draw(20_000))]
    truth = values_of(actstore.compare(*whole, measures=measures, resamples=0))
    held = dict.fromkeys(measures, 0)
    for trial in range(30):
        splits = [make(f"part{trial}-{i}", part) for i, part in enumerate(draw(150))]
        for each in actstore.compare(*splits, measures=measures, resamples=100).similarities:
            held[each.measure] += each.low <= truth[each.measure] <= each.high
    assert min(held.values()) >= 24, held


@given(st.lists(st.integers(0, 5), min_size=2, max_size=30), st.data())
def test_weighted_ranks_are_those_of_repeated_values(values: list[int], data: Any) -> None:
    weights = np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(values), max_size=len(values))), float)
    codes = similarity.rank_codes(np.array(values, float))
    repeated = np.repeat(values, weights.astype(int))
    ranks = np.repeat(similarity.weighted_ranks(codes, weights), weights.astype(int))
    np.testing.assert_allclose(ranks + 0.5, rankdata(repeated))


@pytest.mark.numeric
@pytest.mark.parametrize("kind", ["correlation", "cosine", "euclidean"])
def test_distances_are_scipys(kind: Any, random: np.random.Generator) -> None:
    from scipy.spatial.distance import pdist

    rows = random.standard_normal((20, 7))
    np.testing.assert_allclose(similarity.distances(rows, kind), pdist(rows, kind), atol=1e-12)
