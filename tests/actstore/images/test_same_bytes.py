"""Copies of an image are found by their bytes, whatever they are called."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from actstore.images.image_set import ImageItem, same_bytes


@given(contents=st.lists(st.binary(max_size=2), max_size=12))
def test_groups_are_those_of_equal_content(tmp_path_factory: object, contents: list[bytes]) -> None:
    folder: Path = tmp_path_factory.mktemp("same")  # type: ignore[attr-defined]
    items = []
    for number, content in enumerate(contents):
        (folder / f"{number}.jpg").write_bytes(content)
        items.append(ImageItem(f"{number}.jpg", "a", str(folder)))
    found = [[int(item.id.removesuffix(".jpg")) for item in group] for group in same_bytes(items)]
    alike: dict[bytes, list[int]] = {}
    for number, content in enumerate(contents):
        alike.setdefault(content, []).append(number)
    assert found == [group for content, group in alike.items() if len(group) > 1 and content]


def test_what_is_in_an_archive_or_gone(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"abcabcd")
    items = [ImageItem(str(place), None, str(tmp_path / "a.tar"), place, 3) for place in (0, 3, 4, 6)]
    assert [[item.id for item in group] for group in same_bytes(items)] == [["0", "3"]]
    assert same_bytes([ImageItem("gone.jpg", None, str(tmp_path))] * 2) == []
