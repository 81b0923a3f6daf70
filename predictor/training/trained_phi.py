"""phi: trained in one call, read back with what it belongs to; with activations of another network it is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actstore import ActivationStore
from actstore.errors import ActstoreError, InvalidInputError
from actstore.progress import SplitBars, is_main_process
from actstore.split import Split
from actstore.storage.atomic_file import check_checksum, with_checksum, write_atomic
from actstore.storage.place import Place
from actstore.storage.tensor_file import below
from predictor.phi.network import LAYERS, Phi, build_phi
from predictor.phi.rule import PhiMethod
from predictor.protocol import PHI_KINDS, PhiKind
from predictor.protocol.category_split import CategorySplit, alphabetical_split, as_categories
from predictor.protocol.method import Aggregate, Method
from predictor.protocol.setting import say_means_are_computed
from predictor.training.loop import CHECKPOINT, MODEL, STORE_NOTE, RunOptions, read_model
from predictor.training.phi import WEIGHTS, TrainOptions, choose_config, run_phi_training
from predictor.training.trainee import Figures

RUNS = Path("runs")  # where trainings are kept


@dataclass(frozen=True)
class TrainedPhi:
    """A phi that was trained, with the categories and the store it belongs to.

    Attributes:
        path: the file of its weights.
        phi: the network phi, in evaluation mode.
        categories: the base and novel categories it was trained with.
        identity: what names its training: settings, rows and categories.

    Examples:
        >>> phi.kind, len(phi.categories.base)
        ('phi1', 3)
    """

    path: Path
    phi: Phi
    categories: CategorySplit
    identity: dict[str, Any]

    @property
    def kind(self) -> str:
        """phi1, phi2 or phi2star."""
        return self.phi.spec.kind

    def as_method(self, aggregate: Aggregate | None = None, novel_bias: float = 0.0) -> Method:
        """Make a method of it that `evaluate` and the like can measure.

        Args:
            aggregate: how several examples are combined, "max" or "mean"; by default `self.aggregate`.
            novel_bias: a constant that is set by hand.
        """
        return TrainedPhiMethod(self, aggregate or self.aggregate, novel_bias)

    @property
    def aggregate(self) -> Aggregate:
        """How several examples are combined by default: "max" as in the paper, or "mean" after a training on means."""
        return "mean" if self.identity["config"].get("examples", (1, 1))[1] > 1 else "max"

    def __repr__(self) -> str:
        categories, steps = self.categories, self.identity["config"].get("epochs", 0)
        return (
            f"{self.kind} of {self.path.parent}: {len(categories.base):,} base categories, {self.phi.spec.dim} "
            f"dimensions, {steps:,} epochs"
        )

    def require_store(self, split: Split) -> None:
        """Refuse activations of another network: weights must be the same, or where those are not known, the rows.

        Args:
            split: the rows that phi is to read.

        Raises:
            InvalidInputError: the rows come from another network, or have another length.
        """
        if split.dim != self.phi.spec.dim:
            raise InvalidInputError(
                f"{self.path} was trained on activations of dim {self.phi.spec.dim}, those of {split.store_path} "
                f"have {split.dim}; train a phi for them with `ppa train`"
            )
        trained, here = self.identity["store"], split.spec.provenance.get("weights_sha256")
        same_network = here is not None and here == trained["weights_sha256"]
        if not same_network and split.content != trained["content"]:
            raise InvalidInputError(
                f"{self.path} was trained on another store, {split.store_path} is not it and does not say that it "
                "comes from the same network; train a phi for it with `ppa train`"
            )


class TrainedPhiMethod(PhiMethod):
    """A phi that is measured on the store and with the base categories of its training alone."""

    def __init__(self, trained: TrainedPhi, aggregate: Aggregate, novel_bias: float) -> None:
        super().__init__(trained.phi, aggregate, novel_bias)
        self._trained, self.folder = trained, trained.path.parent
        self.named_by = f"--phi {self.folder}"

    def check(self, train: Split, categories: CategorySplit) -> None:
        self._trained.require_store(train)
        trained = self._trained.categories
        if set(trained.base) != set(categories.base):
            raise InvalidInputError(
                f"{self._trained.path} was trained with other categories than the base of this split; leave split out, "
                "or give split=phi.categories (--split-file)"
            )
        if known := [name for name in categories.novel if name in set(trained.validation)]:
            raise InvalidInputError(
                f"{known[0]!r}, which this split calls novel, is a validation category of {self._trained.path}: "
                "constants may have been fitted on it; leave it out of the split"
            )


def train_phi(
    train: Split | ActivationStore, split: CategorySplit | str | Path | None = None, kind: PhiKind = "phi2",
    out: str | Path | None = None, *, test: Split | None = None, preset: str = "paper", device: str = "auto",
    resident: bool | None = None, restart: bool = False, checkpoint_seconds: float = 15.0, command: str = "",
    progress: bool | None = None, **settings: Any,
) -> TrainedPhi:  # fmt: skip
    """Train phi, which predicts the parameters of a category from its activations, on the base categories.

    An interrupted training goes on with the same call, and ends with the same weights, bit for bit.

    Args:
        train: the base rows, or a store that has them in its split `train`.
        split: base and novel categories, or their file; by default the first 90% of the class names are the base.
        kind: "phi1", "phi2" or "phi2star"; see the glossary.
        out: the folder of the training, by default runs/KIND.
        test: a split with other images, which the log gives the accuracy on.
        preset: "paper", or "code" for the settings of its authors' code.
        device: "cpu", "cuda", "cuda:1" or "auto".
        resident: hold the activations in memory; by default where they fit.
        restart: discard what is in the folder.
        checkpoint_seconds: how often the state is saved.
        command: the command that began the training; messages name it where an interrupted training is asked for.
        progress: None shows a bar on a terminal and in a notebook, False none, True logs a line every 20 seconds.
        **settings: in place of the preset's: epochs, batches, learning_rate, weight_decay, momentum, p_mean, examples,
            cosine, input_norm, bias, query_norm and seed.

    Returns:
        The trained phi.

    Raises:
        InvalidInputError: a base category has no rows, or a setting is out of range.
        DivergedError: a figure of the training is no longer a number.

    Examples:
        >>> predictor.train_phi(train, split, kind="phi2", out="trial", epochs=1, batches=2).kind
        'phi2'
    """
    train = train["train"] if isinstance(train, ActivationStore) else train
    if not isinstance(train, Split):
        raise InvalidInputError(f"train must be a split or a store, got {type(train).__name__}; the order is "
                                "train_phi(train, split)")  # fmt: skip
    config = choose_config(preset, kind, **settings)
    folder = Path(out) if out is not None else RUNS / (kind if preset == "paper" else f"{kind}-{preset}")
    categories = alphabetical_split(train.classes) if split is None else as_categories(split)
    options = TrainOptions(device, resident, RunOptions(checkpoint_seconds, restart))
    say_means_are_computed(train, progress)

    tied: list[bool] = []

    def report(done: int, total: int, figures: Figures) -> None:
        if not tied:  # what would have been refused is refused by now
            note_store(folder, train.store_path, command)
            tied.append(True)
        bars(kind, done, total, figures)

    with SplitBars("train", "steps", progress) as bars:
        run_phi_training(train, test, categories, config, folder, options, report if is_main_process() else None)
    if is_main_process():
        note_store(folder, train.store_path, command)
    return load_phi(folder)


def load_phi(path: str | Path) -> TrainedPhi:
    """Read a phi that was trained.

    Args:
        path: a folder of `train_phi`, or the model.safetensors in it; a name alone, such as "phi2", also stands for
            runs/phi2.

    Raises:
        InvalidInputError: there is no trained phi; the message says how to train or finish one.
        DamagedError: the file is corrupt.

    Examples:
        >>> predictor.load_phi("phi1").kind
        'phi1'
    """
    path = _run_of(Path(path))
    file = path / MODEL if path.is_dir() else path
    if (path / "zarr.json").exists():
        raise InvalidInputError(f"{path} is a store, not the folder of a trained phi; train one with train_phi(store)")
    if not file.exists():
        raise InvalidInputError(f"no trained phi at {file}; {_how_to_train(path)}")
    trained = read_model(file)
    if trained.identity.get("method") not in LAYERS:
        raise InvalidInputError(f"{file} must hold a phi, got {trained.identity.get('method')}")
    phi = build_phi(trained.identity["phi"], below(trained.tensors, WEIGHTS))
    return TrainedPhi(file, phi, CategorySplit.from_json(trained.identity["categories"]), trained.identity)


def _run_of(path: Path) -> Path:
    """A name that is none of this folder's files is that of a training in runs/."""
    below = RUNS / path
    is_name = path.name == str(path) and not path.exists()
    return below if is_name and (below.exists() or path.name in PHI_KINDS) else path


def _how_to_train(path: Path) -> str:
    """A command that works when it is typed: to go on with an interrupted training it must be the one that began it."""
    if (path / CHECKPOINT).exists():
        begun = _noted(path, "command")
        return f"its training is interrupted; go on with {f'`{begun}`' if begun else 'the command that began it'}"
    kind = next((kind for kind in reversed(PHI_KINDS) if path.name.startswith(kind)), "phi2")
    elsewhere = "" if path == RUNS / kind else f" --out {path}"
    return f"train one with `ppa train --phi {kind}{elsewhere}`"


def note_store(folder: Path, store: Place, command: str) -> None:
    """Keep beside a training where its activations lie, and what was typed: hints, no part of what the training is."""
    note = {"store": str(store.absolute()), "command": command}
    write_atomic(folder / STORE_NOTE, json.dumps(with_checksum(note)).encode())


def noted_store(folder: Path) -> str | None:
    """None where nothing was kept, or it cannot be read: any store of the same network will do."""
    return _noted(folder, "store")


def _noted(folder: Path, key: str) -> str | None:
    try:
        return str(check_checksum(json.loads((folder / STORE_NOTE).read_text("utf-8")))[key])
    except (ActstoreError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
