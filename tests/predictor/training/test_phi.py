"""Training phi against plain numpy, and what it leaves in its folder."""

from __future__ import annotations

import csv
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import actstore
from actstore.errors import DivergedError, InvalidInputError
from actstore.streams.class_batches import ClassBatches
from predictor.protocol.category_split import CategorySplit
from predictor.training import RunOptions
from predictor.training.loop import read_training
from predictor.training.phi import TrainConfig, TrainOptions, choose_config, few_threads, run_phi_training
from predictor.training.processes import Processes
from predictor.training.trained_phi import load_phi
from tests.predictor.training.precise import PrecisePhiTraining

pytestmark = pytest.mark.numeric

Array = NDArray[np.float64]
EVERY_STEP = TrainOptions("cpu", run=RunOptions(checkpoint_seconds=0))


class PlainPhi:
    """Equation 3 with its gradient by hand, in float64: input norm, layers with biases, ReLU between, unit output."""

    def __init__(self, dim: int, layers: int) -> None:
        self.weights = [part for _ in range(layers) for part in (np.eye(dim), np.zeros(dim))]
        self.momenta = [np.zeros_like(part) for part in self.weights]

    def step(self, statistics: Array, queries: Array, config: TrainConfig, number: int) -> float:
        inputs = [statistics / np.linalg.norm(statistics, axis=1, keepdims=True)]
        outputs: list[Array] = []
        for place in range(0, len(self.weights), 2):
            if outputs:
                inputs.append(np.maximum(outputs[-1], 0))
            outputs.append(inputs[-1] @ self.weights[place].T + self.weights[place + 1])
        length = np.linalg.norm(outputs[-1], axis=1, keepdims=True)
        parameters = outputs[-1] / length
        logits = queries @ parameters.T
        shares = np.exp(logits - logits.max(1, keepdims=True))
        shares /= shares.sum(1, keepdims=True)
        n_class = len(logits)
        loss = -np.log(np.diag(shares)).mean()
        back = ((shares - np.eye(n_class)) / n_class).T @ queries  # (class, dim), of the parameters
        back = (back - parameters * (back * parameters).sum(1, keepdims=True)) / length
        gradients: list[Array] = []
        for layer in reversed(range(len(outputs))):
            gradients = [back.T @ inputs[layer], back.sum(0), *gradients]
            if layer:
                back = (back @ self.weights[2 * layer]) * (outputs[layer - 1] > 0)
        for place, gradient in enumerate(gradients):
            decayed = gradient + config.weight_decay * self.weights[place]
            self.momenta[place] = config.momentum * self.momenta[place] + decayed
            self.weights[place] = self.weights[place] - config.rate(number) * self.momenta[place]
        return float(loss)


@pytest.mark.parametrize("kind", ["phi1", "phi2"])
def test_steps_follow_equation_3(store: actstore.ActivationStore, categories: CategorySplit, kind: Any) -> None:
    """With a rate that falls after two of four steps, and decay and momentum large enough to be seen."""
    config = TrainConfig(
        kind, epochs=2, batches=2, learning_rate=0.5, decay=((1, 0.1),), weight_decay=0.05, p_mean=0.5, seed=4
    )
    trainee = PrecisePhiTraining(store["train"], None, categories, config, torch.device("cpu"))
    plain = PlainPhi(16, len(trainee.phi.layers))
    stream = ClassBatches(store["train"], classes=categories.base, seed=4, p_mean=0.5)
    for number in range(4):
        batch = stream.batch(number)
        loss = plain.step(batch.statistics.double().numpy(), batch.queries.double().numpy(), config, number)
        assert trainee.step(number)["loss"] == pytest.approx(loss, rel=1e-10)
        for found, expected in zip(trainee.phi.parameters(), plain.weights, strict=True):
            np.testing.assert_allclose(found.detach(), expected, rtol=1e-9, atol=1e-11)
    assert np.abs(plain.weights[0] - np.eye(16)).max() > 0.01  # it went somewhere


