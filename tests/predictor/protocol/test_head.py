"""The classifier of the base categories, from every kind of file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from actstore.backbones.construction import build_network
from actstore.backbones.weights import save_weights
from actstore.errors import InvalidInputError
from predictor.protocol.head import Head, head_for, read_head, write_head

pytestmark = pytest.mark.numeric

HEAD = Head(torch.arange(6.0).view(3, 2), torch.tensor([1.0, 2.0, 3.0]), ("a", "b", "c"))


def test_written_and_read_back(tmp_path: Path) -> None:
    write_head(tmp_path / "head.safetensors", HEAD)
    found = read_head(tmp_path / "head.safetensors")
    assert torch.equal(found.weight, HEAD.weight)
    assert torch.equal(found.bias, HEAD.bias)
    assert found.classes == ("a", "b", "c")


def test_from_a_network_with_its_classifier(tmp_path: Path) -> None:
    network = build_network("small", 3)
    save_weights(tmp_path / "best.safetensors", network, "small", ["x", "y", "z"])
    found = read_head(tmp_path / "best.safetensors")
    activations = torch.rand(4, 256, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(found.scores(activations), network.fc(activations))
    assert found.classes == ("x", "y", "z")


def test_from_an_npz_whose_rows_are_some_of_its_classes(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, fc_weight=np.ones((2, 4)), fc_bias=np.zeros(2), classes=np.array(["a", "b", "c"]), base=[2, 0])
    assert read_head(path).classes == ("c", "a")
    assert read_head(path).weight.dtype == torch.float32
    np.savez(path, fc_weight=np.ones((2, 4)), fc_bias=np.zeros(2))
    assert read_head(path).classes is None


def test_the_real_one_reaches_the_accuracy_its_readme_states(real_activations: Path) -> None:
    head = read_head(real_activations)
    with np.load(real_activations) as file:
        base = file["base"]
        chosen = np.isin(file["val_labels"], base)
        queries = torch.from_numpy(file["val"][chosen].astype(np.float32))
        targets = np.searchsorted(base, file["val_labels"][chosen])
    assert np.all(np.diff(base) > 0)
    assert np.mean(head.scores(queries).argmax(1).numpy() == targets) == pytest.approx(0.568, abs=0.001)


def test_rows_follow_the_order_of_the_split() -> None:
    ordered = head_for(HEAD, ["c", "a"], 2)
    assert ordered.weight.tolist() == [[4.0, 5.0], [0.0, 1.0]]
    assert ordered.bias.tolist() == [3.0, 1.0]
    assert ordered.classes == ("c", "a")
    unnamed = Head(HEAD.weight, HEAD.bias)
    assert head_for(unnamed, ["u", "v", "w"], 2).classes == ("u", "v", "w")


@pytest.mark.parametrize(
    ("head", "base", "dim", "expected"),
    [
        (HEAD, ["a", "d", "e"], 2, "no row for base class 'd' and 1 more"),
        (HEAD, ["a"], 5, "reads activations of dim 2, the store's have 5"),
        (Head(HEAD.weight, HEAD.bias), ["a", "b"], 2, "has 3 rows without names, the split 2 base classes"),
    ],
)
def test_a_head_of_something_else_is_refused(head: Head, base: list[str], dim: int, expected: str) -> None:
    with pytest.raises(InvalidInputError, match=expected):
        head_for(head, base, dim)


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        ({"fc_weight": np.ones((2, 3))}, "has no array 'fc_bias'; it has fc_weight"),
        ({"fc_weight": np.ones((2, 3)), "fc_bias": np.ones(3)}, r"a weight \(n_class, dim\) and a bias"),
        ({"fc_weight": np.full((2, 3), np.nan), "fc_bias": np.ones(2)}, "hold a NaN or an infinity"),
        (
            {"fc_weight": np.ones((2, 3)), "fc_bias": np.ones(2), "classes": np.array(["a"])},
            "must name 2 classes, got 1",
        ),
        (
            {"fc_weight": np.ones((1, 3)), "fc_bias": np.ones(1), "classes": np.array(["a"]), "base": np.array([1])},
            "must be places in its 1 classes",
        ),
    ],
)
def test_a_bad_npz_is_refused_by_name(tmp_path: Path, arrays: dict[str, Any], expected: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(InvalidInputError, match=expected) as raised:
        read_head(tmp_path / "a.npz")
    assert str(tmp_path / "a.npz") in str(raised.value)


def test_a_file_without_a_classifier_is_refused(tmp_path: Path) -> None:
    save_file({"conv1.weight": torch.ones(2, 2)}, tmp_path / "x.safetensors")
    with pytest.raises(InvalidInputError, match="holds no classifier"):
        read_head(tmp_path / "x.safetensors")
    (tmp_path / "x.npz").write_bytes(b"no archive")
    with pytest.raises(InvalidInputError, match=r"is damaged or no \.npz file"):
        read_head(tmp_path / "x.npz")
    with pytest.raises(InvalidInputError, match="no head file at"):
        read_head(tmp_path / "absent.npz")
