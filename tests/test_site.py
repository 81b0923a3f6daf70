"""The documentation site builds without a warning, its pages ask no other host for anything, and its links lead
somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_nothing_comes_from_another_host(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        text = page.read_text()
        fetched = re.findall(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"(https?:[^\"]*)", text)
        fetched += re.findall(
            r"<link\b[^>]*rel=\"(?:stylesheet|icon|preconnect|preload)\"[^>]*href=\"(https?:[^\"]*)", text
        )
        assert not fetched, f"{page.name} fetches {fetched}"


def test_links_lead_to_a_page_and_a_place_on_it(site: Path) -> None:
    texts = {page.resolve(): page.read_text() for page in site.rglob("*.html") if page.name != "404.html"}
    places = {page: set(re.findall(r"\bid=\"([^\"]+)\"", text)) for page, text in texts.items()}
    checked = 0
    for page, text in texts.items():
        for link in re.findall(r"<(?:a|img)\b[^>]*?\b(?:href|src)=\"([^\":]+)\"", text):
            path, _, place = unquote(link).partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), f"{page.name} links to {link}"
            if place and target in places and not place.startswith(("__", "gh-")):
                assert place in places[target], f"{page.name} links to {link}"
            checked += 1
    assert checked > 500


def test_every_public_name_and_command_is_described(site: Path) -> None:
    import actstore
    import baselines
    import predictor
    from cli.actstore import main as actstore_main
    from cli.ppa import main as ppa_main

    for package in (actstore, predictor, baselines):
        text = (site / "reference" / f"{package.__name__}.html").read_text()
        for name in set(package.__all__) - {"__version__"}:
            assert f'id="{package.__name__}.{name}"' in text, f"{package.__name__}.{name} is not in the reference"
    text = (site / "reference" / "cli.html").read_text()
    assert "Sentinel" not in text, "a default that click does not know is shown"
    for tool, group in (("actstore", actstore_main), ("ppa", ppa_main)):
        for command in group.commands:
            assert f'id="{tool}-{command}"' in text or f">{command}<" in text, (
                f"{tool} {command} is not in the reference"
            )


def test_every_page_has_a_place_in_the_navigation(site: Path) -> None:
    named = (ROOT / "mkdocs.yml").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        assert f": {page.relative_to(ROOT / 'docs')}" in named, f"{page} is in no menu"


def test_bars_show_the_figures_of_the_table() -> None:
    from tests.bench.pictures import IMAGES, search_bars

    assert (IMAGES / "search.svg").read_text() == search_bars()