def test_a_small_separable_problem_is_learnt(
    store: actstore.ActivationStore, categories: CategorySplit, tmp_path: Path
) -> None:
    config = choose_config("paper", "phi2", epochs=4, batches=25, learning_rate=0.1)
    steps: list[float] = []
    trained = run_phi_training(
        store["train"], store["val"], categories, config, tmp_path / "run",
        report=lambda done, total, figures: steps.append(figures["loss"]),
    )  # fmt: skip
    with (tmp_path / "run" / "log.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["step"] for line in lines] == ["25", "50", "75", "100"]
    assert list(lines[0]) == ["step", "loss", "base_top1", "novel_top1", "harmonic", "seconds"]
    losses = [float(line["loss"]) for line in lines]
    assert losses[-1] < losses[0]
    assert losses[-1] < 0.7 * steps[0]
    assert trained.figures["base_top1"] > 60
    assert trained.figures["loss"] == pytest.approx(losses[-1], rel=1e-6)
    names = {file.name for file in (tmp_path / "run").iterdir()}
    assert names == {"model.safetensors", "model.json", "log.csv", "curves.png", "lock"}
    assert (tmp_path / "run" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_log_measures_with_the_current_weights(
    store: actstore.ActivationStore, categories: CategorySplit, tmp_path: Path
) -> None:
    """base_top1 of the last line is that of the weights that are kept."""
    from predictor.phi.rule import PhiMethod
    from predictor.protocol.evaluation import all_way_task, measure

    config = choose_config("code", "phi1", epochs=1, batches=30, learning_rate=0.1)
    trained = run_phi_training(store["train"], store["val"], categories, config, tmp_path / "run")
    phi = load_phi(tmp_path / "run").phi
    method = PhiMethod(phi)
    task = all_way_task(store["train"], store["val"], categories)
    assert trained.figures["base_top1"] == pytest.approx(measure(method, task, [1], 5)[0].mean["top1_large"])


def test_the_model_says_what_it_was_trained_with(
    store: actstore.ActivationStore, categories: CategorySplit, tmp_path: Path
) -> None:
    config = choose_config("code", "phi1", epochs=1, batches=3, seed=9)
    run_phi_training(store["train"], None, categories, config, tmp_path / "run")
    text = json.loads((tmp_path / "run" / "model.json").read_text())
    identity = text["identity"]
    assert identity["config"] == json.loads(json.dumps(config.to_json()))
    assert identity["config"]["seed"] == 9
    assert identity["categories"] == categories.to_json()
    assert identity["store"] == {"content": store["train"].content, "weights_sha256": None}
    assert text["steps"] == 3
    again = load_phi(tmp_path / "run")
    assert (again.kind, again.categories, again.identity) == ("phi1", categories, identity)


@pytest.mark.parametrize("rate", [1e10, 1e30])
def test_a_loss_that_is_no_number_stops_and_keeps_the_last_good_checkpoint(
    store: actstore.ActivationStore, categories: CategorySplit, tmp_path: Path, rate: float
) -> None:
    """At 1e10 the loss becomes NaN first, at 1e30 the weights do while the loss is still a number."""
    config = choose_config("paper", "phi2", epochs=1, batches=50, learning_rate=rate)
    with pytest.raises(DivergedError) as error:
        run_phi_training(store["train"], None, categories, config, tmp_path / "run", EVERY_STEP)
    message = str(error.value)
    assert "\n" not in message
    assert "the last good checkpoint is kept" in message
    assert "lower learning rate" in message
    tensors, text = read_training(tmp_path / "run" / "checkpoint.safetensors")
    assert text["state"]["step"] >= 1
    assert all(torch.isfinite(tensor).all() for tensor in tensors.values())
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_weights_that_are_no_numbers_are_never_a_model(
    store: actstore.ActivationStore, categories: CategorySplit, tmp_path: Path
) -> None:
    """The last update is judged by no later loss."""
    config = choose_config("paper", "phi2", epochs=1, batches=2, learning_rate=1e30)
    with pytest.raises(DivergedError, match=r"became (inf|nan) in step 2 in .*no checkpoint yet"):
        run_phi_training(store["train"], None, categories, config, tmp_path / "run")
    assert not (tmp_path / "run" / "model.safetensors").exists()


SHORT = choose_config("paper", "phi1", epochs=1, batches=2)


@pytest.mark.parametrize("finished", [True, False])
def test_another_training_in_the_same_folder_is_refused(
    store: actstore.ActivationStore, categories: CategorySplit, tmp_path: Path, finished: bool
) -> None:
    def stop(done: int, total: int, figures: dict[str, float]) -> None:
        if done == 2 and not finished:
            raise KeyboardInterrupt

    train, folder = store["train"], tmp_path / "run"
    if finished:
        run_phi_training(train, None, categories, SHORT, folder)
    else:
        with pytest.raises(KeyboardInterrupt):
            run_phi_training(train, None, categories, SHORT, folder, EVERY_STEP, stop)
    other = choose_config("paper", "phi1", epochs=1, batches=2, seed=1)
    with pytest.raises(InvalidInputError, match="belongs to another training: config seed was 0, is 1"):
        run_phi_training(train, None, categories, other, folder)
    fewer = CategorySplit(categories.base[1:], categories.novel)
    with pytest.raises(InvalidInputError, match="base was 7 classes, is 6"):
        run_phi_training(train, None, fewer, SHORT, folder)
    with pytest.raises(InvalidInputError, match="store content was"):
        run_phi_training(store["val"], None, categories, SHORT, folder)
    restarted = run_phi_training(train, None, categories, other, folder, TrainOptions(run=RunOptions(restart=True)))
    assert restarted.identity["config"]["seed"] == 1


def test_a_finished_training_is_only_read(
    store: actstore.ActivationStore, categories: CategorySplit, tmp_path: Path
) -> None:
    first = run_phi_training(store["train"], None, categories, SHORT, tmp_path)
    steps: list[int] = []
    again = run_phi_training(
        store["train"], None, categories, SHORT, tmp_path, report=lambda done, total, figures: steps.append(done)
    )
    assert steps == []
    assert (again.seconds, again.figures) == (first.seconds, first.figures)


def test_resident_rows_give_the_same_weights(
    store: actstore.ActivationStore, categories: CategorySplit, tmp_path: Path
) -> None:
    found = [
        run_phi_training(
            store["train"], None, categories, SHORT, tmp_path / str(resident), TrainOptions("cpu", resident)
        )
        for resident in (True, False)
    ]
    assert all(torch.equal(found[0].tensors[name], found[1].tensors[name]) for name in found[0].tensors)


@pytest.mark.parametrize("missing", ["novel", "base", "all novel train"])
def test_where_nothing_can_be_held_out_training_goes_on_without(
    make_rows: Any, categories: CategorySplit, tmp_path: Path, missing: str
) -> None:
    rows, labels = make_rows(6, 0)
    novel = labels >= 7
    kept = {"train": ~novel if "train" in missing else novel | True, "val": novel if missing == "base" else ~novel}
    store = actstore.from_arrays(
        tmp_path / "y.zarr",
        {name: (rows[chosen], labels[chosen]) for name, chosen in kept.items()},
        classes=[f"c{number}" for number in range(10)],
    )
    trained = run_phi_training(store["train"], store["val"], categories, SHORT, tmp_path / "run")
    assert list(trained.figures) == ["loss"]
    assert (tmp_path / "run" / "curves.png").exists()


def test_base_classes_must_be_there(
    store: actstore.ActivationStore, make_rows: Any, categories: CategorySplit, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInputError, match="base class 'zebra' of the split is not among"):
        run_phi_training(store["train"], None, CategorySplit(("c0", "zebra")), SHORT, tmp_path / "a")
    rows, labels = make_rows(3, 0)
    kept = labels != 2
    partial = actstore.from_arrays(
        tmp_path / "y.zarr", {"train": (rows[kept], labels[kept])}, classes=[f"c{number}" for number in range(10)]
    )
    with pytest.raises(InvalidInputError, match="class 'c2' has no rows to sample"):
        run_phi_training(partial["train"], None, categories, SHORT, tmp_path / "b")


def test_there_must_be_a_category_for_every_process(
    store: actstore.ActivationStore, categories: CategorySplit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = torch.device("cpu")
    monkeypatch.setattr("predictor.training.phi.joined_processes", lambda _: nullcontext((Processes(0, 8), device)))
    with pytest.raises(InvalidInputError, match="7 base categories cannot be shared by 8 processes; start fewer"):
        run_phi_training(store["train"], None, categories, SHORT, tmp_path)


def test_small_products_run_on_one_thread_and_the_number_comes_back() -> None:
    torch.set_num_threads(2)
    with few_threads(80, 512):
        assert torch.get_num_threads() == 1
    with few_threads(900, 2048):
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == 2
