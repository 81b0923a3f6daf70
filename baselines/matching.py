"""Matching networks: a query attends to the support by cosine; attention adds up per category.

Vinyals, Blundell, Lillicrap, Kavukcuoglu and Wierstra, Matching Networks for One Shot Learning, NIPS 2016.
The attention's sharpness is learnt, as cosines alone lie between -1 and 1 and leave the softmax nearly uniform.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from actstore.backbones.construction import seeded
from baselines.meta_learner import EmbeddingLearner

FIRST_SHARPNESS = 10.0


class MatchingNetwork(EmbeddingLearner):
    """full_context: embeddings also see the rest of the support, by the LSTMs of the paper's appendix.

    Published rows are of such embeddings, so that one without them has a name that stands beside none.
    """

    def __init__(self, image_size: int, width: int, seed: int, full_context: bool = False, readings: int = 5) -> None:
        super().__init__(image_size, width, seed)
        self.name = "Matching Network" if full_context else "Matching Network (no full context)"
        self.sharpness = nn.Parameter(torch.tensor(FIRST_SHARPNESS))
        with seeded(seed + 1):
            self.context = FullContext(width, readings) if full_context else None

    def compare(self, support: Tensor, queries: Tensor) -> Tensor:
        """Logarithms of the attention that each category gets."""
        way, shots = support.shape[1:3]
        examples = support.flatten(1, 2)  # (tasks, way * shots, dim)
        if self.context is not None:
            examples, queries = self.context(examples, queries)
        cosines = functional.normalize(queries, dim=-1) @ functional.normalize(examples, dim=-1).mT
        attention = (self.sharpness * cosines).log_softmax(2)  # (tasks, n, way * shots)
        return attention.view(*attention.shape[:2], way, shots).logsumexp(3)


class FullContext(nn.Module):
    """Examples read each other in both directions; a query reads the examples `readings` times."""

    def __init__(self, dim: int, readings: int) -> None:
        super().__init__()
        self._readings = readings
        self.among_examples = nn.LSTM(dim, dim, batch_first=True, bidirectional=True)
        self.reader = nn.LSTMCell(2 * dim, dim)

    def forward(self, examples: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
        """(tasks, m, dim) and (tasks, n, dim) -> the same shapes."""
        forth, back = self.among_examples(examples)[0].chunk(2, dim=2)
        seen = forth + back + examples  # (tasks, m, dim)
        return seen, self._read(seen, queries)

    def _read(self, examples: Tensor, queries: Tensor) -> Tensor:
        hidden, cell = queries, torch.zeros_like(queries).flatten(0, 1)
        for _ in range(self._readings):
            attention = (hidden @ examples.mT).softmax(2)  # (tasks, n, m)
            seen = torch.cat([queries, attention @ examples], dim=2).flatten(0, 1)  # (tasks * n, 2 dim)
            step, cell = self.reader(seen, (hidden.flatten(0, 1), cell))
            hidden = step.view_as(queries) + queries
        return hidden
