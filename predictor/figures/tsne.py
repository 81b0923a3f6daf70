"""t-SNE: points in a plane whose neighbours are those of the high-dimensional points.

van der Maaten and Hinton, Visualizing Data using t-SNE, JMLR 9, 2008, by scikit-learn.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from actstore.errors import InvalidInputError

PERPLEXITY = 20.0  # about how many neighbours a point has
STEPS = 1000


def tsne(points: NDArray[Any], steps: int = STEPS) -> NDArray[np.float64]:
    """(n, dim) -> (n, 2), centred. The same points always give the same map. steps: 250 or more."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    if points.ndim != 2 or len(points) < 4:
        raise InvalidInputError(f"t-SNE needs 4 points or more (n, dim), got {points.shape}")
    if not np.isfinite(points).all():
        raise InvalidInputError("t-SNE needs finite points, got a NaN or an infinity; leave that point out")
    perplexity = min(PERPLEXITY, (len(points) - 1) / 3)  # beyond, neighbours would have to be nearly equally near
    has_axes = points.shape[1] > 1 and bool(np.ptp(points, axis=0).any())  # equal points have no principal axis
    model = TSNE(perplexity=perplexity, max_iter=steps, init="pca" if has_axes else "random", random_state=0)
    with threadpool_limits(1):  # several threads add in any order, and the map would differ from run to run
        places = np.asarray(model.fit_transform(np.asarray(points, np.float64)), np.float64)
    centred: NDArray[np.float64] = places - places.mean(0)
    return centred
