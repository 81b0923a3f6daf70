"""Every training on an accelerator ends as on the CPU, to the last bit; killed and repeated, too.

The card is simulated (simulated_accelerator.py): a tensor that lies on the host where it must not makes these fail.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import actstore
from actstore.backbones.construction import build_network
from actstore.backbones.loading import load_backbone
from actstore.backbones.weights import read_weights, save_weights
from actstore.compute import device as devices
from actstore.images.opening import open_images
from baselines import meta_training
from baselines.attention_weights import AttentionConfig, AttentionTrainee
from baselines.child import Child
from baselines.finetune import Draw, FineTunedHead, train_finetuned
from baselines.image_training import WEIGHTS, ImageConfig, ImageRun
from baselines.large_sample import ExtendedHead, RowTraining, train_on_rows
from baselines.learners import decode_classes
from baselines.linear import LinearConfig, LinearTrainee
from baselines.meta_training import choose_meta_config, read_learner, train_learner
from baselines.registry import make
from baselines.triplet import TripletConfig, TripletTrainee, train_triplet_images
from predictor.protocol.base_categories import BaseCategories
from predictor.protocol.category_split import CategorySplit, alphabetical_split
from predictor.protocol.episodes import TaskSize, run_episodes
from predictor.protocol.evaluation import all_way_task
from predictor.protocol.head import Head
from predictor.training import Report, RunOptions, loop
from predictor.training import phi as phi_training
from predictor.training.backbones import layers, pretraining, trainee
from predictor.training.backbones.config import choose_preset
from predictor.training.backbones.pretraining import train_ensemble
from predictor.training.backbones.trainee import train_backbone
from predictor.training.loop import CHECKPOINT, MODEL, read_log, read_model, read_training
from predictor.training.phi import TrainOptions, choose_config, fits_device, run_phi_training
from predictor.training.processes import Processes

CARD = "sim"  # sim:1 has no gradients: torch counts one card of a backend in Python
SPLIT = CategorySplit(("c4", "c0", "c2", "c5"), ("c1", "c3"))
GLYPHS = open_images("glyphs:10x8x3")
GLYPH_SPLIT = alphabetical_split(GLYPHS["train"].classes)
TINY = choose_preset("quick", epochs=1, batch_size=12, learning_rate=0.05, warmup_epochs=0.5)
LEARNERS: dict[str, dict[str, Any]] = {
    "maml": {"order": "second", "inner_steps": 2},
    "meta-lstm": {"tasks": 2, "inner_steps": 2},
    "matching": {"full_context": False},
    "prototypical": {},
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> actstore.ActivationStore:
    """f2: so that rows are sent in 16 bits."""
    random = np.random.default_rng(3)
    centres = 2 * random.random((6, 16))

    def rows(per_class: int) -> Any:
        labels = random.permutation(np.repeat(np.arange(6), per_class))
        return np.abs(centres[labels] + 0.4 * random.standard_normal((len(labels), 16))).astype(np.float32), labels

    path = tmp_path_factory.mktemp("card") / "x.zarr"
    names = [f"c{label}" for label in range(6)]
    return actstore.from_arrays(path, {"train": rows(30), "val": rows(8)}, classes=names, chunk_rows=64, dtype="f2")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, network = tmp_path_factory.mktemp("card") / "best.safetensors", build_network("small", len(GLYPH_SPLIT.base))
    save_weights(path, network, "small", GLYPH_SPLIT.base, network.transform)
    return path


@pytest.fixture(autouse=True)
def _small_and_often_read(one_thread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "STEPS_PER_READING", 3)


@dataclass(frozen=True)
class Run:
    """One training: where, on what, and what it is told of."""

    store: actstore.ActivationStore
    weights: Path
    folder: Path
    device: str
    options: RunOptions = field(default_factory=RunOptions)
    report: Report | None = None

    def on(self) -> dict[str, Any]:
        return {"device": torch.device(self.device), "options": self.options, "report": self.report}

    def image_run(self) -> ImageRun:
        return ImageRun(torch.device(self.device), options=self.options, report=self.report)


def phi(run: Run, resident: bool, **changes: Any) -> None:
    config = choose_config("code", "phi2", epochs=2, batches=5, learning_rate=0.05, p_mean=0.5, query_norm=True)
    options = TrainOptions(run.device, resident, run.options)
    run_phi_training(
        run.store["train"], run.store["val"], SPLIT, replace(config, **changes), run.folder, options, run.report
    )


def triplet(run: Run) -> None:
    config = TripletConfig(steps=10, classes_per_batch=4, rows_per_class=4)
    train_on_rows(TripletTrainee, "triplet", run.store["train"], SPLIT.base, run.folder, config, **run.on())


def linear(run: Run) -> None:
    config = LinearConfig(epochs=2, batch_size=32)
    train_on_rows(
        LinearTrainee, "oracle-linear", run.store["train"], (*SPLIT.base, *SPLIT.novel), run.folder, config, **run.on()
    )


def attention(run: Run) -> None:
    config = AttentionConfig(steps=10, way=2, queries=8)
    train_on_rows(AttentionTrainee, "attention", run.store["train"], SPLIT.base, run.folder, config, **run.on())


IMAGES = ImageConfig(steps=7, batch_size=8, learning_rate=0.05, flip=False)


def finetune(run: Run) -> None:
    backbone = load_backbone("small", run.weights)
    train_finetuned(GLYPHS, GLYPH_SPLIT, backbone, run.folder, IMAGES, Draw(2, 1), run.image_run())


def triplet_images(run: Run) -> None:
    train_triplet_images(GLYPHS, GLYPH_SPLIT, load_backbone("small", run.weights), run.folder, IMAGES, run.image_run())


def meta(run: Run, learner: str, **options: Any) -> None:
    small = {"image_size": 16, "width": 8, "queries": 3, "way": 3, "tasks": 1, "steps": 7}
    config = choose_meta_config(learner, **{**small, **LEARNERS[learner], **options})
    examples = decode_classes(GLYPHS, GLYPH_SPLIT.base, 16)
    train_learner(config, examples, "glyphs", run.folder, **run.on())


def pretrain(run: Run, **changes: Any) -> None:
    config = replace(TINY, **changes)
    train_backbone(GLYPHS, GLYPH_SPLIT, config, run.folder, run.device, 0, run.options, run.report)


TRAININGS: dict[str, Callable[[Run], None]] = {
    "phi, streamed": lambda run: phi(run, False),
    "phi, resident": lambda run: phi(run, True),
    "triplet": triplet,
    "linear": linear,
    "attention": attention,
    "fine-tuning on images": finetune,
    "triplet on images": triplet_images,
    **{learner: lambda run, learner=learner: meta(run, learner) for learner in LEARNERS},  # type: ignore[misc]
    "pretraining": pretrain,
    "pretraining, streamed": lambda run: pretrain(run, in_memory=False),
    "pretraining, mixup and cosine": lambda run: pretrain(run, mixup=0.4, cosine=True),
}


def outcome(folder: Path) -> tuple[dict[str, Tensor], list[dict[str, float]]]:
    """All tensors that a training leaves, and its log but for times."""
    tensors = dict(read_model(folder / MODEL).tensors) if (folder / MODEL).exists() else {}
    for name in (WEIGHTS, "best.safetensors", "last.safetensors"):
        if (folder / name).exists():
            tensors |= {f"{name}: {key}": tensor for key, tensor in read_weights(folder / name).tensors.items()}
    times = ("seconds", "images_per_second")
    return tensors, [{key: value for key, value in line.items() if key not in times} for line in read_log(folder)]


def assert_same(one: Path, other: Path) -> None:
    (tensors, log), (expected, expected_log) = outcome(one), outcome(other)
    assert tensors.keys() == expected.keys()
    assert tensors
    for name in tensors:
        assert torch.equal(tensors[name], expected[name]), name
    assert log == expected_log


@pytest.fixture
def waits(card: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of every step of a training, how often it read from the card, for which it would wait."""
    learn, found = loop._Run.learn, list[int]()

    def reads() -> int:
        return int(card.counts["read"] + card.counts["from card"])

    def noting(run: Any, *rest: Any) -> None:
        step = run.trainee.step

        def noted(number: int) -> Any:
            before, figures = reads(), step(number)
            found.append(reads() - before)
            return figures

        run.trainee.step = noted
        learn(run, *rest)

    monkeypatch.setattr(loop._Run, "learn", noting)
    return found


