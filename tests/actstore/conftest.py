"""Places and rows for stores in buckets."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest
from numpy.typing import NDArray

_numbers = count()


@pytest.fixture(params=["memory", "s3"])
def place(request: pytest.FixtureRequest) -> str:
    """Where a new store may lie."""
    name = f"bucket-{next(_numbers)}"
    if request.param == "s3":
        request.getfixturevalue("s3").create_bucket(name)
    return f"{request.param}://{name}/x.zarr"


@pytest.fixture
def overtaking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers in a bucket are taken for killed, as those are whose token is not renewed; they do not know."""
    monkeypatch.setattr("actstore.storage.locks.may_live", lambda token: False)


@pytest.fixture
def rows(random: np.random.Generator) -> NDArray[np.float16]:
    return random.random((1000, 64), dtype=np.float32).astype(np.float16)
