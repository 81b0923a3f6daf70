"""A network's own categories as the background of unknown: they compete, but not those that examples resemble."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from predictor import Classifier, load_classifier
from predictor.classifier.unknown import PROFILE, PSEUDO, TEMPERATURE, Background

DIM, CLASSES = 24, 120
Examples = dict[str, Tensor]


def background(seed: int = 0) -> Background:
    random = torch.Generator().manual_seed(seed)
    weight = torch.randn(CLASSES, DIM, generator=random).half().float()
    return Background(weight, torch.randn(CLASSES, generator=random))


def photos(towards: Tensor, count: int, seed: int) -> Tensor:
    """Activations (count, dim), none negative, of a category that the network knows by this direction."""
    noise = torch.randn(count, DIM, generator=torch.Generator().manual_seed(seed))
    return (4 * towards / towards.norm() + 0.5 * noise).clamp_min(0)


@pytest.fixture
def examples() -> Examples:
    weight = background().weight
    return {str(place): photos(weight[place], 3, place) for place in range(5)}


def plain_alike(known: Background, examples: Examples, queries: Tensor) -> np.ndarray:
    """The formula in numpy, float64."""
    weight, bias = known.weight.double().numpy(), known.bias.double().numpy()

    def profile(values: np.ndarray) -> np.ndarray:
        scores = (values @ weight.T + bias) / TEMPERATURE
        shares = np.exp(scores - scores.max(1, keepdims=True))
        return np.sqrt(shares / shares.sum(1, keepdims=True))

    def unit(values: np.ndarray) -> np.ndarray:
        return values / np.linalg.norm(values, axis=-1, keepdims=True)

    support = [rows.double().numpy() for rows in examples.values()]
    means = np.stack([np.sqrt(rows).mean(0) for rows in support])
    centre = means.sum(0) / (len(means) + PSEUDO)
    asked = queries.double().numpy()
    cosines = unit(np.sqrt(asked) - centre) @ unit(means - centre).T
    profiles = profile(asked) @ np.stack([profile(rows).mean(0) for rows in support]).T
    return (1 - PROFILE) * cosines + PROFILE * profiles


def test_familiarity_is_as_written(examples: Examples) -> None:
    classifier = Classifier.alone(DIM, background())
    classifier.adapt_all(examples)
    queries = photos(background().weight[2], 7, 70)
    expected = plain_alike(background(), examples, queries).max(1)
    np.testing.assert_allclose(classifier.familiarity(queries).numpy(), expected, atol=1e-5)


def test_an_example_is_left_out_of_its_own_category(examples: Examples) -> None:
    fitted = background().fitted(list(examples.values()))
    for place, (name, rows) in enumerate(examples.items()):
        for number, found in enumerate(fitted.left_out(30)[place].tolist()):
            rest = {**examples, name: torch.cat([rows[:number], rows[number + 1 :]])}
            others = background().fitted(list(rest.values()))
            others = type(others)(others.background, fitted.centre, others.profiles, others.roots)
            assert found == pytest.approx(float(others.alike(rows[number : number + 1]).max()), abs=1e-5)


def test_a_single_example_has_nothing_to_be_compared_with(examples: Examples) -> None:
    fitted = background().fitted([examples["0"][:1], examples["1"]])
    assert [len(found) for found in fitted.left_out(2)] == [0, 2]


def test_categories_of_the_network_make_their_own_photos_unknown_but_not_taught_ones(examples: Examples) -> None:
    classifier = Classifier.alone(DIM, background())
    classifier.adapt_all(examples)
    taught = torch.cat([photos(background().weight[place], 10, 100 + place) for place in range(5)])
    others = torch.cat([photos(background().weight[place], 10, 100 + place) for place in range(50, 60)])
    assert classifier.is_known(taught).float().mean() >= 0.85
    assert classifier.is_known(others).float().mean() <= 0.1


def test_the_file_keeps_it(tmp_path: Path, examples: Examples) -> None:
    classifier = Classifier.alone(DIM, background())
    classifier.adapt_all(examples)
    classifier.save(tmp_path / "c.safetensors")
    again = load_classifier(tmp_path / "c.safetensors")
    queries = photos(background().weight[50], 5, 5)
    assert torch.equal(again.familiarity(queries), classifier.familiarity(queries))
    assert again.threshold == classifier.threshold


def test_without_one_a_file_is_of_the_version_before(tmp_path: Path, examples: Examples) -> None:
    classifier = Classifier.alone(DIM)
    classifier.adapt_all(examples)
    classifier.save(tmp_path / "c.safetensors")
    assert load_classifier(tmp_path / "c.safetensors").background is None


def test_what_is_taught_later_changes_it(examples: Examples) -> None:
    classifier = Classifier.alone(DIM, background())
    classifier.adapt_all(examples)
    other = photos(background().weight[50], 4, 8)
    before = classifier.familiarity(other)
    classifier.adapt("another", other)
    assert (classifier.familiarity(other) > before).all()
    classifier.remove("another")
    assert torch.equal(classifier.familiarity(other), before)


def test_an_onnx_graph_knows_what_the_classifier_knows(examples: Examples) -> None:
    pytest.importorskip("onnxruntime")
    from predictor.classifier.export import start_session
    from predictor.classifier.onnx_graph import KNOWN, known_nodes, make_model, score_nodes

    classifier = Classifier.alone(DIM, background())
    classifier.adapt_all(examples)
    parts = score_nodes(classifier), known_nodes(classifier)
    constants = {name: value for _, given in parts for name, value in given.items()}
    graph = make_model([nodes for nodes, _ in parts], f"float[1, {DIM}] activations", ", ".join(KNOWN), constants)
    _, session = start_session(graph)
    queries = torch.cat([photos(background().weight[place], 3, place) for place in (1, 60)])
    for row in queries:
        familiarity, known = session.run(["familiarity", "known"], {"activations": row[None].numpy()})
        np.testing.assert_allclose(familiarity, classifier.familiarity(row[None]).numpy(), atol=1e-5)
        assert known.tolist() == classifier.is_known(row[None]).tolist()
