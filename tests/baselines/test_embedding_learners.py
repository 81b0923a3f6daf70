"""Matching and prototypical networks against plain numpy, on embeddings and on images."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from actstore.layout.class_index import ClassIndex
from baselines.learners import EmbeddingLearner, FullContext, MatchingNetwork, PrototypicalNetwork, as_images
from predictor.protocol.episodes import Examples, TaskSize, run_episodes

pytestmark = pytest.mark.numeric

TASKS, WAY, SHOTS, N, DIM = 2, 3, 2, 5, 4


@pytest.fixture
def embedded() -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    support, queries = (torch.randn(shape, generator=random) for shape in ((TASKS, WAY, SHOTS, DIM), (TASKS, N, DIM)))
    return support.double(), queries.double()


def test_prototypes_are_means_and_scores_negative_squared_distances(embedded: tuple[Tensor, Tensor]) -> None:
    support, queries = (part.numpy() for part in embedded)
    scores = PrototypicalNetwork(8, DIM, 0).compare(*embedded).numpy()
    for task in range(TASKS):
        for query in range(N):
            expected = [-((queries[task, query] - support[task, way].mean(0)) ** 2).sum() for way in range(WAY)]
            np.testing.assert_allclose(scores[task, query], expected, rtol=1e-9)


def softmax(values: np.ndarray) -> np.ndarray:
    raised = np.exp(values - values.max())
    return raised / raised.sum()


def plain_attention(examples: np.ndarray, query: np.ndarray, sharpness: float) -> np.ndarray:
    """(way * shots, dim), (dim,) -> (way,): what each category gets."""
    cosines = examples @ query / np.linalg.norm(examples, axis=1) / np.linalg.norm(query)
    return softmax(sharpness * cosines).reshape(WAY, SHOTS).sum(1)


def test_matching_adds_up_cosine_attention(embedded: tuple[Tensor, Tensor]) -> None:
    learner = MatchingNetwork(8, DIM, 0).double()
    with torch.no_grad():
        learner.sharpness.fill_(3.0)
        attention = learner.compare(*embedded).exp().numpy()
    np.testing.assert_allclose(attention.sum(2), 1, rtol=1e-9)
    for task in range(TASKS):
        examples = embedded[0][task].reshape(-1, DIM).numpy()
        for query in range(N):
            expected = plain_attention(examples, embedded[1][task, query].numpy(), 3.0)
            np.testing.assert_allclose(attention[task, query], expected, rtol=1e-9)


def plain_cell(
    weights: dict[str, np.ndarray], seen: np.ndarray, state: tuple[np.ndarray, np.ndarray], ending: str
) -> tuple[np.ndarray, np.ndarray]:
    hidden, cell = state
    parts = weights[f"weight_ih{ending}"] @ seen + weights[f"bias_ih{ending}"]
    parts = parts + weights[f"weight_hh{ending}"] @ hidden + weights[f"bias_hh{ending}"]
    enter, keep, new, out = np.split(parts, 4)
    cell = cell / (1 + np.exp(-keep)) + np.tanh(new) / (1 + np.exp(-enter))
    return np.tanh(cell) / (1 + np.exp(-out)), cell


def named(module: nn.Module) -> dict[str, np.ndarray]:
    return {name: weight.detach().numpy() for name, weight in module.named_parameters()}


def test_full_context_embeddings_are_those_of_the_paper(embedded: tuple[Tensor, Tensor]) -> None:
    learner = MatchingNetwork(8, DIM, 0, full_context=True, readings=3).double()
    assert isinstance(learner.context, FullContext)
    with torch.no_grad():
        seen, read = (part.numpy() for part in learner.context(embedded[0].flatten(1, 2), embedded[1]))
    for task in range(TASKS):
        examples = embedded[0][task].reshape(-1, DIM).numpy()
        expected = examples.copy()
        among = named(learner.context.among_examples)
        for ending, order in (("_l0", range(len(examples))), ("_l0_reverse", reversed(range(len(examples))))):
            state = (np.zeros(DIM), np.zeros(DIM))
            for place in order:
                state = plain_cell(among, examples[place], state, ending)
                expected[place] += state[0]
        np.testing.assert_allclose(seen[task], expected, rtol=1e-9, atol=1e-12)
        for number, query in enumerate(embedded[1][task].numpy()):
            hidden, cell = query, np.zeros(DIM)
            for _ in range(3):
                reading = softmax(expected @ hidden) @ expected
                step, cell = plain_cell(
                    named(learner.context.reader), np.concatenate([query, reading]), (hidden, cell), ""
                )
                hidden = step + query
            np.testing.assert_allclose(read[task, number], hidden, rtol=1e-9, atol=1e-12)


def test_the_gradient_of_full_context_is_that_of_finite_differences(embedded: tuple[Tensor, Tensor]) -> None:
    learner = MatchingNetwork(8, DIM, 0, full_context=True, readings=2).double()
    support, queries = (part[:1, :2].clone().requires_grad_() for part in embedded)
    weights = [weight for weight in learner.parameters() if weight.shape in ((4 * DIM, DIM), (4 * DIM, 2 * DIM))]
    assert len(weights) == 6  # of both directions and of the reader
    assert torch.autograd.gradcheck(lambda *given: learner.compare(*given[:2]), (support, queries, *weights))


@pytest.mark.parametrize(
    "learner",
    [PrototypicalNetwork(8, 4, 3), MatchingNetwork(8, 4, 3), MatchingNetwork(8, 4, 3, full_context=True)],
    ids=["prototypical", "matching", "full context"],
)
def test_tasks_of_embeddings_made_once_are_tasks_of_images(
    learner: EmbeddingLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float64: batches of other sizes round differently, and an untrained learner's scores are close."""
    learner, random = deepcopy(learner).double(), torch.Generator().manual_seed(1)
    monkeypatch.setattr("baselines.learners.as_images", lambda *given: as_images(*given).double())
    pixels = torch.randint(0, 255, (24, 8, 8, 3), dtype=torch.uint8, generator=random)
    examples = Examples(pixels, ClassIndex(list("abcd"), np.repeat(np.arange(4), 6)), np.arange(4))
    prepared, method = learner.prepared(examples)
    assert prepared.values.shape == (24, 4)
    size = TaskSize(3, 2, 2)
    (once,) = run_episodes([method], prepared, size, 9)
    (each,) = run_episodes([learner], examples, size, 9)
    np.testing.assert_array_equal(once.accuracies, each.accuracies)
