from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import actstore
from actstore.errors import InvalidInputError
from predictor.classifier.classifier import Classifier
from predictor.classifier.classifier_file import load_classifier, save_classifier
from predictor.phi.network import Phi, PhiSpec
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.method import Aggregate
from predictor.protocol.rows import class_means

pytestmark = pytest.mark.numeric

BASE = ("ant", "bee", "cat")
Make = Callable[..., Classifier]


def positive(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def make(make_phi: Callable[..., Phi]) -> Make:
    """Three base categories and two novel ones of 3 and 1 examples."""

    def build(aggregate: Aggregate = "max", novel_bias: float = 0.0, learnt: bool = True, **options: Any) -> Classifier:
        found = Classifier.from_means(
            make_phi(**options), BASE, positive(3, 16), aggregate=aggregate, novel_bias=novel_bias
        )
        if learnt:
            found.adapt("okapi", positive(3, 16, seed=1))
            found.adapt("quokka", positive(16, seed=2))
        return found

    return build


@pytest.mark.parametrize("aggregate", ["max", "mean"])
@pytest.mark.parametrize("query_norm", [True, False])
def test_scores_equal_a_loop(make: Make, aggregate: Aggregate, query_norm: bool) -> None:
    classifier = make(aggregate, novel_bias=0.4, query_norm=query_norm, bias=True)
    phi, queries = classifier.phi, positive(6, 16, seed=9)
    examples = {"okapi": positive(3, 16, seed=1), "quokka": positive(1, 16, seed=2)}
    expected = np.zeros((6, 5))
    for row, query in enumerate(queries):
        for column, mean in enumerate(positive(3, 16)):
            expected[row, column] = float(phi.logits(phi(mean[None]), query[None]))
        for column, given in enumerate(examples.values(), start=3):
            rows = [given.mean(0)] if aggregate == "mean" else list(given)
            expected[row, column] = 0.4 + max(float(phi.logits(phi(one[None]), query[None])) for one in rows)
    np.testing.assert_allclose(classifier.scores(queries), expected, rtol=1e-4, atol=1e-5)
    assert classifier.categories == (*BASE, "okapi", "quokka")
    assert len(classifier.rows.weight) == (7 if aggregate == "max" else 5)


def test_the_maximum_is_not_the_mean(make: Make) -> None:
    queries = positive(6, 16, seed=9)
    difference = make("max").scores(queries) - make("mean").scores(queries)
    same = difference[:, [0, 1, 2, 4]]  # the base, and a single example: the product of more rows may round otherwise
    torch.testing.assert_close(same, torch.zeros(6, 4), rtol=0, atol=1e-4)
    assert difference[:, 3].abs().min() > 1e-3


def test_base_parameters_are_phi_of_the_mean(
    store: actstore.ActivationStore, categories: CategorySplit, make_phi: Callable[..., Phi]
) -> None:
    """The shortcut of Equation 7, for phi1 too; see test_phi for what it stands for."""
    phi, train = make_phi("phi1"), store["train"]
    classifier = Classifier.from_means(phi, categories.base, class_means(train, categories.base))
    for place, name in enumerate(categories.base):
        mean = torch.from_numpy(train.of_class(name).mean(0, dtype=np.float64)).float()
        torch.testing.assert_close(classifier.rows.weight[place], phi(mean[None])[0])


def test_one_by_one_or_all_at_once(make: Make) -> None:
    one, all_of_them = make(learnt=False), make(learnt=False)
    examples = {f"n{count}": positive(count, 16, seed=count) for count in (1, 4, 2)}
    for name, rows in examples.items():
        one.adapt(name, rows)
    all_of_them.adapt_all(examples)
    queries = positive(5, 16, seed=9)
    assert one.categories == all_of_them.categories == (*BASE, "n1", "n4", "n2")
    assert torch.equal(one.scores(queries), all_of_them.scores(queries))
    assert one.rows.category.tolist() == [0, 1, 2, 3, 4, 4, 4, 4, 5, 5]


def test_learning_in_parts_is_learning_at_once(make: Make) -> None:
    parts, whole, rows = make(learnt=False), make(learnt=False), positive(3, 16, seed=1)
    parts.adapt("okapi", rows[:1])
    before = parts.scores(rows)
    parts.adapt("okapi", rows[1:], extend=True)
    whole.adapt("okapi", rows)
    assert torch.equal(parts.scores(rows), whole.scores(rows))
    assert not torch.equal(parts.scores(rows), before)


@pytest.mark.parametrize("convert", [torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.double])
def test_lists_arrays_and_tensors_are_the_same(make: Make, convert: Callable[[torch.Tensor], Any]) -> None:
    classifier, rows = make(learnt=False), positive(2, 16, seed=1)
    classifier.adapt("okapi", convert(rows))
    assert torch.equal(classifier.support["okapi"], rows)


@pytest.mark.parametrize("convert", [torch.Tensor.clone, torch.Tensor.numpy])
def test_examples_are_kept_whatever_becomes_of_the_memory_they_came_in(
    make: Make, convert: Callable[[torch.Tensor], Any]
) -> None:
    classifier, rows = make(learnt=False), positive(2, 16, seed=1)
    given = convert(rows)
    classifier.adapt("okapi", given)
    given[:] = 7
    assert torch.equal(classifier.support["okapi"], positive(2, 16, seed=1))


def test_remove_and_rename(make: Make) -> None:
    classifier, queries = make(), positive(4, 16, seed=9)
    before = classifier.scores(queries)
    classifier.rename("okapi", "giraffe")
    assert list(classifier.categories) == [*BASE, "giraffe", "quokka"]  # it keeps its place
    assert torch.equal(classifier.scores(queries), before)
    classifier.remove("giraffe")
    assert list(classifier.categories) == [*BASE, "quokka"]
    torch.testing.assert_close(classifier.scores(queries), before[:, [0, 1, 2, 4]], rtol=1e-4, atol=1e-5)


def test_a_name_that_cannot_be_written_is_refused(make: Make) -> None:
    classifier = make()
    with pytest.raises(InvalidInputError, match="udcff"):
        classifier.adapt("\udcff", positive(2, 16))
    with pytest.raises(InvalidInputError, match="udcff"):
        classifier.rename("okapi", "\udcff")
    assert list(classifier.categories) == [*BASE, "okapi", "quokka"]


def test_predictions_are_the_softmax_in_order(make: Make) -> None:
    classifier, queries = make(novel_bias=0.1), positive(4, 16, seed=9)
    scores = classifier.scores(queries).double().numpy()
    shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    for line, row in zip(classifier.predict(queries, top=3), shares, strict=True):
        best = np.argsort(-row)[:3]
        assert [name for name, _ in line] == [classifier.categories[place] for place in best]
        assert [share for _, share in line] == pytest.approx(row[best], rel=1e-5)
    assert sum(share for _, share in classifier.predict(queries[0], top=50)[0]) == pytest.approx(1, rel=1e-5)


def test_of_equal_scores_the_lower_category_comes_first(make_phi: Callable[..., Phi]) -> None:
    same = positive(16)
    classifier = Classifier.from_means(make_phi(), BASE, same.repeat(3, 1))
    classifier.adapt_all({"x": same, "y": same})
    assert [name for name, _ in classifier.predict(same)[0]] == [*BASE, "x", "y"]


@pytest.mark.parametrize("aggregate", ["max", "mean"])
@pytest.mark.parametrize("count", [1, 7, 60])
def test_equal_examples_score_equally_wherever_they_stand(
    make_phi: Callable[..., Phi], aggregate: Aggregate, count: int
) -> None:
    """To the last bit, though a product may round its columns differently."""
    means, shown = positive(count, 16), positive(count, 2, 16, seed=1)
    twice = [f"{name} {place}" for name in ("a", "b") for place in range(count)]
    classifier = Classifier.from_means(make_phi(), twice, means.repeat(2, 1), aggregate=aggregate, novel_bias=0.3)
    classifier.adapt_all({f"{name} {place}": shown[place] for name in ("c", "d", "e") for place in range(count)})
    scores = classifier.scores(positive(33, 16, seed=2)).split(count, dim=1)
    for first, others in ((0, (1,)), (2, (3, 4))):
        for other in others:
            assert torch.equal(scores[first], scores[other])
    alone = Classifier.from_means(make_phi(), twice[:count], means, aggregate=aggregate, novel_bias=0.3)
    alone.adapt_all({f"c {place}": shown[place] for place in range(count)})
    together = torch.cat([scores[0], scores[2]], 1)
    torch.testing.assert_close(together, alone.scores(positive(33, 16, seed=2)), rtol=1e-4, atol=1e-5)


def test_categories_far_behind_keep_their_order(make: Make) -> None:
    """Their probabilities are all zero, their scores are not."""
    classifier, query = make(), 1000 * positive(16, seed=9)
    scores = classifier.scores(query)[0]
    expected = [classifier.categories[place] for place in np.argsort(-scores.numpy(), kind="stable")]
    assert [name for name, _ in classifier.predict(query)[0]] == expected
    assert (scores.softmax(0) == 0).sum() >= 2


def test_calibration_adds_to_the_novel_scores_alone(make: Make) -> None:
    classifier, queries = make(), positive(4, 16, seed=9)
    before = classifier.scores(queries)
    classifier.calibrate(1.5)
    torch.testing.assert_close(classifier.scores(queries) - before, torch.tensor([0, 0, 0, 1.5, 1.5]).expand(4, 5))
    classifier.calibrate(0.0, "mean")
    assert torch.equal(classifier.scores(queries), make("mean").scores(queries))


def test_nothing_learnt_and_nothing_asked(make: Make) -> None:
    classifier = make(learnt=False)
    assert classifier.scores(positive(2, 16)).shape == (2, 3)
    assert make().predict(torch.empty(0, 16)) == []
    assert classifier.typical_shots() == 1
    assert make().typical_shots() == 3  # of 1 and 3 the upper


def test_a_phi_in_training_leaves_no_gradients_behind() -> None:
    classifier = Classifier.from_means(Phi(PhiSpec("phi2", 16, query_norm=True)), BASE, positive(3, 16))
    classifier.adapt("okapi", positive(2, 16))
    assert not classifier.rows.weight.requires_grad
    assert not classifier.scores(positive(2, 16)).requires_grad


BAD_EXAMPLES: dict[str, tuple[str, Any, str]] = {
    "none": ("new", torch.empty(0, 16), "category 'new' has no example; give at least one"),
    "none, an odd name": ("queries", torch.empty(0, 16), "category 'queries' has no example"),
    "no list": ("new", [], r"expected activations \(n, 16\), got \(1, 0\)"),
    "dim": ("new", torch.ones(2, 15), r"category 'new': expected activations \(n, 16\), got \(2, 15\)"),
    "three axes": ("new", torch.ones(1, 2, 16), r"got \(1, 2, 16\)"),
    "NaN": ("new", [*[1.0] * 15, float("nan")], "category 'new': activations must be finite, got a NaN or an infinity"),
    "too large": ("new", [*[1.0] * 15, 1e300], "activations must be finite"),
    "ragged": ("new", [[1.0], [1.0, 2.0]], "got no array"),
    "text": ("new", "a photo", "got no array"),
    "base": ("bee", torch.ones(1, 16), "'bee' is a base category already"),
    "exists": ("okapi", torch.ones(1, 16), "category 'okapi' exists already; extend it"),
    "no name": ("", torch.ones(1, 16), "a category needs a name, got ''"),
}


@pytest.mark.parametrize("case", BAD_EXAMPLES)
def test_bad_examples_change_nothing(make: Make, case: str) -> None:
    classifier, queries = make(), positive(3, 16)
    name, given, message = BAD_EXAMPLES[case]
    before = classifier.scores(queries)
    with pytest.raises(InvalidInputError, match=message) as error:
        classifier.adapt_all({"good": torch.ones(1, 16), name: given})
    assert "\n" not in str(error.value)
    assert torch.equal(classifier.scores(queries), before)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda one: one.remove("zebra"), "no added category is named 'zebra'; there are: okapi, quokka"),
        (lambda one: one.remove("ant"), "'ant' is a base category; only categories that were added can be changed"),
        (lambda one: one.rename("ant", "x"), "'ant' is a base category"),
        (lambda one: one.rename("okapi", "bee"), "cannot rename 'okapi': 'bee' is taken or no name"),
        (lambda one: one.rename("okapi", "quokka"), "'quokka' is taken"),
        (lambda one: one.rename("okapi", ""), "is taken or no name"),
        (lambda one: one.rename("okapi", 5), "5 is taken or no name"),
        (lambda one: one.rename("okapi", "Unknown"), "'Unknown' is what is said where no category fits"),
        (lambda one: one.adapt("UNKNOWN", torch.ones(1, 16)), "'UNKNOWN' is what is said where no category fits"),
        (lambda one: one.predict(torch.ones(1, 16), top=0), "top must be at least 1, got 0"),
        (lambda one: one.scores(torch.ones(1, 3)), r"queries: expected activations \(n, 16\), got \(1, 3\)"),
        (lambda one: one.calibrate(float("nan")), "the novel bias must be a finite number, got nan"),
        (lambda one: one.calibrate(0, "median"), "aggregate must be max or mean, got 'median'"),
    ],
)
def test_bad_requests(make: Make, act: Callable[[Classifier], Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        act(make())


def test_base_parameters_must_fit(make_phi: Callable[..., Phi]) -> None:
    with pytest.raises(InvalidInputError, match=r"base parameters must be \(3, 16\), got \(2, 16\)"):
        Classifier(make_phi(), BASE, torch.ones(2, 16))
    with pytest.raises(InvalidInputError, match="aggregate must be max or mean"):
        Classifier(make_phi(), BASE, torch.ones(3, 16), aggregate="sum")  # type: ignore[arg-type]


def test_a_file_whose_category_is_called_unknown_opens(tmp_path: Path) -> None:
    one = Classifier.alone(16)
    one.restore({"unknown": torch.ones(1, 16), "okapi": torch.eye(16)[:2]})
    save_classifier(tmp_path / "c.safetensors", one)
    assert load_classifier(tmp_path / "c.safetensors").categories == ("unknown", "okapi")
