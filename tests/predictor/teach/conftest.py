"""A classifier of glyphs to begin with, images to teach, and a server that many tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.teach_server import TeachServer, glyph_files, write_glyph_classifier


@pytest.fixture(scope="session")
def start_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("teach") / "classifier.safetensors"
    write_glyph_classifier(path)
    return path


@pytest.fixture(scope="session")
def glyphs(tmp_path_factory: pytest.TempPathFactory) -> list[list[Path]]:
    """Image files of 12 categories, 4 of each."""
    return glyph_files(tmp_path_factory.mktemp("glyphs"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, start_file: Path) -> Iterator[TeachServer]:
    """Tests of a module share it: each leaves it able to answer."""
    with TeachServer(tmp_path_factory.mktemp("session") / "s", "--classifier", start_file) as running:
        yield running
