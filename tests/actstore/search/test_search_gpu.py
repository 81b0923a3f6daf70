"""The search on a GPU: what of it runs everywhere, that faiss has all we call, and itself where there is one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import faiss
import numpy as np
import pytest
import torch
from torch import Tensor

from actstore.errors import InvalidInputError
from actstore.search import ExactSearch, RowTable, gpu
from actstore.search.gpu import GpuSearch, certified, require_gpu

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


@pytest.mark.skipif(not HAS_GPU_CODE, reason="faiss-cpu is installed: faiss-gpu exists for Linux on x86-64 only")
def test_faiss_has_every_class_function_and_argument_in_use() -> None:
    source = inspect.getsource(gpu)
    used = {"StandardGpuResources", "GpuIndexFlatConfig", "GpuIndexFlatIP", "knn_gpu", "get_num_gpus"}
    for name in (*used, "METRIC_INNER_PRODUCT"):
        assert f"faiss.{name}" in source or f'"{name}"' in source  # the list is that of the code
        assert hasattr(faiss, name)
    config = faiss.GpuIndexFlatConfig()
    config.useFloat16, config.device = True, 0
    assert config.useFloat16
    assert config.device == 0
    arguments = inspect.signature(faiss.knn_gpu).parameters
    assert list(arguments)[:4] == ["res", "xq", "xb", "k"]
    assert {"metric", "device"} <= set(arguments)
    assert {"add", "search"} <= set(dir(faiss.GpuIndexFlatIP))


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="no GPU")
@pytest.mark.parametrize("resident", [True, False])
def test_a_gpu_gives_the_answer_of_the_cpu(
    random: np.random.Generator, resident: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "_BLOCK", 4096)
    values = random.random((10_000, 64), dtype=np.float32).astype(np.float16)
    queries = random.random((33, 64), dtype=np.float32)
    scores, rows = GpuSearch(values, resident=resident).search(queries, 7)
    expected_scores, expected = ExactSearch(values).search(queries, 7)
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_array_equal(scores, expected_scores)
