"""What every kind of storage promises: one suite, run on a folder, a bucket and a cached bucket."""

from __future__ import annotations

import pickle
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from actstore.errors import InvalidInputError, LockedError
from actstore.storage.object_path import CacheSpec, ObjectPath
from actstore.storage.place import (
    FolderPath,
    Place,
    exchange,
    parse_place,
    read_file,
    read_files,
    write_chunk,
    write_file,
)

_numbers = count()


class PlaceSuite:
    """Subclassed for each kind; `top` is a place where nothing lies yet."""

    kind: type

    def test_its_kind(self, top: Place) -> None:
        assert type(top) is self.kind
        assert type(top / "a" / "b") is self.kind
        assert (top / "a" / "b").parent.name == "a"
        assert str(top / "a") == f"{top}/a"

    def test_goes_to_other_processes(self, top: Place) -> None:
        there = pickle.loads(pickle.dumps(top.absolute()))
        assert there == top.absolute()
        assert there.cache == top.cache

    def test_what_is_written_is_read(self, top: Place) -> None:
        file = top / "folder" / "x"
        assert not file.exists()
        assert write_file(file, b"abc", b"defgh") == 8
        assert file.exists()
        assert file.size() == 8
        assert file.read_bytes() == read_file(file).tobytes() == bytes(file.read_version()[0]) == b"abcdefgh"
        assert file.read_span(2, 5).tobytes() == b"cde"
        assert [bytes(piece) for piece in file.read_ranges([0, 6], [2, 8])] == [b"ab", b"gh"]

    def test_a_file_that_is_not_there(self, top: Place) -> None:
        for read in (top.read_version, top.read_bytes, top.size, lambda: top.read_span(0, 3)):
            with pytest.raises(FileNotFoundError):
                read()

    def test_a_span_beyond_the_end_is_refused(self, top: Place) -> None:
        write_file(top / "x", b"abc")
        with pytest.raises(FileNotFoundError, match="before byte 9"):
            (top / "x").read_span(1, 9)

    def test_files_are_read_in_order_and_lacking_ones_are_none(self, top: Place) -> None:
        for name in ("a", "c"):
            write_file(top / name, name.encode())
        found = [None if data is None else data.tobytes() for data in read_files([top / name for name in "cba"])]
        assert found == [b"c", None, b"a"]
        assert list(read_files([])) == []

    def test_map_parallel_keeps_the_order(self, top: Place) -> None:
        assert list(top.map_parallel(lambda part: part * part, list(range(20)))) == [part * part for part in range(20)]

    def test_chunks_end_in_their_crc(self, top: Place) -> None:
        values = np.arange(6, dtype="<f4")
        assert write_chunk(top / "c", values) == values.nbytes + 4
        assert read_file(top / "c")[:-4].tobytes() == values.tobytes()

    def test_an_abandoned_write_does_not_keep_a_later_one_from_its_name(self, top: Place) -> None:
        (top / "x").begin_write(b"first").abandon()
        assert write_file(top / "x", b"second") == 6
        assert (top / "x").read_bytes() == b"second"

    def test_children_are_the_folders_but_stray_ones(self, top: Place) -> None:
        for name in ("zarr.json", "train/zarr.json", "val/x/y", ".hidden/x", "@eaDir/x"):
            write_file(top / name, b"{}")
        assert [child.name for child in top.children()] == ["train", "val"]

    def test_entries(self, top: Place) -> None:
        assert not top.has_entries()
        write_file(top / "zarr.json.part", b"{")
        assert top.has_entries()
        assert not top.has_entries(besides="zarr.json.part")
        write_file(top / "zarr.json", b"{}")
        assert top.has_entries(besides="zarr.json.part")

    def test_trees_are_measured_and_listed_and_removed(self, top: Place) -> None:
        for name in ("a", "b/c", "b/d/e", "b.txt"):
            write_file(top / name, b"1234")
        assert top.tree_size() == 16
        listed = [("a", False), ("b", True), ("b.txt", False), ("b/c", False), ("b/d", True), ("b/d/e", False)]
        assert sorted(top.contents()) == listed
        assert sorted((top / "b").contents()) == [("c", False), ("d", True), ("d/e", False)]
        assert (top / "nothing").contents() == []
        top.remove_below([("b/c", False), ("b/d", True), ("b", True)])  # folders that are not empty stay
        assert sorted(top.contents()) == [entry for entry in listed if entry[0] != "b/c"]
        for _ in range(2):  # again: what is not there is passed over
            top.remove_below([*sorted(top.contents(), reverse=True), ("b/c", False), ("", True)])
            assert not top.has_entries()

    def test_unlink(self, top: Place) -> None:
        write_file(top / "x", b"1")
        (top / "x").unlink()
        assert not (top / "x").exists()

    def test_a_version_that_was_read_can_be_replaced(self, top: Place) -> None:
        (top / "x").put(b"one", {})
        version = (top / "x").read_version()[1]
        (top / "x").put(b"two", version)
        assert (top / "x").read_bytes() == b"two"

    def test_metadata_is_changed_under_protection(self, top: Place) -> None:
        write_file(top / "zarr.json", b"1")
        with top.changing():
            write_file(top / "zarr.json", b"2")
        assert (top / "zarr.json").read_bytes() == b"2"

    def test_a_log_grows_and_shrinks(self, top: Place) -> None:
        file = top / "split" / "array" / "ledger"
        log = file.open_log()
        for line in (b"one\n", b"two\n", b"three\n"):
            log.append(line)
        log.require_own()
        assert log.size() == 14
        log.truncate(8)
        log.settle()
        log.close()
        assert file.read_bytes() == b"one\ntwo\n"
        assert not file.has_log_writer()

    def test_a_log_has_one_writer(self, top: Place) -> None:
        file = top / "split" / "array" / "ledger"
        first = file.open_log()
        first.append(b"one\n")
        with pytest.raises(LockedError, match="another process is writing"):
            file.open_log()
        first.close()
        second = file.open_log()
        second.append(b"two\n")
        second.settle()
        second.close()
        assert file.read_bytes() == b"one\ntwo\n"

    def test_what_must_be_a_local_file_has_a_folder(self, top: Place) -> None:
        folder = top.side_folder("search")
        assert folder.name.endswith(".search")
        assert folder != (top / "other").side_folder("search")

    def test_a_cache_is_for_buckets_and_not_for_writers(self, top: Place, tmp_path: Path) -> None:
        spec = CacheSpec(tmp_path / "cache")
        cached = parse_place(top, spec)
        assert cached.cache == (None if top.local_path else spec)
        assert cached.with_cache(None).cache is None
        assert str(cached.with_cache(None)) == str(top)


