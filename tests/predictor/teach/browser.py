"""Debian's chromium, driven by playwright: the page as a person uses it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
CAMERA = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]


def require_browser() -> None:
    """Skips where there is none: apt-get install chromium, and pip install playwright."""
    if CHROMIUM is None:
        pytest.skip("no chromium here: apt-get install chromium, or set $CHROMIUM")
    pytest.importorskip("playwright", reason="playwright is not installed")


@contextmanager
def open_browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", *CAMERA])
        try:
            yield browser
        finally:
            browser.close()


class Page:
    """The page of a server; what its console and its requests say that should not be there is kept in `faults`."""

    def __init__(self, browser: Any, address: str, **options: Any) -> None:
        self.faults: list[str] = []
        self.context = browser.new_context(accept_downloads=True, **options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(20_000)
        origin = address.split("/?")[0]
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", lambda message: message.type == "error" and self.faults.append(message.text))
        self.page.on("request", lambda request: request.url.startswith((origin, "blob:"))
                     or self.faults.append(f"a request to {request.url}"))  # fmt: skip
        self.page.goto(address)
        self.page.wait_for_selector("body.ready")

    def card(self, category: str) -> Any:
        return self.page.locator(f'.category[data-category="{category}"]')

    def create(self, category: str) -> None:
        self.page.fill("#new-name", category)
        self.page.press("#new-name", "Enter")
        self.card(category).wait_for()

    def drop(self, target: Any, *files: Any) -> None:
        target.drop({"files": [str(file) for file in files]})

    def expect(self, **counts: int) -> None:
        """Category -> thumbnails, as they are shown."""
        self.page.wait_for_function(
            "wanted => JSON.stringify([...document.querySelectorAll('.category')].map(card => [card.dataset.category, "
            "card.querySelectorAll('.thumbnail').length])) === JSON.stringify(Object.entries(wanted))", arg=counts,
        )  # fmt: skip

    def bars(self) -> dict[str, float]:
        found = self.page.eval_on_selector_all(
            "#bars .bar", "bars => bars.map(bar => [bar.dataset.category, Number(bar.dataset.share)])"
        )
        return dict(found)

    def ask(self, file: Any) -> dict[str, float]:
        self.page.evaluate("delete document.getElementById('answer').dataset.milliseconds")
        self.drop(self.page.locator("#ask-drop"), file)
        self.page.wait_for_selector("#answer[data-milliseconds]")
        return self.bars()

    def milliseconds(self) -> float:
        return float(self.page.get_attribute("#answer", "data-milliseconds"))

    def expect_first(self, category: str) -> None:
        self.page.wait_for_function(
            "wanted => document.querySelector('#bars .bar')?.dataset.category === wanted", arg=category
        )

    def close(self) -> None:
        self.context.close()
