"""Several processes that train one phi equal one process."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy

import actstore
from actstore.streams.class_batches import ClassBatches
from predictor.phi.network import Phi, PhiSpec
from predictor.protocol.category_split import CategorySplit
from predictor.training import Tensors
from predictor.training.loop import read_model, read_training
from predictor.training.phi import TrainOptions, choose_config, run_phi_training
from tests.predictor.training.precise import PrecisePhiTraining

pytestmark = pytest.mark.numeric

ROOT = Path(__file__).parents[3]
CONFIG = choose_config("code", "phi2", epochs=2, batches=7, learning_rate=0.05, query_norm=True, seed=3)

# Seven categories for two processes: parts of three and four. Every check runs in one pair of processes, as starting
# a pair takes seconds.
PROGRAM = """
import os, shutil, signal, sys
from pathlib import Path
import torch
from safetensors.torch import save_file
import actstore
import predictor.training.phi
from predictor.training import phi as phi_training
from predictor.protocol.category_split import CategorySplit
from predictor.training.processes import joined_processes
from predictor.training import RunOptions
from actstore.streams.class_batches import ClassBatches
from predictor.training.phi import TrainConfig
from predictor.phi.network import Phi, PhiSpec
from predictor.training.phi import TrainOptions, run_phi_training
from tests.predictor.training.precise import PrecisePhiTraining

torch.set_num_threads(1)
predictor.training.phi.PhiTraining = PrecisePhiTraining
store, folder = actstore.open(sys.argv[1]), Path(sys.argv[2])
categories, config = CategorySplit.from_json({categories!r}), {config!r}


def gradients(processes, kind):
    "Of a phi some way from its start, in float64."
    phi, random = Phi(PhiSpec(kind, 16, True, True, True)).double(), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in phi.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=random, dtype=torch.float64))
    stream = ClassBatches(store["train"], classes=categories.base, p_mean=0.5, rank=processes.rank,
                          world_size=processes.count)
    batch = stream.batch(2)
    assert len(stream._means) == len(batch.queries) == (3 if processes.rank == 0 else 4)
    parameters = processes.gather(phi(batch.statistics.double()), 7)
    loss = phi_training.category_loss(phi.scale_queries(batch.queries.double()), parameters, batch.targets)
    loss.backward()
    found = {{name: processes.sum(one.grad) for name, one in phi.named_parameters()}}
    found["loss"] = processes.sum(loss.detach())
    save_file(found, folder / f"{{kind}}-{{phi_training.LOGIT_BYTES}}-{{processes.rank}}")


def train(name, stop=0, number=0):
    "With a signal to the second process after this many steps."
    def report(done, total, figures):
        if done == stop and rank == 1:
            os.kill(os.getpid(), number)

    options = TrainOptions("cpu", run=RunOptions(checkpoint_seconds=1000))
    return run_phi_training(store["train"], store["val"], categories, config, folder / name, options, report)


rank = int(os.environ["RANK"])
with joined_processes(torch.device("cpu")) as (processes, _):
    for phi_training.LOGIT_BYTES in (1 << 28, 2 * 7 * 4):  # as one; in blocks of two queries
        for kind in ("phi1", "phi2"):
            gradients(processes, kind)
    phi_training.LOGIT_BYTES = 1 << 28
    whole = train("whole")
    save_file(whole.tensors, folder / f"whole-{{rank}}")
    for stop, number in ((4, signal.SIGTERM), (9, signal.SIGINT)):
        try:
            train("stopped", stop, number)
        except KeyboardInterrupt:
            if rank == 0:
                shutil.copytree(folder / "stopped", folder / f"stopped-{{stop}}")
    train("stopped")
