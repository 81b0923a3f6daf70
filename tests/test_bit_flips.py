"""A flipped bit in any file that the tools write is named, or provably changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from actstore.errors import ActstoreError
from tests.bit_flips import Kind, make_kinds

KINDS = (
    "chunk", "ledger", "labels", "ids", "columns", "metadata of the store", "metadata of a split", "metadata of arrays",
    "means", "index norms", "index bounded", "index ivf", "index ivf-sq", "index hnsw", "index pq", "audit", "phi",
    "calibration", "classifier", "checkpoint of a training", "category split", "backbone weights",
    "backbone weights with a recorded hash", "head",
)  # fmt: skip
PLACES = 5  # of each file, beside its first and last byte


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Kind]]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield {kind.name: kind for kind in make_kinds(tmp_path_factory.mktemp("flips"))}
    torch.set_num_threads(threads)


def test_every_kind_of_file_is_tried(kinds: dict[str, Kind]) -> None:
    assert tuple(kinds) == KINDS
    assert all(kind.files for kind in kinds.values())


@pytest.mark.parametrize("name", KINDS)
def test_a_flipped_bit_is_named_or_changes_nothing(name: str, kinds: dict[str, Kind]) -> None:
    kind, random = kinds[name], np.random.default_rng(1)
    sound = kind.use()
    for file in kind.files:
        content = file.read_bytes()
        places = {0, len(content) - 1, *random.integers(0, len(content), PLACES).tolist()}
        try:
            for place in sorted(places):
                flipped = bytearray(content)
                flipped[place] ^= 1 << int(random.integers(8))
                file.write_bytes(flipped)
                assert_named(kind, file, sound, place)
        finally:
            file.write_bytes(content)
    assert kind.use() == sound


def assert_named(kind: Kind, file: Path, sound: object, place: int) -> None:
    found, said = read(kind)
    assert str(file) in said or found == sound, f"byte {place} of {file} changes what is read, and is not named: {said}"


def read(kind: Kind) -> tuple[object, str]:
    """What its files hold, or the error they are refused with."""
    try:
        return kind.use(), ""
    except ActstoreError as error:
        return None, str(error)
