"""The search on a GPU: what of it runs everywhere, that faiss has all we call, and itself where there is one."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import faiss
import numpy as np
import pytest
import torch
from torch import Tensor

from actstore.errors import InvalidInputError
from actstore.search import ExactSearch, RowTable, flat
from actstore.search.flat import GpuSearch, certified, plan_card, require_gpu
from tests import simulated_faiss

pytestmark = pytest.mark.numeric

HAS_GPU_CODE = hasattr(faiss, "StandardGpuResources")
HAS_GPU = HAS_GPU_CODE and faiss.get_num_gpus() > 0


def half_search(values: Any) -> Callable[[Tensor, int], Any]:
    """What faiss does on a GPU, on the CPU: unit rows and queries in float16."""
    rows = torch.nn.functional.normalize(torch.from_numpy(values).float()).half().float()

    def nearest(directions: Tensor, count: int) -> Any:
        found = (directions.half().float() @ rows.T).topk(count)
        return found.values.numpy(), found.indices.numpy()

    return nearest


def test_scores_in_float16_still_give_the_exact_answer(random: np.random.Generator) -> None:
    values = random.random((4000, 32), dtype=np.float32).astype(np.float16)
    queries = torch.from_numpy(random.random((25, 32), dtype=np.float32))
    asked: list[int] = []

    def nearest(directions: Tensor, count: int) -> Any:
        asked.append(count)
        return half_search(values)(directions, count)

    scores, rows = certified(RowTable(values), queries, 5, nearest)
    expected_scores, expected = ExactSearch(values).search(queries, 5)
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_array_equal(scores, expected_scores)
    assert asked[0] == 42
    assert all(b == 2 * a for a, b in pairwise(asked))


def test_few_rows_are_all_asked_for(random: np.random.Generator) -> None:
    values = random.random((20, 8), dtype=np.float32)
    queries = torch.from_numpy(values[:2])
    np.testing.assert_array_equal(
        certified(RowTable(values), queries, 20, half_search(values))[1], ExactSearch(values).search(queries, 20)[1]
    )


def test_thousands_of_near_ties_are_told(random: np.random.Generator) -> None:
    values = np.repeat(random.random((2, 8), dtype=np.float32), 3000, axis=0)
    with pytest.warns(UserWarning, match="1 queries have more than 2,048 rows too close"):
        rows = certified(RowTable(values), torch.from_numpy(values[-1:]), 3, half_search(values))[1]
    np.testing.assert_array_equal(rows, [[3000, 3001, 3002]])


@pytest.mark.skipif(HAS_GPU, reason="there is a GPU")
def test_a_gpu_that_is_absent_is_one_clear_line(make_store: Callable[..., Any]) -> None:
    with pytest.raises(InvalidInputError, match="a GPU was asked for, but"):
        require_gpu()
    with pytest.raises(InvalidInputError, match="a GPU was asked for, but"):
        GpuSearch(np.ones((5, 2), np.float32))
    store = make_store(rows=60)
    with pytest.raises(InvalidInputError, match="a GPU was asked for, but"):
        store["train"].search(store.values[:1], 1, device="cuda")
    assert store["train"].search(store.values[:1], 1, device="auto")[1][0, 0] == 0


def test_a_faiss_without_gpu_code_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(faiss, "StandardGpuResources", raising=False)
    with pytest.raises(InvalidInputError, match="install faiss-gpu"):
        require_gpu()


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> simulated_faiss.Card:
    monkeypatch.setattr(flat, "BLOCK_BYTES", 4096 * 64 * 2)  # 2,048 rows on their way into an index, 4,096 of a search
    monkeypatch.setattr(flat, "_PIECE", 500)
    monkeypatch.setattr(flat, "LEAST_BLOCK", 256)
    return simulated_faiss.install(monkeypatch)


@pytest.mark.parametrize(
    ("resident", "blocks"), [(None, [2048, 2048, 904]), (True, [2048, 2048, 904]), (False, [4096, 904])]
)
def test_resident_and_blockwise_on_either_card(
    stand_in: simulated_faiss.Card, random: np.random.Generator, resident: bool | None, blocks: list[int]
) -> None:
    values = random.random((5000, 64), dtype=np.float32).astype(np.float16)
    values[7] = 0
    queries = random.random((9, 64), dtype=np.float32)
    engine = GpuSearch(values, resident=resident, device=1)
    expected_scores, expected = ExactSearch(values).search(queries, 7)
    scores, rows = engine.search(queries, 7)
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_array_equal(scores, expected_scores)
    assert (stand_in.sent if resident is False else stand_in.held)[: len(blocks)] == [(1, count) for count in blocks]
    some = np.arange(0, 5000, 3)
    np.testing.assert_array_equal(engine.search(queries, 7, some)[1], ExactSearch(values).search(queries, 7, some)[1])


def test_what_does_not_fit_a_card_is_searched_in_blocks_or_refused_by_name() -> None:
    plan = partial(plan_card, 1_200_000, 2048, card="cuda:1")
    assert (plan(None, None).resident, plan(None, None).bytes_per_row) == (True, 4096)
    whole = 1_200_000 * 4096 + flat.BLOCK_BYTES + flat.WORKING_BYTES
    assert plan(whole, None).resident
    blocks = plan(whole - 1, None)
    assert (blocks.resident, blocks.block_rows) == (False, flat.BLOCK_BYTES // 4096)
    assert plan(flat.WORKING_BYTES + 10_000 * 4096, None).block_rows == 10_000
    with pytest.raises(InvalidInputError, match=r"1,200,000 rows of 2048 .* cuda:1 \(4,096 bytes a row\)"):
        plan(whole - 1, True)
    with pytest.raises(InvalidInputError, match=r"cuda:1 has 0\.01 GB free, too little .* use device cpu"):
        plan(10_000_000, None)


def test_the_free_memory_is_that_of_the_card_in_use(
    stand_in: simulated_faiss.Card, monkeypatch: pytest.MonkeyPatch, random: np.random.Generator
) -> None:
    values, free = random.random((3000, 64), dtype=np.float32), {0: 1 << 40, 1: flat.WORKING_BYTES + 1000 * 128}
    monkeypatch.setattr(flat, "count_devices", lambda kind: 2)
    monkeypatch.setattr(flat, "free_memory", lambda device: free[device.index])
    assert GpuSearch(values).plan.resident
    small = GpuSearch(values, device=1)
    assert (small.plan.resident, small.plan.block_rows) == (False, 1000)
    np.testing.assert_array_equal(small.search(values[:3], 4)[1], ExactSearch(values).search(values[:3], 4)[1])
    with pytest.raises(InvalidInputError, match="cuda:1"):
        GpuSearch(values, resident=True, device=1)


def test_a_card_by_name_reaches_faiss(stand_in: simulated_faiss.Card, make_store: Callable[..., Any]) -> None:
    store = make_store(rows=60)
    train, asked = store["train"], store.values[:2]
    for device, card in (("cuda", 0), ("cuda:1", 1), ("auto", 0)):
        np.testing.assert_array_equal(train.search(asked, 3, device=device)[1], train.search(asked, 3)[1])
        assert stand_in.held.pop() == (card, 60)
    train.search(asked, 3, device="auto", metric="inner")  # on the CPU
    assert not stand_in.held
    for options, message in (
        ({"device": "cuda:2"}, "only 2 on this machine, not cuda:2"),
        ({"device": "cuda:x"}, "got 'cuda:x'"),
        ({"device": "mps"}, "got 'mps'"),
        ({"device": "cuda", "metric": "inner"}, "on a GPU only methods exact and faiss"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            train.search(asked, 3, **options)


KNN = """
import faiss, numpy as np
rows = np.ones((5, 64), np.float16)
faiss.knn_gpu(faiss.StandardGpuResources(), rows[:2], rows, 2, metric=faiss.METRIC_INNER_PRODUCT, device={device})
"""


@pytest.mark.skipif(not HAS_GPU_CODE, reason="faiss-cpu is installed: faiss-gpu exists for Linux on x86-64 only")
@pytest.mark.skipif(HAS_GPU, reason="there is a GPU")
def test_every_call_of_faiss_fails_for_want_of_a_device_alone() -> None:
    assert set(re.findall(r"faiss\.(\w+)", inspect.getsource(flat))) == {
        "METRIC_INNER_PRODUCT", "GpuIndexFlatConfig", "GpuIndexFlatIP", "StandardGpuResources", "get_num_gpus",
        "knn", "knn_gpu", "omp_set_num_threads",
    }  # fmt: skip
    assert faiss.get_num_gpus() == 0
    resources = faiss.StandardGpuResources()
    resources.setTempMemory(flat.WORKING_BYTES)
    config = faiss.GpuIndexFlatConfig()
    config.useFloat16, config.device = True, 1
    with pytest.raises(RuntimeError, match="device"):
        faiss.GpuIndexFlatIP(resources, 64, config)
    with pytest.raises(TypeError):  # what a wrong argument would raise
        faiss.GpuIndexFlatIP(resources, 64, "cuda:1")
    # no index exists without a device: add and search are those of every index, tried on the CPU's
    index, rows = faiss.IndexFlatIP(64), np.ones((5, 64), np.float32)
    for name in ("add", "search"):
        assert getattr(faiss.GpuIndexFlatIP, name).__qualname__ == getattr(faiss.IndexFlatIP, name).__qualname__
    index.add(rows)
    assert index.search(rows[:2], 3)[1].shape == (2, 3)
    # knn_gpu ends the process
    for device, message in (("1", "CUDA error"), ("'cuda:1'", "TypeError")):
        done = subprocess.run(
            [sys.executable, "-c", KNN.format(device=device)], capture_output=True, text=True, check=False
        )
        assert done.returncode
        assert message in done.stderr


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="no GPU")
@pytest.mark.parametrize("resident", [True, False])
def test_a_gpu_gives_the_answer_of_the_cpu(
    random: np.random.Generator, resident: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flat, "BLOCK_BYTES", 4096 * 64 * 2)
    values = random.random((10_000, 64), dtype=np.float32).astype(np.float16)
    queries = random.random((33, 64), dtype=np.float32)
    scores, rows = GpuSearch(values, resident=resident).search(queries, 7)
    expected_scores, expected = ExactSearch(values).search(queries, 7)
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_array_equal(scores, expected_scores)
