from __future__ import annotations

import gc
import time
import weakref
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import actstore
import baselines
from actstore.errors import InvalidInputError
from actstore.search import ExactSearch
from baselines.inference import comparison, latency
from baselines.inference.adaptation import learning_step, seconds_per_epoch
from baselines.inference.comparison import (
    BenchRows,
    available_memory,
    compare,
    fitting_size,
    generated_rows,
    network_name,
    own_memory,
    watch_memory,
)
from baselines.inference.latency import (
    LEAST_RUNS,
    InferenceResults,
    K,
    Latency,
    Part,
    Peak,
    approximate_part,
    bounded_part,
    exact_part,
    flat_parts,
    head_part,
    measure,
    paper_figures,
    product_part,
    to_results,
    totals,
)

pytestmark = pytest.mark.numeric

CPU = torch.device("cpu")
ROWS = torch.rand(3000, 32, generator=torch.Generator().manual_seed(0)).half()
QUERIES = torch.rand(40, 32, generator=torch.Generator().manual_seed(1))


def test_every_search_finds_the_same_rows() -> None:
    expected = ExactSearch(ROWS).search(QUERIES, K)[1]
    for part in (exact_part(ROWS), bounded_part(ROWS), *flat_parts(ROWS)):
        assert (part.run(QUERIES)[1] == expected).all(), part.name
    assert (product_part(ROWS, CPU).run(QUERIES).numpy() == expected).all()
    found = approximate_part(ROWS, QUERIES)
    assert found.recall is not None
    assert found.recall >= 0.9
    assert (found.run(QUERIES)[1][:, 0] == expected[:, 0]).mean() == pytest.approx(found.recall)


def test_the_peers_read_the_same_memory_and_agree() -> None:
    parts = flat_parts(ROWS)
    assert [part.bytes for part in parts] == [3000 * 32 * 4] * 3
    found = [part.run(QUERIES)[1] for part in parts]
    assert (found[0] == found[1]).all()
    assert (found[0] == found[2]).all()


def test_parts_take_turns_and_get_the_batch_they_are_timed_for() -> None:
    seen: list[tuple[str, int]] = []

    def part(name: str) -> Part:
        return Part(name, "search", lambda batch: seen.append((name, len(batch))), 0)

    measured = measure([part("a"), part("b")], 7, lambda _: QUERIES, 0.001, CPU)
    assert [name for name, _ in seen[:4]] == ["a", "b", "a", "b"]
    assert {size for _, size in seen} == {7}
    assert all(one.batch == 7 and one.runs >= LEAST_RUNS for one in measured)


def test_times_are_per_image() -> None:
    slow = Part("slow", "search", lambda _: time.sleep(0.02), 0)
    (measured,) = measure([slow], 10, lambda _: QUERIES, 0.01, CPU)
    assert measured.median >= 2.0
    assert measured.p95 >= measured.median


def latencies(batch: int) -> list[Latency]:
    parts = (("net", "backbone", 8.0), ("parametric", "head", 0.5), ("near", "search", 30.0))
    return [Latency(Part(name, kind, print, 10**9), batch, value, value, 3) for name, kind, value in parts]


def test_totals_add_the_backbone_and_ratios_compare_with_the_parametric_classifier() -> None:
    both = latencies(1) + latencies(32)
    assert [total for _, total in totals(both, 32)] == [8.5, 38.0]
    results = {one["name"]: one for one in to_results(both)}
    whole = results["image to category, near, batch 32"]
    assert (whole["value"], whole["peer_value"]) == (38.0, 8.5)
    assert whole["ratio"] == pytest.approx(38 / 8.5)
    assert results["image to category, parametric, batch 32"]["peer_value"] == 6.83
    assert paper_figures() == {"nn": 37.867, "parametric": 6.83, "memory": 45e9, "without_features": 2.3}
    peak = Peak(3 * 10**9, 2 * 10**9)
    results_ = InferenceResults(both, (1_000_000, 500), ["faiss: it takes 9 GB"], peak, "here")
    text = results_.to_markdown()
    assert "37.867" in text
    assert "| near | 32 | 30.000 | 30.000 |  | 1.00 |  | 60.0 | 38.00 | 4.47 |" in text
    for said in ("2.0 GB, in fp16 1.0 GB (paper: 45 GB)", "2.2 hours, an estimate", "Left out: faiss", "3.00 GB"):
        assert said in text
    assert results_.to_csv().splitlines()[3].startswith("near,1,30.000,30.000,,1.00,,60.0,38.00,4.47")
    assert [one["kind"] for one in results.values()] == ["backbone", "head", "search"] * 2 + ["head", "search"] * 2


def test_the_classifier_returns_the_five_best() -> None:
    part = head_part(9, 32, CPU)
    assert part.run(QUERIES).shape == (40, 5)
    assert part.bytes == 9 * 33 * 4


