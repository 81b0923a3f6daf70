"""What people read: names of categories, and a page of photos that is whole in one file, with everything escaped."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from PIL import Image

from actstore.errors import InvalidInputError
from actstore.images.image_set import ImageItem
from predictor.classifier.classifier import Classifier
from predictor.classifier.classifier_file import load_classifier, save_classifier
from predictor.classifier.predictions import Guess
from predictor.classifier.presentation import (
    SIDE,
    Card,
    display,
    displays,
    forget_display,
    photo_card,
    read_displays,
    set_displays,
    write_sheet,
)
from predictor.phi.network import Phi

HOSTILE = "<script>alert('&')</script>\".jpg"


class Counted(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attributes: object) -> None:
        self.seen.append(tag)
        if tag not in ("meta", "link", "img", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def card(folder: Path, name: str = "a.jpg", size: tuple[int, int] = (900, 500)) -> Card:
    """Of an image that is known to be a zebra."""
    Image.new("RGB", size, "red").save(folder / name, "JPEG")
    shares = {"okapi": 0.75, "zebra": 0.25, HOSTILE: 0.0}
    guesses = [Guess(category, category, share) for category, share in shares.items()]
    made = photo_card(ImageItem(name, None, str(folder)), "unknown", guesses, "wrong", "zebra")
    return {**made, "standing": "unknown"}


def page(folder: Path, sections: list[tuple[str, list[Card]]], title: str = "t", **more: object) -> str:
    write_sheet(folder / "s.html", title, title, sections, **{"alike": [], "confusion": None, **more})
    return (folder / "s.html").read_text("utf-8")


def test_a_page_is_whole_and_escaped(tmp_path: Path) -> None:
    hostile = {**card(tmp_path), "image": HOSTILE, "words": HOSTILE}
    made = page(tmp_path, [("", [hostile]), (HOSTILE, [card(tmp_path)] * 2), ("none", [])], HOSTILE, alike=[HOSTILE])
    parsed = Counted()
    parsed.feed(made)
    assert parsed.open == []
    assert (parsed.seen.count("script"), parsed.seen.count("img"), parsed.seen.count("h2")) == (1, 3, 1)
    assert not re.search(r"""(src|href)=["'](?!data:)""", made)  # nothing from elsewhere
    assert "prefers-color-scheme: dark" in made
    assert 'type="search"' in made
    assert "actstore photo sheet" in made
    assert 'type="search"' not in page(tmp_path, [("", [card(tmp_path)])])


def test_thumbnails_keep_their_shape(tmp_path: Path) -> None:
    found = [card(tmp_path)["address"], card(tmp_path, size=(9, 7))["address"]]
    images = [Image.open(io.BytesIO(base64.b64decode(one.partition("base64,")[2]))) for one in found]
    assert [(one.format, one.size) for one in images] == [("JPEG", (SIDE, round(SIDE * 5 / 9))), ("JPEG", (9, 7))]


def test_bars_are_as_long_as_their_share(tmp_path: Path) -> None:
    made = page(tmp_path, [("", [card(tmp_path)])])
    assert 'class="first wrong" style="--share:75.0%"' in made
    assert 'class="right" style="--share:25.0%"' in made
    assert '<li style="--share:0.0%"' in made
    assert '<li class="is-unknown"' in made


def test_a_confusion(tmp_path: Path) -> None:
    shown = {"columns": ["a<", "b", "another"], "rows": [("a<", [3, 1, 0]), ("b", [0, 4, 2])]}
    made = page(tmp_path, [], confusion=shown)
    assert re.findall(r"<td[^>]*>\d*</td>", made) == [
        '<td class="diagonal">3</td>', '<td class="off">1</td>', "<td></td>",
        "<td></td>", '<td class="diagonal">4</td>', '<td class="off">2</td>',
    ]  # fmt: skip
    assert made.count("a&lt;") == 2


@pytest.fixture
def classifier(make_phi: Callable[..., Phi]) -> Classifier:
    found = Classifier.from_means(make_phi(), ["n01440764", "n00000000", "cat"], torch.rand(3, 16))
    found.adapt("U+0041", torch.rand(2, 16))
    return found


def test_names_of_a_user_come_first_and_are_kept(classifier: Classifier, tmp_path: Path) -> None:
    assert displays(classifier) == {"n01440764": "tench", "U+0041": "A"}
    set_displays(classifier, {"n01440764": "Schleie", "cat": "my cat", "U+0041": "U+0041"})
    save_classifier(tmp_path / "c.safetensors", classifier)
    again = load_classifier(tmp_path / "c.safetensors")
    assert displays(again) == {"n01440764": "Schleie", "cat": "my cat"}
    assert again.categories == classifier.categories  # by which they are stored
    set_displays(again, {"n01440764": "", "cat": ""})
    assert displays(again) == {"n01440764": "tench"}


def test_renamed_and_removed(classifier: Classifier) -> None:
    forget_display(classifier, "U+0041")
    assert "display" not in classifier.about
    set_displays(classifier, {"U+0041": "first letter"})
    classifier.rename("U+0041", "a")
    forget_display(classifier, "U+0041", "a")
    assert display(classifier, "a") == "first letter"
    forget_display(classifier, "a")
    assert display(classifier, "a") == "a"


def test_all_or_none(classifier: Classifier) -> None:
    with pytest.raises(InvalidInputError, match="no category is named 'emu'"):
        set_displays(classifier, {"cat": "c", "emu": "e"})
    with pytest.raises(InvalidInputError, match="must be printable text"):
        set_displays(classifier, {"cat": "two\nlines"})
    assert "display" not in classifier.about


@pytest.mark.parametrize(
    "text",
    ["n1 red fox\nn2 cat\n", "\ufeffn1\tred fox\n\nn2\tcat", "n1,red fox\r\nn2, cat\r\n",
     '{"n1": "red fox", "n2": "cat"}'],
)  # fmt: skip
def test_files_of_names(tmp_path: Path, text: str) -> None:
    file = tmp_path / "names.txt"
    file.write_text(text, "utf-8", newline="")
    assert read_displays(file) == {"n1": "red fox", "n2": "cat"}


@pytest.mark.parametrize("mark", [" ", "\t", ",", ", "])
def test_names_with_commas_after_a_code(tmp_path: Path, mark: str) -> None:
    file = tmp_path / "names.txt"
    file.write_text(f"n01440764{mark}tench, Tinca tinca\nU+0041{mark}A, the first\n")
    assert read_displays(file) == {"n01440764": "tench, Tinca tinca", "U+0041": "A, the first"}


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"n1\n", "line 1: 'n1' has no display name"), (b"n1 a\nn1 b\n", "line 2: 'n1' is there twice"),
     (b"", "holds no names"), (b"{", "must be a JSON object"), (b'{"a": 3}', "values are all text"),
     (b"\xff\xfe\x00", "cannot be read as text")],
)  # fmt: skip
def test_bad_files_of_names(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "names.txt").write_bytes(content)
    with pytest.raises(InvalidInputError, match=message):
        read_displays(tmp_path / "names.txt")
    with pytest.raises(InvalidInputError, match="no file of names at"):
        read_displays(tmp_path / "absent.txt")
