"""A phi that was trained on means of a few rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

import actstore
import predictor
from predictor.protocol.category_split import CategorySplit


def test_it_is_asked_about_the_mean_and_goes_on_where_it_was(tmp_path: Path) -> None:
    labels = np.repeat(np.arange(4), 30)
    random = np.random.default_rng(0)
    rows = (20 + 6 * random.random((4, 5))[labels] + random.standard_normal((120, 5))).astype("f4")
    store = actstore.from_arrays(tmp_path / "x.zarr", {"train": (rows, labels)}, classes=list("abcd"))
    split = CategorySplit(("a", "b", "c"), ("d",))

    def train(name: str, epochs: int = 2, **settings: object) -> predictor.TrainedPhi:
        return predictor.train_phi(
            store, split, "phi1", tmp_path / name, epochs=epochs, batches=4, p_mean=0.2, progress=False, **settings
        )

    paper, several = train("paper"), train("several", examples=(2, 5))
    assert (paper.as_method().aggregate, paper.as_method("mean").aggregate) == ("max", "mean")
    assert (several.as_method().aggregate, several.as_method("max").aggregate) == ("mean", "max")
    assert "examples" not in paper.identity["config"]
    weights = [one.phi.layers[0].get_parameter("weight") for one in (paper, several, train("several", examples=(2, 5)))]
    assert torch.equal(weights[1], weights[2])
    assert not torch.equal(weights[0], weights[1])
