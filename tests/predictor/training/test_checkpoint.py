from __future__ import annotations

import pickle
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import actstore
from actstore.errors import ActstoreError, InvalidInputError
from predictor.phi.network import Phi
from predictor.protocol.category_split import CategorySplit
from predictor.training.loop import write_training
from predictor.training.trained_phi import load_phi

pytestmark = pytest.mark.numeric

CATEGORIES = CategorySplit(("c0", "c1"), ("c2",))


@pytest.fixture
def save(tmp_path: Path, make_phi: Callable[..., Phi]) -> Callable[..., Path]:
    """A new run with this identity of its store."""

    def write(content: str = "rows", sha256: str | None = None, **changes: Any) -> Path:
        phi = make_phi()
        identity = {
            "method": "phi2", "phi": phi.spec.to_json(), "categories": CATEGORIES.to_json(),
            "store": {"content": content, "weights_sha256": sha256}, **changes,
        }  # fmt: skip
        tensors = {f"phi.{name}": tensor for name, tensor in phi.state_dict().items()}
        text = {"identity": identity, "steps": 1, "seconds": 0.1, "figures": {}}
        folder = tmp_path / f"run{next(numbers)}"
        write_training(folder / "model.safetensors", tensors, text)
        return folder

    numbers = count()
    return write


def store(path: Path, dim: int = 16, **provenance: Any) -> actstore.Split:
    rows = np.random.default_rng(dim).random((6, dim), dtype=np.float32)
    made = actstore.create(path, classes=["c0", "c1", "c2"], dim=dim, provenance=provenance)
    with made.writer("train") as writer:
        writer.append(rows, np.array([0, 0, 1, 1, 2, 2]))
    return actstore.open(path)["train"]


def test_by_its_folder_or_its_file(save: Callable[..., Path], make_phi: Callable[..., Phi]) -> None:
    folder, rows = save(), torch.rand(3, 16)
    for path in (folder, folder / "model.safetensors"):
        trained = load_phi(path)
        assert torch.equal(trained.phi(rows), make_phi()(rows))
        assert (trained.path, trained.kind, trained.categories) == (folder / "model.safetensors", "phi2", CATEGORIES)


def test_the_same_rows_or_the_same_network(save: Callable[..., Path], tmp_path: Path) -> None:
    imported = store(tmp_path / "a.zarr")
    built = store(tmp_path / "b.zarr", weights_sha256="5ba")
    load_phi(save(content=imported.content)).require_store(imported)
    load_phi(save(content="others", sha256="5ba")).require_store(built)
    for folder, split in (
        (save(content="others"), imported),  # neither is known to be the same
        (save(content="others", sha256="5ba"), imported),
        (save(content="others", sha256="777"), built),
    ):
        with pytest.raises(
            InvalidInputError, match=r"model\.safetensors was trained on another store, .*\.zarr is not"
        ):
            load_phi(folder).require_store(split)


def test_another_dimension(save: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"activations of dim 16, those of .*d\.zarr have 8; train a phi"):
        load_phi(save()).require_store(store(tmp_path / "d.zarr", dim=8))


def test_what_is_no_phi(save: Callable[..., Path], tmp_path: Path) -> None:
    for path, message in (
        (tmp_path / "nowhere", "no trained phi at .*nowhere; train one with `ppa train"),
        (save(method="triplet"), "must hold a phi, got triplet"),
        (save(phi={"kind": "phi2", "dim": 15}), "weights of phi2 must have the shapes"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            load_phi(path)
    write_training(tmp_path / "run" / "model.safetensors", {"x": torch.ones(1)}, {})
    with pytest.raises(ActstoreError, match="is no finished training: it says nothing of 'identity'"):
        load_phi(tmp_path / "run")


def test_a_name_is_that_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInputError, match=r"no trained phi at runs/phi1; train one with `ppa train --phi phi1`"):
        load_phi("phi1")
    for folder in ("runs/mine", "other"):
        Path(folder).mkdir(parents=True)
    with pytest.raises(InvalidInputError, match=r"no trained phi at runs/mine/model\.safetensors"):
        load_phi("mine")
    with pytest.raises(InvalidInputError, match=r"no trained phi at other/model\.safetensors"):
        load_phi("other")


def test_a_pickle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(pickle.dumps({"state_dict": [1, 2]}))
    with pytest.raises(ActstoreError, match=r"no safetensors file .*; expected a training"):
        load_phi(tmp_path)