"""


@pytest.fixture(scope="module")
def folder(
    store: actstore.ActivationStore, categories: CategorySplit, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """What a pair of processes left."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "program.py").write_text(PROGRAM.format(categories=categories.to_json(), config=CONFIG))
    store["train"].means()
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    done = subprocess.run(
        [*launcher, folder / "program.py", store.path, folder], cwd=ROOT, env=environment, capture_output=True,
        text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module", autouse=True)
def _in_float64() -> Iterator[None]:
    """As the pair of processes trains."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("predictor.training.phi.PhiTraining", PrecisePhiTraining)
        yield


@pytest.fixture(scope="module")
def alone(store: actstore.ActivationStore, categories: CategorySplit, folder: Path) -> Path:
    """The same training by one process."""
    run_phi_training(store["train"], store["val"], categories, CONFIG, folder / "alone", TrainOptions("cpu"))
    return folder / "alone"


def gradients(store: actstore.ActivationStore, categories: CategorySplit, phi: Phi) -> Tensors:
    """All at once, with torch's own functions."""
    batch = ClassBatches(store["train"], classes=categories.base, p_mean=0.5).batch(2)
    loss = cross_entropy(phi.logits(phi(batch.statistics.double()), batch.queries.double()), batch.targets)
    loss.backward()  # type: ignore[no-untyped-call]
    found = {name: one.grad for name, one in phi.named_parameters() if one.grad is not None}
    return {**found, "loss": loss.detach()}


@pytest.mark.parametrize("kind", ["phi1", "phi2"])
@pytest.mark.parametrize("logit_bytes", [1 << 28, 2 * 7 * 4], ids=["as one", "in blocks"])
def test_gradients_are_those_of_one_process(
    store: actstore.ActivationStore, categories: CategorySplit, folder: Path, kind: Any, logit_bytes: int
) -> None:
    phi = Phi(PhiSpec(kind, 16, True, True, True)).double()
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in phi.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=random, dtype=torch.float64))
    expected = gradients(store, categories, phi)
    first, second = (load_file(folder / f"{kind}-{logit_bytes}-{rank}") for rank in range(2))
    assert first.keys() == second.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(first[name], second[name])
        torch.testing.assert_close(first[name], tensor, rtol=1e-12, atol=1e-14, msg=name)


def log(folder: Path) -> list[dict[str, float]]:
    with (folder / "log.csv").open(newline="") as file:
        return [{key: float(value) for key, value in line.items() if key != "seconds"} for line in csv.DictReader(file)]


def test_curve_and_weights_are_those_of_one_process(folder: Path, alone: Path) -> None:
    assert [line["step"] for line in log(alone)] == [7, 14]
    for one, two in zip(log(alone), log(folder / "whole"), strict=True):
        assert two == pytest.approx(one, rel=1e-9)
    expected, found = (read_model(path / "model.safetensors") for path in (alone, folder / "whole"))
    assert found.identity == expected.identity
    for name, tensor in expected.tensors.items():
        torch.testing.assert_close(found.tensors[name], tensor, rtol=1e-9, atol=1e-12, msg=name)


def test_all_processes_end_with_what_the_first_wrote(folder: Path) -> None:
    kept = read_model(folder / "whole" / "model.safetensors").tensors
    for rank in range(2):
        assert_same(load_file(folder / f"whole-{rank}"), kept)


def test_a_signal_to_one_stops_all_after_the_same_step_with_a_checkpoint(folder: Path) -> None:
    for step in (4, 9):
        _, text = read_training(folder / f"stopped-{step}" / "checkpoint.safetensors")
        assert text["state"]["step"] == step


def test_resumed_it_ends_bit_for_bit_as_if_it_had_not_stopped(folder: Path) -> None:
    found, whole = (read_model(folder / name / "model.safetensors").tensors for name in ("stopped", "whole"))
    assert_same(found, whole)
    assert log(folder / "stopped") == log(folder / "whole")


def test_resumed_by_another_number_of_processes(
    store: actstore.ActivationStore, categories: CategorySplit, folder: Path, alone: Path
) -> None:
    run_phi_training(store["train"], store["val"], categories, CONFIG, folder / "stopped-9", TrainOptions("cpu"))
    expected, found = (read_model(path / "model.safetensors").tensors for path in (alone, folder / "stopped-9"))
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-9, atol=1e-12, msg=name)
    for one, other in zip(log(alone), log(folder / "stopped-9"), strict=True):
        assert other == pytest.approx(one, rel=1e-9)


def assert_same(one: Tensors, other: Tensors) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