class TestFolder(PlaceSuite):
    kind = FolderPath

    @pytest.fixture
    def top(self, tmp_path: Path) -> Place:
        return parse_place(tmp_path / "x.zarr")

    def test_it_is_a_path(self, top: Place) -> None:
        assert isinstance(top, Path)
        assert top.local_path == top


class TestBucket(PlaceSuite):
    kind = ObjectPath

    @pytest.fixture(params=["memory", "s3"])
    def top(self, request: pytest.FixtureRequest) -> Place:
        return parse_place(f"{new_bucket(request)}/x.zarr")

    def test_what_somebody_else_wrote_is_not_replaced(self, top: Place) -> None:
        file = top / "zarr.json"
        file.put(b"mine", {})
        file.put(b"mine", {})  # sent twice
        with pytest.raises(LockedError):
            file.put(b"theirs", {})
        version = file.read_version()[1]
        file.put(b"changed", version)
        with pytest.raises(LockedError):
            file.put(b"late", version)
        assert file.read_bytes() == b"changed"

    def test_the_guard_is_asked_before_an_object_is_replaced(self, top: Place) -> None:
        asked: list[int] = []
        for body in (b"new", b"newer"):
            write_file(top / "x", body, ensure_owner=lambda: asked.append(1))
        assert (top / "x").read_bytes() == b"newer"
        assert asked == [1]

    def test_it_does_not_lie_on_this_machine(self, top: Place) -> None:
        assert top.local_path is None


class TestCachedBucket(TestBucket):
    @pytest.fixture(params=["memory", "s3"])
    def top(self, request: pytest.FixtureRequest, tmp_path: Path) -> Place:
        return parse_place(f"{new_bucket(request)}/x.zarr", CacheSpec(tmp_path / "cache"))

    def test_what_must_be_a_local_file_lies_in_the_cache(self, top: Place, tmp_path: Path) -> None:
        assert top.side_folder("search").parent == tmp_path / "cache"


def new_bucket(request: pytest.FixtureRequest) -> str:
    name = f"place-{next(_numbers)}"
    if request.param == "s3":
        request.getfixturevalue("s3").create_bucket(name)
    return f"{request.param}://{name}"


@pytest.mark.parametrize("url", ["ftp://x/y", "s3://", "s3://b/../x", "s3://b/a//b"])
def test_what_is_no_place_is_named(url: str) -> None:
    with pytest.raises(InvalidInputError, match="'"):
        parse_place(url)


def test_two_folders_change_places(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "name").write_text(name)
    if exchange(tmp_path / "a", tmp_path / "b"):
        assert [(tmp_path / name / "name").read_text() for name in ("a", "b")] == ["b", "a"]
        with pytest.raises(FileNotFoundError):
            exchange(tmp_path / "a", tmp_path / "none")
