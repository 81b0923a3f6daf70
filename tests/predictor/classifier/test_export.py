"""A classifier without this library gives the same answers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from actstore.errors import InvalidInputError
from predictor.classifier.classifier import Classifier
from predictor.classifier.export import export_onnx, export_torch
from predictor.classifier.onnx_graph import rows_of_category
from predictor.phi.network import Phi
from predictor.phi.rule import LinearRows

pytestmark = pytest.mark.numeric

Make = Callable[..., Classifier]
SETTINGS = [
    {"aggregate": aggregate, "query_norm": norm, "novel_bias": bias}
    for aggregate, norm, bias in (("max", False, 0.0), ("max", True, 0.7), ("mean", True, -0.2), ("mean", False, 0.3))
]


@pytest.fixture
def make(make_phi: Callable[..., Phi]) -> Make:
    def build(aggregate: Any = "max", novel_bias: float = 0.0, learnt: bool = True, **options: Any) -> Classifier:
        random = torch.Generator().manual_seed(0)
        phi = make_phi(bias=True, dim=24, **options)
        base = [f"base {number}" for number in range(12)]
        means = torch.rand(12, 24, generator=random)
        found = Classifier.from_means(phi, base, means, aggregate=aggregate, novel_bias=novel_bias, about={"x": 1})
        for name, shots in (("é", 3), ("n1", 1), ("n2", 5), ("n3", 2)) if learnt else ():
            found.adapt(name, torch.rand(shots, 24, generator=random))
        return found

    return build


@pytest.fixture
def queries() -> torch.Tensor:
    """1,000 rows with some zeros, as activations have; one is nothing else."""
    rows = torch.rand(1000, 24, generator=torch.Generator().manual_seed(7)) - 0.2
    rows[17] = 0
    return rows.clamp_min(0) * torch.linspace(0.1, 20, 1000)[:, None]


def assert_same_top5(classifier: Classifier, queries: torch.Tensor, scores: Any, names: list[str]) -> None:
    """The same categories in the same order; two may change places only where their scores are equal to rounding."""
    expected = classifier.predict(queries)
    own = classifier.scores(queries).numpy()
    order = np.argsort(-np.asarray(scores), axis=1, kind="stable")[:, :5]
    different = 0
    for row, line in enumerate(expected):
        for rank, (name, _) in enumerate(line):
            found = names[order[row, rank]]
            if found != name:
                different += 1
                gap = abs(own[row, order[row, rank]] - own[row, classifier.categories.index(name)])
                assert gap <= 1e-5 * np.abs(own[row]).max()
    assert different <= 10 + 5  # of 5,000; the row of zeros may be in any order
    np.testing.assert_allclose(scores, own, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("settings", SETTINGS)
def test_onnx(make: Make, queries: torch.Tensor, tmp_path: Path, settings: dict[str, Any]) -> None:
    classifier, file = make(**settings), tmp_path / "c.onnx"
    assert export_onnx(classifier, file) < 1e-4
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    scores, probabilities = session.run(["scores", "probabilities"], {"activations": queries.numpy()})
    names = json.loads(session.get_modelmeta().custom_metadata_map["categories"])
    assert names == list(classifier.categories)
    assert_same_top5(classifier, queries, scores, names)
    np.testing.assert_allclose(probabilities, classifier.scores(queries).softmax(1), rtol=1e-3, atol=1e-6)
    onnx.checker.check_model(onnx.load(file), full_check=True)
    about = json.loads((tmp_path / "c.json").read_text("utf-8"))
    assert about == {"categories": names, "dim": 24, "x": 1}


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_plain_linear_layer(make: Make, queries: torch.Tensor, tmp_path: Path, settings: dict[str, Any]) -> None:
    """As the docstring says it is used, with torch alone."""
    classifier, file = make(**settings), tmp_path / "linear.pt"
    export_torch(classifier, file)
    state = torch.load(file, weights_only=True)
    category, scale = state.pop("row_category"), state.pop("query_scale", None)
    assert (scale is not None) == settings["query_norm"]
    layer = torch.nn.Linear(24, len(category))
    layer.load_state_dict(state)
    inputs = queries if scale is None else torch.nn.functional.normalize(queries, dim=1) * scale
    rows = layer(inputs).detach()
    names = json.loads((tmp_path / "linear.json").read_text("utf-8"))["categories"]
    scores = np.stack([rows[:, category == place].amax(1).numpy() for place in range(len(names))], axis=1)
    assert_same_top5(classifier, queries, scores, names)


def test_base_categories_alone(make: Make, queries: torch.Tensor, tmp_path: Path) -> None:
    classifier = make(learnt=False)
    export_onnx(classifier, tmp_path / "c.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "c.onnx", providers=["CPUExecutionProvider"])
    (scores,) = session.run(["scores"], {"activations": queries.numpy()})
    assert_same_top5(classifier, queries, scores, list(classifier.categories))


@given(st.lists(st.integers(1, 6), min_size=1, max_size=9))
def test_every_category_has_its_rows_and_no_other(counts: list[int]) -> None:
    category = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    table = rows_of_category(
        LinearRows(torch.empty(len(category), 1), torch.empty(len(category)), category), len(counts)
    )
    assert table.shape == (len(counts), max(counts))
    for place, rows in enumerate(table):
        assert set(rows.tolist()) == set(torch.nonzero(category == place)[:, 0].tolist())


def test_a_graph_that_disagrees_is_not_written(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong:
        def __init__(self, data: bytes, providers: list[str]) -> None: ...

        def run(self, names: list[str], inputs: dict[str, Any]) -> list[Any]:
            return [np.zeros((len(inputs["activations"]), 16), np.float32)]

    monkeypatch.setattr(onnxruntime, "InferenceSession", Wrong)
    with pytest.raises(InvalidInputError, match=r"onnxruntime's scores differ by .*; not written"):
        export_onnx(make(), tmp_path / "c.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("module", ["onnx", "onnxruntime"])
def test_without_onnx_it_says_what_to_install(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InvalidInputError, match=rf"ONNX export needs {module}: pip install 'actstore\[onnx\]'"):
        export_onnx(make(), tmp_path / "c.onnx")


@pytest.mark.parametrize("export", [export_onnx, export_torch])
def test_the_names_must_not_overwrite_the_export(make: Make, tmp_path: Path, export: Callable[..., Any]) -> None:
    with pytest.raises(InvalidInputError, match=r"c\.json is where the category names go"):
        export(make(), tmp_path / "c.json")
