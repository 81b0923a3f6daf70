from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from actstore.errors import ActstoreError, DamagedError, InvalidInputError
from actstore.storage.tensor_file import below, read_tensors, write_tensors

TENSORS = {"a.x": torch.tensor([1.0, -0.0, 1e-40]), "a.y": torch.tensor([[2**60]]), "b": torch.empty(0, 3)}
ABOUT = {"name": "é'\n", "numbers": [0.1 + 0.2, 3, None], "nested": {"x": True}}


def test_a_round_trip_is_exact(tmp_path: Path) -> None:
    file = tmp_path / "new" / "t.safetensors"
    write_tensors(file, "thing", TENSORS, ABOUT)
    tensors, about = read_tensors(file, "thing")
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor)
    assert torch.signbit(tensors["a.x"][1])
    assert about == {"kind": "thing", **ABOUT}


def test_views_parts_and_gradients_are_written_as_they_look(tmp_path: Path) -> None:
    view, part, learnt = (torch.arange(12.0).reshape(3, 4) for _ in range(3))
    given = {"view": view.T, "part": part[1:], "learnt": torch.nn.Parameter(learnt)}
    write_tensors(tmp_path / "t", "thing", given, {})
    tensors, _ = read_tensors(tmp_path / "t", "thing")
    assert all(torch.equal(tensors[name], given[name]) for name in given)


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    write_tensors(tmp_path / "t", "thing", TENSORS, {"n": 1})
    with pytest.raises(TypeError):
        write_tensors(tmp_path / "t", "thing", TENSORS, {"n": object()})
    assert read_tensors(tmp_path / "t", "thing")[1]["n"] == 1
    assert [file.name for file in tmp_path.iterdir()] == ["t"]


class Malicious:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("save", [lambda thing, file: file.write_bytes(pickle.dumps(thing)), torch.save])
def test_a_pickle_is_never_opened(tmp_path: Path, save: Any) -> None:
    save(Malicious(tmp_path / "it ran"), tmp_path / "t")
    with pytest.raises(DamagedError, match=r"t is damaged or no safetensors file .*; expected a thing"):
        read_tensors(tmp_path / "t", "thing")
    assert not (tmp_path / "it ran").exists()


def test_what_is_no_such_file(tmp_path: Path) -> None:
    file = tmp_path / "t"
    for path in (file, tmp_path):
        with pytest.raises(InvalidInputError, match="no thing at"):
            read_tensors(path, "thing")
    write_tensors(file, "other", TENSORS, {})
    with pytest.raises(InvalidInputError, match="t must be a thing, got a other"):
        read_tensors(file, "thing")
    for metadata in (None, {"actstore": "not json"}, {"actstore": "[1]"}, {"actstore": "{}"}, {"else": "x"}):
        save_file({"x": torch.ones(1)}, file, metadata)
        with pytest.raises(InvalidInputError, match="must be a thing, got a safetensors file of something else"):
            read_tensors(file, "thing")


@pytest.mark.parametrize("kept", [0, 7, 8, 60, -1])
def test_a_truncated_file(tmp_path: Path, kept: int) -> None:
    write_tensors(tmp_path / "t", "thing", {"x": torch.ones(50)}, {})
    (tmp_path / "t").write_bytes((tmp_path / "t").read_bytes()[:kept])
    with pytest.raises(ActstoreError, match="damaged") as error:
        read_tensors(tmp_path / "t", "thing")
    assert "\n" not in str(error.value)


def test_names_below_a_prefix() -> None:
    assert list(below(TENSORS, "a.")) == ["x", "y"]
    assert below(TENSORS, "c.") == {}
