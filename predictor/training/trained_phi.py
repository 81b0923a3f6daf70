"""A trained phi, read back with what it belongs to; used with activations of another network it is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actstore.errors import ActstoreError, InvalidInputError
from actstore.split import Split
from actstore.storage.atomic_file import write_atomic
from actstore.storage.checksum import sealed, unsealed
from actstore.storage.place import Place
from actstore.storage.tensor_file import below
from predictor.phi.network import LAYERS, Phi, build_phi
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.method_key import PHI_KINDS
from predictor.training.phi import WEIGHTS
from predictor.training.run_files import CHECKPOINT, MODEL, read_model

STORE_NOTE = "store.json"


@dataclass(frozen=True)
class TrainedPhi:
    """phi in evaluation mode, the categories it was trained with, and the identity of its training."""

    path: Path
    phi: Phi
    categories: CategorySplit
    identity: dict[str, Any]

    @property
    def kind(self) -> str:
        return self.phi.spec.kind

    def require_store(self, split: Split) -> None:
        """phi reads the activations of one network: of the same weights, or where those are unknown, the same rows."""
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


def load_phi(path: Path) -> TrainedPhi:
    """path: a folder of `ppa train`, or the model.safetensors in it."""
    file = path / MODEL if path.is_dir() else path
    if not file.exists():
        raise InvalidInputError(f"no trained phi at {file}; {_how_to_train(path)}")
    trained = read_model(file)
    if trained.identity.get("method") not in LAYERS:
        raise InvalidInputError(f"{file} must hold a phi, got {trained.identity.get('method')}")
    phi = build_phi(trained.identity["phi"], below(trained.tensors, WEIGHTS))
    return TrainedPhi(file, phi, CategorySplit.from_json(trained.identity["categories"]), trained.identity)


def _how_to_train(path: Path) -> str:
    """A command that works when it is typed: to go on with an interrupted training it must be the one that began it."""
    if (path / CHECKPOINT).exists():
        begun = _noted(path, "command")
        return f"its training is interrupted; go on with {f'`{begun}`' if begun else 'the command that began it'}"
    kind = next((kind for kind in reversed(PHI_KINDS) if path.name.startswith(kind)), "phi2")
    elsewhere = "" if path == Path("runs") / kind else f" --out {path}"
    return f"train one with `ppa train --phi {kind}{elsewhere}`"


def note_store(folder: Path, store: Place, command: str) -> None:
    """Keep beside a training where its activations lie, and what was typed: hints, no part of what the training is."""
    note = {"store": str(store.absolute()), "command": command}
    write_atomic(folder / STORE_NOTE, json.dumps(sealed(note)).encode())


def noted_store(folder: Path) -> str | None:
    """None where nothing was kept, as before 0.2.0, or it cannot be read: any store of the same network will do."""
    return _noted(folder, "store")


def _noted(folder: Path, key: str) -> str | None:
    try:
        return str(unsealed(json.loads((folder / STORE_NOTE).read_text("utf-8")))[key])
    except (ActstoreError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
