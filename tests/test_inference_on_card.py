"""Extraction, evaluation and benchmarks on an accelerator give what the CPU gives; batches are pinned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import actstore
import baselines
from actstore.backbones.loading import Backbone, load_backbone
from actstore.compute.device import name_device
from actstore.errors import InvalidInputError
from actstore.extraction import build as cluster_build
from actstore.extraction import forward
from actstore.extraction.build import BuildOptions, build
from actstore.extraction.forward import decode_batches
from actstore.images.opening import open_images
from actstore.search import ExactSearch
from actstore.search.by_class import ClassRows, best_by_class
from baselines.inference import comparison
from baselines.inference.adaptation import learning_step
from baselines.inference.comparison import BenchRows
from baselines.inference.latency import backbone_part, gpu_part, head_part, product_part, timed
from cli.actstore import main as store_commands
from cli.ppa import main as ppa
from predictor.training.backbones import layers
from predictor.training.backbones.batches import IGNORED, Batch, StreamedImages
from predictor.training.backbones.config import choose_preset
from predictor.training.backbones.images import LabelledImages, evaluation_plan
from predictor.training.processes import Processes, joined_processes
from tests import simulated_faiss

GLYPHS = "glyphs:4x5x2"


@pytest.fixture
def backbone() -> Backbone:
    return load_backbone("small", random_weights=True, seed=1)  # a fresh one: builds move it


@pytest.fixture(autouse=True)
def _on_one_thread(one_thread: None) -> None:
    """For all tests of this file."""


def built(path: Path, backbone: Backbone, device: str, **options: Any) -> actstore.ActivationStore:
    return build(open_images(GLYPHS), GLYPHS, path, backbone, BuildOptions(device, 4, **{"workers": 0, **options}))


@pytest.mark.parametrize("device", ["sim", "sim:1"])
@pytest.mark.parametrize("views", [1, 10])
def test_a_build_has_the_rows_of_the_cpu(
    card: Any, backbone: Backbone, tmp_path: Path, device: str, views: int
) -> None:
    expected = built(tmp_path / "cpu.zarr", backbone, "cpu", views=views)
    card.counts.clear()
    store = built(tmp_path / "card.zarr", backbone, device, views=views)
    assert card.counts["pinned"] == 5 + 2  # a batch each: 20 and 8 images in fours
    assert card.counts["computed"]
    for split in ("train", "val"):
        np.testing.assert_array_equal(store[split][:], expected[split][:])


def test_a_build_in_16_bits(card: Any, backbone: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card.half = True
    store = built(tmp_path / "card.zarr", backbone, "sim")
    assert card.counts["products in torch.float16"]
    monkeypatch.setattr(forward, "has_half", lambda device: True)
    np.testing.assert_array_equal(store["train"][:], built(tmp_path / "cpu.zarr", backbone, "cpu")["train"][:])


def test_loaders_pin_every_batch(card: Any, backbone: Backbone) -> None:
    """Also those that decode ahead."""
    items = open_images(GLYPHS)["train"].items
    batches = list(decode_batches(items, backbone.transform, 6, threads=1, pin=True))
    assert card.counts["pinned"] == len(batches) == 4
    card.counts.clear()
    images = LabelledImages(items, np.arange(len(items)))
    streamed = StreamedImages(images, backbone.transform, choose_preset("quick"), 0, pin=True)
    found = list(streamed.batches(evaluation_plan(len(items), 6)))
    assert card.counts["pinned"] == 2 * len(found) == 8  # pixels and targets
    assert sum(len(batch.targets) for batch in found) == len(items)


def test_unreadable_images_are_left_out_on_the_host() -> None:
    batch = Batch(torch.arange(12).view(3, 2, 2, 1), torch.tensor([4, IGNORED, 5]), ["bad"])
    assert batch.readable().targets.tolist() == [4, 5]
    assert batch.readable().pixels.flatten().tolist() == [0, 1, 2, 3, 8, 9, 10, 11]
    whole = replace(batch, targets=torch.tensor([4, 3, 5]))
    assert whole.readable() is whole


def test_workers_of_a_cluster_find_their_card(card: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_build, "worker_name", lambda: "node-3")
    assert cluster_build._device_of_worker("auto") == torch.device("sim:1")
    assert cluster_build._device_of_worker("sim:0") == torch.device("sim:0")
    assert cluster_build._device_of_worker("cpu") == torch.device("cpu")
    assert BuildOptions(workers=None).decoders(torch.device("sim")) >= 1


@pytest.mark.parametrize(("name", "devices"), [("cuda:1", [1]), ("cpu", None)])
def test_several_processes_average_on_their_own_device(
    name: str, devices: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a peer: what torch's wrapper is given. Its batch normalisation has kernels for accelerators alone."""

    class Wrapper:
        def __init__(self, module: Any, device_ids: Any = None, broadcast_buffers: bool = True) -> None:
            self.module, self.device_ids, self.broadcast_buffers = module, device_ids, broadcast_buffers

    monkeypatch.setattr(layers, "DistributedDataParallel", Wrapper)
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.BatchNorm2d(4))
    wrapped: Any = layers.wrap(network, Processes(1, 2), torch.device(name))
    assert (wrapped.device_ids, wrapped.broadcast_buffers) == (devices, False)
    expected = torch.nn.SyncBatchNorm if devices else layers.SynchronisedBatchNorm2d
    assert isinstance(wrapped.module[1], expected)


def test_the_benchmark_searches_with_faiss_on_its_own_card(monkeypatch: pytest.MonkeyPatch) -> None:
    held = simulated_faiss.install(monkeypatch).held
    rows, queries = torch.rand(50, 16).half(), torch.rand(3, 16)
    search = gpu_part(rows, torch.device("cuda:1"))
    assert "faiss on the GPU" in search.name
    np.testing.assert_array_equal(search.run(queries)[1], ExactSearch(rows).search(queries, 5)[1])
    assert held == [(1, 50)]


