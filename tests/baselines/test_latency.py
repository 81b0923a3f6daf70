from __future__ import annotations

import time

import pytest
import torch

from actstore.search import ExactSearch
from actstore.search.flat import FlatSearch
from baselines.inference.adaptation import classifier_step, seconds_per_epoch
from baselines.inference.latency import (
    LEAST_RUNS,
    K,
    Latency,
    Part,
    approximate_part,
    bounded_part,
    exact_part,
    flat_parts,
    head_part,
    measure,
)
from baselines.inference.latency_table import paper_figures, to_markdown, to_results, totals

pytestmark = pytest.mark.numeric

CPU = torch.device("cpu")
ROWS = torch.rand(3000, 32, generator=torch.Generator().manual_seed(0)).half()
QUERIES = torch.rand(40, 32, generator=torch.Generator().manual_seed(1))


def test_every_search_finds_the_same_rows() -> None:
    expected = ExactSearch(ROWS).search(QUERIES, K)[1]
    for part in (exact_part(ROWS), bounded_part(ROWS), *flat_parts(ROWS)):
        assert (part.run(QUERIES)[1] == expected).all(), part.name
    found = approximate_part(ROWS, QUERIES)
    assert found.recall is not None
    assert found.recall >= 0.9
    assert (found.run(QUERIES)[1][:, 0] == expected[:, 0]).mean() == pytest.approx(found.recall)


def test_the_peers_read_the_same_memory_and_agree() -> None:
    flat = FlatSearch(ROWS)
    assert flat.nbytes == 3000 * 32 * 4
    assert (flat.search(QUERIES, 3)[1] == flat.multiply(QUERIES, 3)[1]).all()


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
    assert paper_figures() == {"nn": 37.867, "parametric": 6.83, "memory": 45e9}
    text = to_markdown(both)
    assert "37.867" in text
    assert "| near | 32 | 30.000 | 30.000 | 1.00 GB |  | 38.00 | 4.47 |" in text
    assert [one["kind"] for one in results.values()] == ["backbone", "head", "search"] * 2 + ["head", "search"] * 2


def test_the_classifier_returns_the_five_best() -> None:
    part = head_part(9, 32, CPU)
    assert part.run(QUERIES).shape == (40, 5)
    assert part.bytes == 9 * 33 * 4


def test_an_epoch_is_the_median_step_times_the_steps() -> None:
    seconds, steps = seconds_per_epoch(lambda: time.sleep(0.005), 10, 1000, 0.02, CPU)
    assert seconds >= 0.5
    assert steps >= 1
    classifier_step(QUERIES, 4, CPU)()
