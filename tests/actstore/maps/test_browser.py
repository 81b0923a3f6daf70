"""The map in a real browser: what a person does with mouse, finger and keyboard, light and dark, wide and narrow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actstore
from actstore.images.glyphs import write_glyphs
from tests.predictor.teach.browser import open_browser, require_browser

BOXES = "all => all.map(one => one.getBoundingClientRect()).map(box => [box.left, box.top, box.right, box.bottom])"
UNNAMED = """all => all.filter(one => one.checkVisibility())
    .filter(one => !(one.textContent.trim() || one.ariaLabel || one.labels?.length)).map(one => one.outerHTML)"""
# in the frame that draws, before the browser empties what WebGL drew into
COUNTED = """() => new Promise(done => {
    document.getElementById("whole").click();
    requestAnimationFrame(() => {
        const plain = Object.assign(document.createElement("canvas"), {width: 400, height: 300}).getContext("2d");
        plain.drawImage(document.getElementById("points"), 0, 0, 400, 300);
        done(plain.getImageData(0, 0, 400, 300).data.filter((value, place) => place % 4 === 3 && value).length);
    });
})"""
CLASSES = [f"kind {number:02}" for number in range(30)]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    require_browser()
    with open_browser() as found:
        yield found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> actstore.Split:
    """3,000 rows around 30 centres, with pictures of the first of them."""
    folder = tmp_path_factory.mktemp("map")
    write_glyphs(folder / "glyphs", 2, 20, 0)
    files = sorted(file.relative_to(folder / "glyphs").as_posix() for file in (folder / "glyphs").rglob("*.png"))
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(30), 100)
    values = (random.standard_normal((30, 12))[labels] + 0.15 * random.standard_normal((3000, 12))).astype("f4")
    ids = [*files, *(f"other/{row:04}.png" for row in range(len(files), 3000))]
    store = actstore.create(folder / "x.zarr", classes=CLASSES, dim=12)
    with store.writer("train") as writer:
        writer.append(values, labels, ids, {"area": np.arange(3000) / 3000})
    actstore.map(store["train"], method="pca").save(folder / "map.html", images=folder / "glyphs")
    return store["train"]


class MapPage:
    """The page as it is opened; what its console and its requests say that should not be there is in `faults`."""

    def __init__(self, browser: Any, split: actstore.Split, without_webgl: bool = False, **options: Any) -> None:
        self.context = browser.new_context(
            accept_downloads=True, **{"viewport": {"width": 1280, "height": 800}, **options}
        )
        self.page = self.context.new_page()
        self.faults: list[str] = []
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", lambda message: message.type == "error" and self.faults.append(message.text))
        self.page.on("request", lambda request: request.url.startswith(("file:", "blob:", "data:"))
                     or self.faults.append(request.url))  # fmt: skip
        if without_webgl:
            self.page.add_init_script(
                "const open = HTMLCanvasElement.prototype.getContext; HTMLCanvasElement.prototype.getContext = "
                "function (kind, ...more) { return kind.startsWith('webgl') ? null : open.call(this, kind, ...more); }"
            )
        self.page.goto(f"file://{Path(str(split.store_path)).parent}/map.html")
        self.page.wait_for_selector("body.ready")

    def read(self, selector: str) -> str:
        return str(self.page.inner_text(selector))

    def points_shown(self) -> int:
        """Pixels of the canvas that are not empty."""
        return int(self.page.evaluate(COUNTED))

    def middle(self) -> tuple[float, float]:
        box = self.page.locator("#stage").bounding_box()
        return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    def lasso(self, radius: float = 150) -> None:
        x, y = self.middle()
        self.page.click("#lasso")
        self.page.mouse.move(x - radius, y - radius)
        self.page.mouse.down()
        for right, down in ((1, -1), (1, 1), (-1, 1), (-1, -1)):
            self.page.mouse.move(x + right * radius, y + down * radius, steps=3)
        self.page.mouse.up()

    def close(self) -> None:
        assert self.faults == []
        self.context.close()


@pytest.mark.parametrize("without_webgl", [False, True])
def test_points_are_drawn_and_named_under_the_pointer(browser: Any, made: actstore.Split, without_webgl: bool) -> None:
    page = MapPage(browser, made, without_webgl)
    assert not without_webgl or page.page.evaluate("document.body.dataset.drawing") == "canvas"
    assert page.points_shown() > 500
    page.page.fill("#search", made.ids[3])  # one of those with a picture
    page.page.press("#search", "Enter")
    page.page.wait_for_selector("#picked .thumbnail")
    assert made.ids[3] in page.read("#picked")
    page.page.mouse.move(*page.middle())
    page.page.wait_for_selector("#tip:not([hidden])")
    assert made.ids[3] in page.read("#tip")
    assert "kind 00" in page.read("#tip")
    near = page.page.locator("#picked .points button")
    graph = actstore.knn(made, 5)
    assert [text.split("\n")[-1] for text in near.all_inner_texts()] == [made.ids[int(row)] for row in graph.rows[3]]
    near.first.click()
    assert made.ids[int(graph.rows[3, 0])] in page.read("#picked h2")
    page.close()


def test_a_lasso_gives_ids_that_can_be_taken_away(browser: Any, made: actstore.Split) -> None:
    page = MapPage(browser, made, permissions=["clipboard-read", "clipboard-write"])
    page.lasso()
    page.page.wait_for_selector("#selection:not([hidden])")
    with page.page.expect_download() as download:
        page.page.click("#download")
    ids = Path(download.value.path()).read_text().splitlines()
    assert 10 < len(ids) < 3000
    assert f"{len(ids):,} selected" in page.read("#selection h2")
    with page.page.expect_download() as download:
        page.page.click("#download-rows")
    rows = [int(line) for line in Path(download.value.path()).read_text().split()]
    assert [made.ids[row] for row in rows] == ids
    page.page.click("#copy")
    page.page.wait_for_function("document.getElementById('said').textContent.includes('copied')")
    assert page.page.evaluate("navigator.clipboard.readText()").split() == ids
    page.page.focus("#stage")
    page.page.keyboard.press("Escape")
    assert page.page.is_hidden("#selection")
    page.close()


def test_search_by_class_and_by_id(browser: Any, made: actstore.Split) -> None:
    page = MapPage(browser, made)
    found = {"kind 07": "1 class, 100 rows", "KIND 1": "10 classes, 1,000 rows", "other/299": "10 rows", "no": "0 rows"}
    for text, expected in found.items():
        page.page.fill("#search", text)
        page.page.wait_for_function("text => said.textContent.startsWith(text)", arg=expected)
    page.page.press("#search", "Escape")
    assert page.read("#said") == ""
    page.close()


def test_colours_by_column_and_highlights_by_class(browser: Any, made: actstore.Split) -> None:
    page = MapPage(browser, made)
    assert page.page.locator("#legend .category").count() == 30
    page.page.click("#legend .category >> text=kind 12")
    assert page.page.get_attribute('#legend .category[aria-pressed="true"]', "title") == "Highlight kind 12"
    page.page.click('[aria-label="Select all of kind 12"]')
    assert page.read("#selection h2").startswith("100 selected")
    page.page.select_option("#colour", label="area")
    assert page.page.locator("#legend .category").count() == 0
    assert page.page.locator("#legend .ramp").count() == 1
    assert page.page.locator("#labels span").count() == 0
    page.close()


def test_all_of_it_by_keyboard(browser: Any, made: actstore.Split) -> None:
    page = MapPage(browser, made)
    page.page.focus("#stage")
    for key in ("ArrowLeft", "ArrowUp", "+", "+", "-", "0", "Enter"):
        page.page.keyboard.press(key)
    assert page.read("#said").count("kind") == 1  # a reader of the screen hears which row it is
    assert page.page.is_visible("#picked")
    page.page.keyboard.press("Escape")
    assert page.page.is_hidden("#picked")
    reached = set()
    for _ in range(12):
        page.page.keyboard.press("Shift+Tab")
        reached.add(page.page.evaluate("document.activeElement.id"))
    assert {"search", "colour", "lasso", "whole", "theme"} <= reached
    page.close()


def require_apart(boxes: list[list[float]]) -> None:
    for place, (left, top, right, bottom) in enumerate(boxes):
        for other in boxes[place + 1 :]:
            assert right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_it_fits_its_window_and_names_are_apart(browser: Any, made: actstore.Split, width: int, scheme: str) -> None:
    page = MapPage(browser, made, viewport={"width": width, "height": 844}, color_scheme=scheme)
    assert page.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for step in range(3):
        boxes = page.page.eval_on_selector_all('#labels span:not([style*="hidden"]), .zoom button', BOXES)
        assert len(boxes) > 5 or step == 2
        require_apart(boxes)
        page.page.click("#in")
        page.page.evaluate("() => new Promise(requestAnimationFrame)")
    controls = page.page.eval_on_selector_all(".tools > *", BOXES)
    require_apart(controls)
    assert max(right for _, _, right, _ in controls) <= width
    assert page.page.eval_on_selector_all("button, input, select", UNNAMED) == []
    before = page.page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.page.click("#theme")
    assert page.page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    page.close()


def test_a_finger_moves_and_asks(browser: Any, made: actstore.Split) -> None:
    page = MapPage(browser, made, viewport={"width": 390, "height": 844}, has_touch=True)
    page.page.fill("#search", made.ids[2999])
    page.page.press("#search", "Enter")
    page.page.touchscreen.tap(*page.middle())
    page.page.wait_for_selector("#tip:not([hidden])")
    assert made.ids[2999] in page.read("#tip")
    page.close()
