from __future__ import annotations

import mmap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actstore.errors import InvalidInputError, NotAStoreError
from actstore.spec import FORMAT_VERSION, SplitSpec, StoreSpec, default_chunk_rows, parse_split_name


@given(st.integers(1, 5000), st.sampled_from(["f2", "f4"]), st.none() | st.integers(0, 10**7))
def test_default_chunks_fill_whole_pages(dim: int, dtype: str, rows: int | None) -> None:
    chunk = default_chunk_rows(dim, dtype, rows)  # type: ignore[arg-type]
    assert chunk * dim * int(dtype[1]) % mmap.PAGESIZE == 0


def test_the_paper_s_size_gives_32_mib_chunks() -> None:
    assert default_chunk_rows(2048, "f2") == 8192


def test_a_small_set_gets_a_small_chunk() -> None:
    assert default_chunk_rows(2048, "f2", rows=300) == 300


def test_specs_survive_a_round_trip() -> None:
    spec = StoreSpec(classes=("a", "b"), dim=4, chunk_rows=6, shard_inner_rows=3, provenance={"backbone": "resnet50"})
    assert StoreSpec.from_json(spec.to_json(), "x") == spec
    split = SplitSpec(rows=3, complete=True, content="c", history=((3, "c"),), sources=({"kind": "arrays"},))
    assert SplitSpec.from_json(split.to_json(), "x") == split


def test_a_newer_format_is_refused_with_advice() -> None:
    data = {**StoreSpec(classes=(), dim=4).to_json(), "format_version": FORMAT_VERSION + 1}
    with pytest.raises(NotAStoreError, match="upgrade actstore"):
        StoreSpec.from_json(data, "x")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dim": 0}, "dim must be a positive integer"),
        ({"dtype": "f8"}, "dtype must be 'f2' or 'f4'"),
        ({"codec": "gzip"}, "codec must be"),
        ({"classes": ("a", "a")}, "'a' appears twice"),
        ({"classes": ("a\nb",)}, "line break"),
        ({"classes": "abc"}, "sequence of names"),
        ({"chunk_rows": 10, "shard_inner_rows": 3}, "must divide chunk_rows"),
    ],
)
def test_bad_specs_say_what_is_wrong(change: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        StoreSpec(**{"classes": ("a",), "dim": 4, **change})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "a b", "x" * 101])
def test_split_names_are_plain(name: str) -> None:
    with pytest.raises(InvalidInputError, match="split name"):
        parse_split_name(name)
