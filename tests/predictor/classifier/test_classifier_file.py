from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from actstore.errors import ActstoreError
from actstore.storage.tensor_file import read_tensors, write_tensors
from predictor.classifier.classifier import Classifier
from predictor.classifier.classifier_file import load_classifier, save_classifier
from predictor.phi.network import Phi

pytestmark = pytest.mark.numeric


def positive(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def classifier(make_phi: Callable[..., Phi]) -> Classifier:
    phi = make_phi(bias=True, query_norm=True, input_norm=True)
    about = {"network": {"backbone": "small"}, "store": "x.zarr"}
    found = Classifier.from_means(
        phi, ("ant", "bée"), positive(2, 16), aggregate="mean", novel_bias=0.1 + 0.2, about=about
    )
    found.adapt_all({"über 'x'\n": positive(3, 16, seed=1), "okapi": positive(1, 16, seed=2)})
    return found


def test_a_round_trip_is_exact(classifier: Classifier, tmp_path: Path) -> None:
    save_classifier(tmp_path / "c.safetensors", classifier)
    again, queries = load_classifier(tmp_path / "c.safetensors"), positive(5, 16, seed=3)
    assert torch.equal(again.scores(queries), classifier.scores(queries))
    assert again.predict(queries) == classifier.predict(queries)
    assert (again.categories, again.base) == (classifier.categories, classifier.base)
    assert (again.novel_bias, again.aggregate, again.about) == (0.1 + 0.2, "mean", classifier.about)
    assert again.phi.spec == classifier.phi.spec
    save_classifier(tmp_path / "d.safetensors", again)
    assert (tmp_path / "c.safetensors").read_bytes() == (tmp_path / "d.safetensors").read_bytes()


def test_it_can_go_on_learning(classifier: Classifier, tmp_path: Path) -> None:
    save_classifier(tmp_path / "c.safetensors", classifier)
    again, queries = load_classifier(tmp_path / "c.safetensors"), positive(5, 16, seed=3)
    for one in (again, classifier):
        one.adapt("okapi", positive(2, 16, seed=8), extend=True)
        one.calibrate(0.0, "max")  # needs every example, not what was made of them
    assert torch.equal(again.scores(queries), classifier.scores(queries))


def test_without_novel_categories(make_phi: Callable[..., Phi], tmp_path: Path) -> None:
    save_classifier(tmp_path / "c.safetensors", Classifier.from_means(make_phi(), ("a", "b"), positive(2, 16)))
    assert load_classifier(tmp_path / "c.safetensors").categories == ("a", "b")


class Malicious:
    """A pickle that leaves a file behind when it is opened as one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_a_pickle_is_refused_and_never_run(tmp_path: Path) -> None:
    file, trace = tmp_path / "c.safetensors", tmp_path / "it ran"
    file.write_bytes(pickle.dumps(Malicious(trace)))
    refused(file, "no safetensors file .*expected a classifier")
    torch.save({"x": Malicious(trace)}, file)
    refused(file, "no safetensors file .*expected a classifier")
    assert not trace.exists()


@pytest.mark.parametrize("kept", [0, 5, 100, -1])
def test_a_truncated_file(classifier: Classifier, tmp_path: Path, kept: int) -> None:
    file = tmp_path / "c.safetensors"
    save_classifier(file, classifier)
    file.write_bytes(file.read_bytes()[:kept])
    refused(file, "is damaged")


def test_files_of_something_else(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    file = tmp_path / "c.safetensors"
    refused(file, "no classifier at")
    save_file({"weight": torch.ones(2)}, file)
    refused(file, "must be a classifier, got a safetensors file of something else")
    write_tensors(file, "training", {"weight": torch.ones(2)}, {})
    refused(file, "must be a classifier, got a training")


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors, about: tensors.pop("base_parameters"),
        lambda tensors, about: tensors.pop("rule.layers.0.weight"),
        lambda tensors, about: about.pop("novel"),
        lambda tensors, about: about.update(novel=[["okapi", 7]]),
        lambda tensors, about: about.update(novel=[["okapi"]]),
        lambda tensors, about: about.update(novel=[["ant", 4]]),
        lambda tensors, about: about.update(aggregate="sum"),
        lambda tensors, about: about.update(novel_bias="much"),
        lambda tensors, about: about["rule"].update(spec={"kind": "phi9", "dim": 16}),
        lambda tensors, about: about["rule"].update(spec={"size": 16}),
        lambda tensors, about: about["rule"].update(kind="magic"),
        lambda tensors, about: tensors["support"].fill_(torch.nan),
    ],
)
def test_contents_that_do_not_belong_together(
    classifier: Classifier, tmp_path: Path, change: Callable[[dict[str, Any], dict[str, Any]], Any]
) -> None:
    file = tmp_path / "c.safetensors"
    save_classifier(file, classifier)
    tensors, about = read_tensors(file, "classifier")
    change(tensors, about)
    write_tensors(file, "classifier", tensors, {key: value for key, value in about.items() if key != "kind"})
    refused(file, "is damaged: .*make it again with `ppa adapt`")


def refused(file: Path, message: str) -> None:
    with pytest.raises(ActstoreError, match=message) as error:
        load_classifier(file)
    assert "\n" not in str(error.value)
    assert str(file) in str(error.value)