@pytest.mark.parametrize("name", TRAININGS)
def test_a_training_ends_as_on_the_cpu(
    name: str, card: Any, waits: list[int], store: actstore.ActivationStore, weights: Path, tmp_path: Path
) -> None:
    train, steps = TRAININGS[name], list[int]()
    train(Run(store, weights, tmp_path / "cpu", "cpu", report=lambda done, total, figures: steps.append(done)))
    card.counts.clear()
    seen: list[int] = []
    train(Run(store, weights, tmp_path / "card", CARD, report=lambda done, total, figures: seen.append(done)))
    assert_same(tmp_path / "card", tmp_path / "cpu")
    assert steps == list(range(1, steps[-1] + 1))
    assert card.counts["computed"] > 10 * steps[-1]
    assert len(seen) < len(steps)  # figures stay on the card for some steps
    assert waits == [0] * 2 * len(steps)

    class KilledError(Exception):
        pass

    def kill(done: int, total: int, figures: object) -> None:
        if done >= 6:
            raise KilledError

    every = RunOptions(checkpoint_seconds=0)
    with pytest.raises(KilledError):
        train(Run(store, weights, tmp_path / "again", CARD, every, kill))
    train(Run(store, weights, tmp_path / "again", CARD, every))
    assert_same(tmp_path / "again", tmp_path / "cpu")


