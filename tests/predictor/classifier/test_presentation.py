"""A page of photos: whole in one file, everything escaped, thumbnails small."""

from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser
from pathlib import Path

from PIL import Image

from predictor.classifier.presentation import SIDE, Bar, Card, confusion_html, sheet_page, thumbnail, write_sheet

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


def card(name: str = "a.jpg") -> Card:
    bars = [Bar("okapi", 0.75, "wrong"), Bar("zebra", 0.25, "right"), Bar(HOSTILE, 0.0)]
    return Card(name, thumbnail(Image.new("RGB", (900, 500), "red")), "unknown", bars, "unknown")


def test_a_page_is_whole_and_escaped(tmp_path: Path) -> None:
    page = sheet_page(HOSTILE, HOSTILE, [("", [card(HOSTILE)]), (HOSTILE, [card(), card()]), ("none", [])])
    parsed = Counted()
    parsed.feed(page)
    assert parsed.open == []
    assert (parsed.seen.count("script"), parsed.seen.count("img"), parsed.seen.count("h2")) == (1, 3, 1)
    assert not re.search(r"""(src|href)=["'](?!data:)""", page)  # nothing from elsewhere
    assert "prefers-color-scheme: dark" in page
    write_sheet(tmp_path / "s.html", "t", "a", [("", [card()])])
    assert "actstore photo sheet" in (tmp_path / "s.html").read_text()


def test_thumbnails_keep_their_shape() -> None:
    page = sheet_page("t", "a", [("", [card()])])
    found = re.search(r"data:image/jpeg;base64,([^\"]+)", page)
    assert found is not None
    image = Image.open(io.BytesIO(base64.b64decode(found[1])))
    assert (image.format, image.size) == ("JPEG", (SIDE, round(SIDE * 5 / 9)))
    assert Image.open(io.BytesIO(thumbnail(Image.new("RGB", (9, 7))))).size == (9, 7)


def test_bars_are_as_long_as_their_share() -> None:
    page = sheet_page("t", "a", [("", [card()])])
    assert 'class="first wrong" style="--share:75.0%"' in page
    assert 'class="right" style="--share:25.0%"' in page
    assert '<li class="is-unknown"' in page


def test_a_confusion() -> None:
    html = confusion_html(["a<", "b"], ["a<", "b", "another"], [[3, 1, 0], [0, 4, 2]])
    assert re.findall(r"<td[^>]*>\d*</td>", html) == [
        '<td class="diagonal">3</td>', '<td class="off">1</td>', "<td></td>",
        "<td></td>", '<td class="diagonal">4</td>', '<td class="off">2</td>',
    ]  # fmt: skip
    assert html.count("a&lt;") == 2
