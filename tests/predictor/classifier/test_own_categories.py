"""Classifiers without phi: of one's own categories alone, and beside the network's own classifier."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from actstore.errors import InvalidInputError
from predictor.classifier.classifier import Classifier
from predictor.classifier.classifier_file import VERSION, load_classifier, save_classifier
from predictor.classifier.scoring import leave_one_out
from predictor.classifier.unknown import PHOTOS, Unknown
from predictor.phi.rule import OwnCentre
from predictor.protocol.head import Head

pytestmark = pytest.mark.numeric

DIM = 24


def clouds(count: int, per: int, seed: int = 0, spread: float = 0.4) -> dict[str, Tensor]:
    """Categories around points of their own, far from the origin, as activations are."""
    random = torch.Generator().manual_seed(seed)
    centres = 2 + torch.randn(count, 1, DIM, generator=random)
    found = centres + spread * torch.randn(count, per, DIM, generator=random)
    return {f"n{place}": rows for place, rows in enumerate(found)}


def head(rows: int = 5) -> Head:
    random = torch.Generator().manual_seed(7)
    return Head(torch.randn(rows, DIM, generator=random), torch.randn(rows, generator=random))


def own(count: int = 4, per: int = 3, **options: float) -> Classifier:
    made = Classifier.alone(DIM)
    made.adapt_all(clouds(count, per, **options))  # type: ignore[arg-type]
    return made


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def test_scores_of_own_categories_equal_a_loop() -> None:
    examples = {name: rows.double().numpy() for name, rows in clouds(4, 3).items()}
    queries = torch.cat(list(clouds(4, 2, seed=1).values()))
    centre = sum(rows.mean(0) for rows in examples.values()) / (4 + OwnCentre.PSEUDO)
    scale = OwnCentre.SHARPNESS / np.mean([np.linalg.norm(row - centre) for rows in examples.values() for row in rows])
    expected = np.array([
        [scale * (query - centre) @ unit(rows.mean(0) - centre) for rows in examples.values()]
        for query in queries.double().numpy()
    ])  # fmt: skip
    np.testing.assert_allclose(own().scores(queries), expected, rtol=1e-4, atol=1e-4)
    directions = np.array([unit(rows.mean(0) - centre) for rows in examples.values()])
    cosines = unit(queries.double().numpy() - centre) @ directions.T
    np.testing.assert_allclose(own().cosines(queries), cosines, atol=1e-5)
    np.testing.assert_allclose(own().familiarity(queries), cosines.max(1), atol=1e-5)


@pytest.mark.parametrize("aggregate", ["mean", "max"])
def test_beside_a_head_the_base_keeps_its_scores(aggregate: str) -> None:
    base, queries, centre = head(), torch.cat(list(clouds(3, 2, seed=1).values())), torch.full((DIM,), 1.5)
    made = Classifier.from_head(base, list("abcde"), centre, aggregate=aggregate, novel_bias=0.5)
    examples = clouds(3, 4)
    made.adapt_all(examples)
    scores = made.scores(queries)
    torch.testing.assert_close(scores[:, :5], base.scores(queries))
    for place, rows in enumerate(examples.values()):
        parts = rows if aggregate == "max" else rows.mean(0, keepdim=True)
        rows_of_it = torch.nn.functional.normalize(parts - centre)
        expected = ((queries - centre) @ rows_of_it.T).amax(1) + 0.5
        torch.testing.assert_close(scores[:, 5 + place], expected, rtol=1e-4, atol=1e-4)


def test_it_learns_one_by_one_and_forgets() -> None:
    made, examples = Classifier.alone(DIM), clouds(4, 3)
    with pytest.raises(InvalidInputError, match="knows no category yet; teach it one first"):
        made.predict(torch.ones(1, DIM))
    for name, rows in examples.items():
        made.adapt(name, rows)
    queries = torch.cat(list(clouds(4, 5, seed=1).values()))
    torch.testing.assert_close(made.scores(queries), own().scores(queries))  # the centre follows what was taught
    made.remove("n1")
    made.rename("n2", "zwei")
    fewer = Classifier.alone(DIM)
    fewer.adapt_all({"n0": examples["n0"], "zwei": examples["n2"], "n3": examples["n3"]})
    torch.testing.assert_close(made.scores(queries), fewer.scores(queries))
    assert made.threshold == pytest.approx(fewer.threshold)
    for name in ("n0", "zwei", "n3"):
        made.remove(name)
    assert made.categories == ()
    assert made.scores(queries).shape == (len(queries), 0)


def test_own_images_are_recognised_and_others_are_not() -> None:
    made = own(6, 5, seed=3)
    fresh = clouds(12, 20, seed=3, spread=0.4)  # the first draw of centres differs with the number of categories
    same = torch.cat([rows + 0.4 * torch.randn(rows.shape, generator=torch.Generator().manual_seed(5))
                      for rows in clouds(6, 5, seed=3).values()])  # fmt: skip
    names = [line[0][0] for line in made.predict(same, top=1)]
    assert np.mean([name == f"n{place // 5}" for place, name in enumerate(names)]) > 0.95
    assert made.is_known(same).float().mean() > 0.9
    strange = torch.cat(list(fresh.values()))[-100:]
    assert made.is_known(strange).float().mean() < 0.5


@pytest.mark.parametrize("aggregate", ["mean", "max"])
def test_leaving_one_out_equals_a_classifier_without_it(aggregate: str) -> None:
    """Where the centre does not depend on the examples, to rounding."""
    examples = {**clouds(3, 4), "single": clouds(1, 1, seed=8)["n0"]}

    def build(given: dict[str, Tensor]) -> Classifier:
        made = Classifier.from_head(head(), list("abcde"), torch.full((DIM,), 1.5), aggregate=aggregate)
        made.adapt_all(given)
        return made

    found = leave_one_out(build(examples))
    assert found.category.tolist() == [5] * 4 + [6] * 4 + [7] * 4
    assert found.example.tolist() == [0, 1, 2, 3] * 3
    for place, (category, example) in enumerate(zip(found.category.tolist(), found.example.tolist(), strict=True)):
        name = f"n{category - 5}"
        rows = examples[name]
        kept = torch.cat([rows[:example], rows[example + 1 :]])
        other = build({**examples, name: kept})
        torch.testing.assert_close(other.scores(rows[example])[0], found.scores[place], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(other.cosines(rows[example])[0], found.cosines[place], rtol=1e-4, atol=1e-4)
    assert len(leave_one_out(build(examples), most=2).category) == 6
    assert len(leave_one_out(build({"single": examples["single"]})).category) == 0


def test_a_threshold_of_many_examples_accepts_95_percent() -> None:
    made = own(5, 30)
    found = leave_one_out(made)
    accepted = (found.cosines.amax(1) >= made.threshold).float().mean()
    assert 0.9 <= accepted <= 0.99


def test_one_example_each_is_judged_by_the_prior() -> None:
    few, none = own(5, 1), Unknown(PHOTOS)
    assert few.threshold == pytest.approx(none.threshold([(1, np.empty(0))] * 5))
    assert few.threshold == pytest.approx(PHOTOS[1][0] - 1.645 * PHOTOS[1][1])
    lower = Unknown({1: (0.1, 0.05)}).threshold([(1, np.empty(0))])
    assert lower < few.threshold  # type: ignore[operator]


def test_by_hand() -> None:
    made = own()
    assert made.unknown is not None
    made.set_unknown(made.unknown.set_at(0.75))
    assert made.threshold == 0.75
    made.set_unknown(None)
    assert made.threshold is None
    assert made.is_known(torch.randn(3, DIM)).all()
    for bad in (2.0, float("nan")):
        with pytest.raises(InvalidInputError, match="a familiarity from -1 to 1"):
            Unknown(PHOTOS).set_at(bad)


def test_the_base_has_a_threshold_of_its_own() -> None:
    """Moved by the difference of both, so that one number serves."""
    made = Classifier.from_head(head(), list("abcde"), unknown=Unknown(PHOTOS, base_threshold=0.2))
    made.adapt_all(clouds(4, 6))
    queries = torch.cat(list(clouds(3, 4, seed=1).values()))
    cosines, threshold = made.cosines(queries), made.threshold
    assert threshold is not None
    known = (cosines[:, :5].amax(1) >= 0.2) | (cosines[:, 5:].amax(1) >= threshold)
    assert torch.equal(made.is_known(queries), known)
    for name in list(made.support):
        made.remove(name)
    assert made.threshold == 0.2


@pytest.mark.parametrize("kind", ["own", "beside", "centred"])
def test_files_of_every_kind(tmp_path: Path, kind: str) -> None:
    made = Classifier.alone(DIM, about={"network": {"backbone": "x"}})
    if kind != "own":
        centre = torch.ones(DIM) if kind == "centred" else None
        made = Classifier.from_head(head(), list("abcde"), centre, unknown=Unknown(PHOTOS, 0.2, 0.3))
    made.adapt_all(clouds(4, 3))
    save_classifier(tmp_path / "c.safetensors", made)
    again, queries = load_classifier(tmp_path / "c.safetensors"), torch.cat(list(clouds(3, 4, seed=1).values()))
    assert torch.equal(again.scores(queries), made.scores(queries))
    assert torch.equal(again.familiarity(queries), made.familiarity(queries))
    assert (again.threshold, again.unknown, again.about) == (made.threshold, made.unknown, made.about)
    with pytest.raises(InvalidInputError, match="made without a phi"):
        _ = again.phi


def test_a_file_of_a_later_version_is_refused_as_such(tmp_path: Path) -> None:
    from actstore.storage.tensor_file import read_tensors, write_tensors

    file = tmp_path / "c.safetensors"
    save_classifier(file, own())
    tensors, about = read_tensors(file, "classifier")
    about.pop("kind")
    write_tensors(file, "classifier", tensors, {**about, "version": VERSION + 1})
    with pytest.raises(InvalidInputError, match=f"version {VERSION + 1}"):
        load_classifier(file)


def test_one_category_alone_is_known_by_itself() -> None:
    made = own(1, 4)
    assert [name for name, _ in made.predict(clouds(1, 4)["n0"])[0]] == ["n0"]
    assert made.is_known(clouds(1, 4)["n0"]).all()
