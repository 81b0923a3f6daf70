"""What a server and `ppa predict` say of images, compared."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from click.testing import CliRunner

from cli.ppa import main
from tests.teach_server import TeachServer


def predicted(classifier: Path, *images: Path) -> list[dict[str, float]]:
    """By `ppa predict`: category -> probability."""
    torch.set_num_threads(1)
    done = CliRunner().invoke(main, ["predict", *map(str, images), "--classifier", str(classifier), "--json"])
    assert done.exit_code == 0, done.output
    return [{one["category"]: one["probability"] for one in image["top"]} for image in json.loads(done.stdout)]


def asked(server: TeachServer, *images: Path) -> list[dict[str, float]]:
    answers = [server.ask(image.read_bytes()) for image in images]
    return [{one["category"]: one["probability"] for one in answer["bars"]} for answer in answers]


def assert_same(found: list[dict[str, float]], expected: list[dict[str, float]]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert list(one) == list(other)
        np.testing.assert_allclose(list(one.values()), list(other.values()), rtol=1e-4)


def names(state: dict[str, object]) -> dict[str, int]:
    """Category -> how many examples it has."""
    return {one["name"]: len(one["examples"]) for one in state["categories"]}  # type: ignore[index,attr-defined]