def test_an_epoch_is_the_median_step_times_the_steps() -> None:
    seconds, steps = seconds_per_epoch(lambda: time.sleep(0.005), 10, 1000, 0.02, CPU)
    assert seconds >= 0.5
    assert steps >= 1
    learning_step(torch.nn.Linear(32, 4), QUERIES, False)()


def test_what_does_not_fit_is_left_out_and_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The fp32 copy alone is too much: there is room for the reserve and a little."""
    needed = 4 * ROWS.numel()
    monkeypatch.setattr(comparison, "available_memory", lambda: comparison.RESERVE + needed - 1)
    data = BenchRows(ROWS, QUERIES, "rows")
    compared = compare(data, (2,), 9, None, "none", budget=0.001)
    assert len(compared.left_out) == 1
    assert "fp32 copy" in compared.left_out[0]
    assert compared.left_out[0] in capsys.readouterr().err
    names = [latency.part.name for latency in compared.latencies]
    assert [name.split(",")[0] for name in names] == ["parametric classifier", "exact NN", "exact NN"]
    assert all(latency.ranking is not None for latency in compared.latencies[1:])


def test_groups_are_released_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the figures nor anything else keeps the engines of the first group while the copy is made."""
    held: list[weakref.ref[Any]] = []

    def exact(rows: Any) -> Part:
        part = exact_part(rows)
        held.append(weakref.ref(part))
        return part

    def flat(rows: Any) -> list[Part]:
        gc.collect()
        assert held[0]() is None
        return flat_parts(rows)

    monkeypatch.setattr(latency, "exact_part", exact)
    monkeypatch.setattr(latency, "flat_parts", flat)
    data = BenchRows(ROWS, QUERIES, "rows")
    compared = compare(data, (2, 3), 9, None, "none", budget=0.001, progress=False)
    assert [latency.batch for latency in compared.latencies] == [2] * 6 + [3] * 6
    assert not compared.left_out


def test_generated_rows_fit_or_are_refused() -> None:
    assert fitting_size(10**15) == (1_200_000, 2048)
    count, dim = fitting_size(8 << 30)
    assert 6 * count * dim <= 6 << 30 < 6 * (count + 1) * dim  # fp16 rows and their fp32 copy, beside the reserve
    with pytest.raises(InvalidInputError, match="fewer rows"):
        generated_rows(available_memory(), 2048, False)
    data = generated_rows(100, 16, False)
    assert data.shape == (100, 16)
    assert data.rows.dtype == torch.float16


def test_a_peak_counts_what_was_there_for_a_while() -> None:
    size = 120_000_000
    with (
        watch_memory() as peak,
        mmap(-1, size, MAP_PRIVATE | MAP_ANONYMOUS) as block,
    ):  # an allocator may have it already
        before = own_memory()
        block.write(b"x" * size)
        after = own_memory()
        time.sleep(0.5)
    assert after >= before + 0.9 * size  # the kernel counts some pages late
    assert peak.own >= after
    assert peak.total >= peak.own


def test_without_a_network_the_papers_figures_which_include_one_are_left_out() -> None:
    alone = [latency for latency in latencies(32) if latency.part.kind != "backbone"]
    found = {one["name"]: one for one in to_results(alone)}
    assert list(found) == ["parametric, batch 32", "near, batch 32"]
    assert (found["near, batch 32"]["peer"], found["near, batch 32"]["ratio"]) == ("parametric", 60)
    results = InferenceResults(alone, (2000, 64), [], Peak(), "here")
    text = results.to_text()
    assert "paper, NN" not in text
    assert "backbone" not in text
    assert "256.0 KB" in text
    assert results.to_pandas()["batch"].tolist() == [32, 32]
    assert results.to_csv().splitlines()[1].endswith(",1.0")


def test_the_threads_that_torch_has_are_kept_and_rows_are_named_as_text() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with pytest.raises(InvalidInputError, match=r"ROWSxDIM.* got \(2000, 64\)"):
            baselines.time_inference(synthetic=(2000, 64))  # type: ignore[arg-type]
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_the_network_of_a_store_is_timed_where_it_is_one_of_ours(tmp_path: Path) -> None:
    rows = np.ones((50, 8), np.float16), np.zeros(50, np.int64)
    for number, (named, timed) in enumerate((("small", "small"), ("module:run", "resnet50"), (None, "resnet50"))):
        provenance = {} if named is None else {"backbone": named}
        store = actstore.from_arrays(tmp_path / f"{number}.zarr", {"train": rows}, ["a"], provenance=provenance)
        assert network_name(store["train"]) == timed
    store = actstore.open(tmp_path / "0.zarr")
    results = baselines.time_inference(
        store, batches=(1,), categories=3, approximate="none", fp32=False, seconds=0.001, progress=False
    )
    assert results[0]["name"] == "backbone small, batch 1"
