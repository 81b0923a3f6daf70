"""The page in a real browser: everything that a person does, and what is left of it after a kill."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from actstore.backbones.loading import load_backbone
from actstore.extraction.forward import activations_of
from actstore.images.image_set import ImageItem
from cli.ppa import main
from predictor.classifier.classifier_file import load_classifier
from tests.predictor.teach.browser import Page, open_browser, require_browser
from tests.teach_server import TeachServer


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    require_browser()
    with open_browser() as found:
        yield found


def assert_near(found: dict[str, float], expected: dict[str, float]) -> None:
    assert list(found) == list(expected)
    assert list(found.values()) == pytest.approx(list(expected.values()), rel=1e-4)


def by_command(classifier: Path, image: Path) -> dict[str, float]:
    done = CliRunner().invoke(main, ["predict", str(image), "--classifier", str(classifier), "--json"])
    assert done.exit_code == 0, done.output
    return {one["category"]: one["probability"] for one in json.loads(done.stdout)[0]["top"]}


def by_library(classifier: Path, image: Path) -> dict[str, float]:
    network = load_backbone("small", random_weights=True)
    rows, _, _ = activations_of(network, [ImageItem(image.name, None, str(image.parent))], torch.device("cpu"))
    return dict(load_classifier(classifier).predict(rows)[0])


@pytest.mark.numeric
def test_from_the_first_drop_to_the_same_answers_elsewhere(
    browser: Any, tmp_path: Path, start_file: Path, glyphs: list[list[Path]]
) -> None:
    first, second = glyphs[:2]
    server = TeachServer(tmp_path / "s", "--classifier", start_file)
    with server:
        page = Page(browser, server.address)
        assert "token" not in page.page.url
        page.create("one")
        page.drop(page.card("one"), *first[:2])
        page.expect(one=2)
        page.page.fill("#new-name", "two")
        page.drop(page.page.locator("#new-category"), second[0])  # a category and its image in one
        page.expect(one=2, two=1)
        assert "2 categories learnt in" in page.page.inner_text("#learnt")
        assert next(iter(page.ask(first[0]))) == "one"
        page.page.click("#choices >> text=two")  # No, this is two
        page.expect(one=1, two=2)
        page.expect_first("two")  # the question was asked again by itself
        page.page.click("#undo")
        page.expect_first("one")
        page.ask(second[1])
        page.page.fill("#correct-name", "two")
        page.page.press("#correct-name", "Enter")
        page.expect(one=2, two=2)
        page.expect_first("two")
        page.page.click('.category[data-category="two"] .thumbnail >> nth=1')
        page.page.select_option("#example-move", "one")
        page.page.click("#example [value=move]")
        page.expect(one=3, two=1)
        page.page.click("#undo")
        page.expect(one=2, two=2)
        page.page.keyboard.press("Control+Shift+Z")
        page.expect(one=3, two=1)
        page.page.keyboard.press("Control+Z")
        page.expect(one=2, two=2)
        page.page.reload()
        page.expect(one=2, two=2)
        answer = page.ask(first[2])
        assert page.faults == []
        server.kill()
    server = TeachServer(tmp_path / "s", "--port", server.port)
    with server:
        page.faults.clear()  # of what was under way
        page.page.reload()  # the page that was open goes on
        page.expect(one=2, two=2)
        assert_near(page.ask(first[2]), answer)
        page.page.click('.views a[href="#away"]')
        for name in ("classifier.safetensors", "session.zip"):
            with page.page.expect_download() as download:
                page.page.click(f'a[href$="{name}"]')
            download.value.save_as(tmp_path / name)
        assert page.faults == []
        page.close()
    assert_near(by_command(tmp_path / "classifier.safetensors", first[2]), answer)
    assert_near(by_library(tmp_path / "classifier.safetensors", first[2]), answer)
    with TeachServer(tmp_path / "new", "--classifier", start_file) as other:
        page = Page(browser, other.address)
        page.drop(page.page.locator("#categories").locator(".."), tmp_path / "session.zip")  # anywhere on the page
        page.expect(one=2, two=2)
        assert_near(page.ask(first[2]), answer)
        assert page.faults == []
        page.close()


def test_the_other_ways_in(browser: Any, server: TeachServer, glyphs: list[list[Path]]) -> None:
    """Chosen, pasted, filmed and drawn; renamed and removed; by keyboard."""
    page = Page(browser, server.address, permissions=["camera"])
    page.create("shown")
    with page.page.expect_file_chooser() as chooser:
        page.card("shown").get_by_text("Choose…").click()
    chooser.value.set_files([str(file) for file in glyphs[0][:2]])
    page.expect(shown=2)
    page.card("shown").get_by_text("Camera").click()
    page.page.wait_for_function("() => document.getElementById('video').videoWidth > 0")
    page.page.click("#shoot")
    page.expect(shown=3)
    page.page.keyboard.press("Escape")
    page.page.wait_for_function("() => document.getElementById('video').srcObject === null")  # the camera is off
    page.card("shown").get_by_text("Draw").click()
    box = page.page.locator("#paper").bounding_box()
    page.page.mouse.move(box["x"] + 60, box["y"] + 60)
    page.page.mouse.down()
    page.page.mouse.move(box["x"] + 200, box["y"] + 220, steps=4)
    page.page.mouse.up()
    page.page.click("#drawn")
    page.expect(shown=4)
    page.page.click("#drawing >> text=Close")
    page.card("shown").get_by_role("button", name="Rename shown").click()
    page.page.keyboard.type("seen")
    page.page.keyboard.press("Enter")
    page.expect(seen=4)
    page.card("seen").locator(".thumbnail").first.focus()
    paste(page, glyphs[1][0])  # into the card that has the focus
    page.expect(seen=5)
    page.card("seen").locator(".thumbnail").first.focus()
    page.page.keyboard.press("Delete")
    page.expect(seen=4)
    page.page.evaluate("document.activeElement.blur()")
    paste(page, glyphs[1][1])  # anywhere else it is a question
    page.page.wait_for_selector("#answer[data-milliseconds]")
    page.drop(page.card("seen"), server.session / "session.json")
    page.page.wait_for_selector("#said[data-kind=error]")
    page.card("seen").get_by_label("Remove category seen").click()
    page.expect()
    refused = [fault for fault in page.faults if "415" not in fault]  # the browser's note on the refused file
    assert refused == []
    page.close()


def paste(page: Page, file: Path) -> None:
    page.page.evaluate(
        """async ([name, bytes]) => {
            const clipboardData = new DataTransfer();
            clipboardData.items.add(new File([new Uint8Array(bytes)], name, {type: "image/png"}));
            const event = new ClipboardEvent("paste", {clipboardData, bubbles: true, cancelable: true});
            (document.activeElement ?? document.body).dispatchEvent(event);
        }""",
        [file.name, list(file.read_bytes())],
    )


def test_the_check_shows_the_images_behind_a_cell(browser: Any, server: TeachServer, glyphs: list[list[Path]]) -> None:
    for place, name in ((2, "left"), (3, "right")):
        for file in glyphs[place]:
            server.add(name, file.read_bytes())
    page = Page(browser, server.address)
    page.page.click('.views a[href="#check"]')
    page.page.wait_for_selector(".matrix")
    assert page.page.locator(".matrix tbody tr").count() == 2
    shown = page.page.eval_on_selector_all(".matrix td button", "all => all.map(one => Number(one.textContent))")
    assert sum(shown) == 8
    page.page.click(".matrix td button >> nth=0")
    assert page.page.locator("#cell .thumbnail").count() == shown[0]
    assert page.page.locator("#map circle").count() == 8 + 8
    page.page.hover("#map circle.example >> nth=0")
    page.page.wait_for_selector("#map .told strong")
    assert page.faults == []
    page.close()
    for name in ("left", "right"):
        server.act(do="delete", category=name)


@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_every_view_fits_its_window_and_names_its_controls(browser: Any, server: TeachServer, width: int) -> None:
    page = Page(browser, server.address, viewport={"width": width, "height": 844}, color_scheme="dark")
    for view in ("teach", "ask", "check", "away"):
        page.page.evaluate("view => { location.hash = view; }", view)
        page.page.wait_for_function("view => document.body.dataset.view === view", arg=view)
        assert page.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        unnamed = page.page.evaluate(
            """[...document.querySelectorAll("button, a, input, select, video, canvas")]
                .filter(one => one.checkVisibility())
                .filter(one => !(one.textContent.trim() || one.ariaLabel || one.labels?.length))
                .map(one => one.outerHTML)"""
        )
        assert unnamed == []
    assert page.faults == []
    page.close()