def bench_rows() -> BenchRows:
    random = torch.Generator().manual_seed(1)
    return BenchRows(torch.randn(900, 16, generator=random).half(), torch.randn(4, 16, generator=random), "rows")


def no_bar(what: str, *_: Any) -> Any:
    raise AssertionError(f"{what} is a part for the CPU")


@pytest.mark.parametrize(("half", "kind"), [(False, "float32"), (True, "float16")])
def test_all_products_on_the_card_find_the_nearest(card: Any, half: bool, kind: str) -> None:
    card.half, data = half, bench_rows()
    part = product_part(data.rows, torch.device("sim"))
    assert f"torch.matmul on sim, {kind} rows" in part.name
    assert part.bytes == 900 * 16 * (2 if half else 4)
    rows, queries = (torch.nn.functional.normalize(values.double()) for values in (data.rows, data.queries))
    cosines = queries @ rows.T
    found = cosines.gather(1, part.run(data.queries))
    torch.testing.assert_close(found, cosines.topk(5).values, rtol=0, atol=2e-3 if half else 1e-6)


def test_the_comparison_on_a_card(card: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "bar", no_bar)
    data = bench_rows()
    options: dict[str, Any] = {"budget": 0.001, "device": torch.device("sim"), "progress": False}
    compared = comparison.compare(data, (2,), 9, None, "pq", **options)
    names = [latency.part.name for latency in compared.latencies]
    assert len(names) == 2
    assert "parametric classifier" in names[0]
    assert "torch.matmul on sim" in names[1]
    assert not compared.left_out


def test_inference_is_timed_on_a_card(card: Any) -> None:
    given: dict[str, Any] = {"backbone": "none", "approximate": "none", "fp32": False, "seconds": 0.001}
    timed = baselines.time_inference(synthetic="300x16", categories=9, device="sim", progress=False, **given)
    assert "simulated card" in repr(timed) or "simulated card" in timed.to_markdown()


def test_the_comparison_on_cuda_has_faiss_beside_all_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tensor can be there: the part of faiss alone is made."""
    held, data = simulated_faiss.install(monkeypatch).held, bench_rows()
    monkeypatch.setattr(comparison, "bar", no_bar)
    ((products, faiss),) = comparison._groups(data, "pq", True, torch.device("cuda:1"), False)
    assert "torch.matmul" in products[0]
    (part,) = faiss[2]()
    np.testing.assert_array_equal(part.run(data.queries)[1], ExactSearch(data.rows).search(data.queries, 5)[1])
    assert held == [(1, 900)]


@pytest.mark.parametrize("half", [False, True])
def test_benchmarks_wait_for_the_card(card: Any, backbone: Backbone, half: bool) -> None:
    card.half, device = half, torch.device("sim")
    assert name_device(device) == "simulated card 0"
    queries, images = torch.rand(3, 16), torch.rand(2, 3, 32, 32)
    part = head_part(5, 16, device)
    assert part.run(queries).shape == (3, 5)
    assert timed(lambda: part.run(queries), device) > 0
    assert card.counts["synchronise"] == 1
    assert backbone_part(backbone.module, "small", device).run(images).shape[0] == 2
    learning_step(torch.nn.Linear(16, 5, device=device), queries.to(device), False)()
    learning_step(backbone.module.to(device), images.to(device), half)()


@pytest.mark.parametrize("device", ["cuda:97", "tpu", "xpu"])
@pytest.mark.parametrize(
    ("program", "command"),
    [
        (ppa, ("pretrain", GLYPHS, "--out", "run")),
        (ppa, ("bench-inference", "--synthetic", "2000x16")),
        (ppa, ("baseline", "maml", "--images", GLYPHS, "--out", "run")),
        (store_commands, ("build", GLYPHS, "x.zarr", "--backbone", "small", "--random-weights")),
    ],
)
def test_a_device_that_does_not_exist_is_one_line(
    program: Any, command: tuple[str, ...], device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device == "xpu" and torch.xpu.is_available():
        pytest.skip("there is one")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(program, [*command, "--device", device])
    assert done.exit_code in (1, 2)
    assert device in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.output


def test_queries_on_a_card_meet_rows_of_a_store(card: Any, make_store: Any) -> None:
    train = make_store(rows=120, dim=16)["train"]
    rows = ClassRows.of(train.class_index, np.arange(5))
    queries = torch.rand(4, 16, generator=torch.Generator().manual_seed(1))
    expected = best_by_class(train, rows, queries)
    assert torch.equal(best_by_class(train, rows, queries.to("sim")).cpu(), expected)
    held = train.to_torch(dtype=torch.float32, device="sim")
    assert torch.equal(best_by_class(held, rows, queries.to("sim")).cpu(), expected)


def test_processes_join_by_what_torch_has_for_their_card(card: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a peer: the calls of torch are noted and not made."""
    calls: list[Any] = []
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setitem(torch.distributed.Backend.default_device_backend_map, "sim", "simccl")
    monkeypatch.setattr(torch.distributed, "init_process_group", calls.append)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: calls.append("left"))
    with joined_processes(torch.device("sim")) as (processes, device):
        assert (processes.rank, processes.count, device) == (1, 2, torch.device("sim:1"))
    assert calls == ["simccl", "left"]
    card.set_device("sim:0")
    assert torch.distributed.get_default_backend_for_device("cuda") == "nccl"
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(InvalidInputError, match="3 processes"), joined_processes(torch.device("sim")):
        pass
