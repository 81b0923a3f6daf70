"""The documentation site builds without a warning, and its pages ask no other host for anything."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

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
    for tool, group in (("actstore", actstore_main), ("ppa", ppa_main)):
        for command in group.commands:
            assert f'id="{tool}-{command}"' in text or f">{command}<" in text, (
                f"{tool} {command} is not in the reference"
            )


def test_every_page_has_a_place_in_the_navigation(site: Path) -> None:
    named = (ROOT / "mkdocs.yml").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        assert f": {page.relative_to(ROOT / 'docs')}" in named, f"{page} is in no menu"