@pytest.mark.parametrize("kind", [FineTunedHead, Child])
def test_fine_tuning_on_rows_ends_as_on_the_cpu(
    kind: type[ExtendedHead], card: Any, store: actstore.ActivationStore
) -> None:
    task, random = all_way_task(store["train"], store["val"], SPLIT), torch.Generator().manual_seed(4)
    head = Head(torch.randn(4, 16, generator=random), torch.randn(4, generator=random), SPLIT.base)
    support, queries = task.support(3, 0, 0).activations, torch.rand(7, 16, generator=random)

    def scores(device: str, steps: int) -> Tensor:
        method = kind(head, config=RowTraining(steps, 20), device=torch.device(device))
        method.prepare(task.base_categories)
        return method.scores(queries, support)

    assert torch.equal(scores(CARD, 10), scores("cpu", 10))
    transfers = []
    for steps in (10, 20):
        card.counts.clear()
        scores(CARD, steps)
        assert card.counts["computed"] > 10 * steps
        transfers.append([card.counts[name] for name in ("read", "from card", "to card")])
    assert transfers[0] == transfers[1]  # no step waits for the host, or the host for it


def test_rows_are_fine_tuned_on_the_device_of_searches(card: Any, store: actstore.ActivationStore) -> None:
    for device in ("cpu", CARD):
        head = Head(torch.zeros(4, 16), torch.zeros(4), SPLIT.base)
        base = BaseCategories.of_split(store["train"], SPLIT.base)
        for method in make("finetune", "child", train=store["train"], split=SPLIT, head=head, device=device):
            method.prepare(base)
            assert isinstance(method, ExtendedHead)
            assert method._sample.activations.device.type == device


def test_full_context_in_float64(
    card: Any, store: actstore.ActivationStore, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's LSTM adds up in another order on a card."""
    plain, images = meta_training.make_learner, meta_training.as_images
    monkeypatch.setattr(meta_training, "make_learner", lambda config: plain(config).double())
    monkeypatch.setattr(meta_training, "as_images", lambda *given: images(*given).double())
    for device in ("cpu", CARD):
        meta(Run(store, weights, tmp_path / device, device), "matching", full_context=True)
    tensors, expected = (outcome(tmp_path / device)[0] for device in (CARD, "cpu"))
    assert tensors.keys() == expected.keys()
    for name in tensors:
        torch.testing.assert_close(tensors[name], expected[name], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("learner", LEARNERS)
def test_a_learner_measures_tasks_as_on_the_cpu(
    learner: str, card: Any, store: actstore.ActivationStore, weights: Path, tmp_path: Path
) -> None:
    meta(Run(store, weights, tmp_path, "cpu"), learner)
    novel, results = decode_classes(GLYPHS, GLYPH_SPLIT.base[:4], 16), []
    for device in ("cpu", CARD):
        examples, method = read_learner(tmp_path, torch.device(device))[0].prepared(novel)
        results.append(run_episodes([method], examples, TaskSize(3, 1, 2), 8)[0].accuracy)
    assert results[0] == results[1]


def test_pretraining_in_16_bits(
    card: Any, store: actstore.ActivationStore, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card.half = True
    every = RunOptions(checkpoint_seconds=0)
    pretrain(Run(store, weights, tmp_path / "card", CARD, every))
    assert card.counts["products in torch.float16"] > 10
    assert "scaler.scale" in read_training(tmp_path / "card" / CHECKPOINT)[0]
    for module in (trainee, layers):
        monkeypatch.setattr(module, "has_half", lambda device: True)
    pretrain(Run(store, weights, tmp_path / "cpu", "cpu"))
    assert_same(tmp_path / "card", tmp_path / "cpu")


def test_phi_in_bfloat16(
    card: Any, store: actstore.ActivationStore, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card.half = True
    phi(Run(store, weights, tmp_path / "card", CARD), False)
    assert card.counts["products in torch.bfloat16"] > 10
    monkeypatch.setattr(phi_training, "has_bfloat16", lambda device: True)
    phi(Run(store, weights, tmp_path / "cpu", "cpu"), False)
    assert_same(tmp_path / "card", tmp_path / "cpu")


def test_rows_that_fit_a_card_are_held_there(card: Any, store: actstore.ActivationStore) -> None:
    train, place = store["train"], torch.device(CARD)
    assert fits_device(train, place)
    assert not fits_device(train, torch.device("cpu"))
    held = len(train) * train.spec.row_bytes
    card.memory = 2 * held
    assert not fits_device(train, place)
    assert fits_device(train, place, processes=2)


def test_a_speed_is_measured_when_the_card_is_done(card: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretraining, "SECONDS_PER_SPEED", 0.01)
    assert pretraining.measure_speed(TINY, 16, 3, torch.device(CARD), Processes(device=torch.device(CARD))) > 0
    assert card.counts["synchronise"] >= 2


def test_an_ensemble_is_measured_on_the_card(card: Any, tmp_path: Path) -> None:
    results = [
        train_ensemble(
            GLYPHS, GLYPH_SPLIT, TINY, 2, tmp_path / device, device, 0, RunOptions(), lambda number: (None, None)
        )
        for device in ("cpu", CARD)
    ]
    assert results[0].val_top1 == results[1].val_top1
