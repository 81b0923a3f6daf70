"""The lines a newcomer types, in an empty folder without internet, with nothing added to them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import actstore
from actstore.images.glyphs import write_glyphs
from cli.actstore import main as store_tool
from cli.ppa import main as ppa_tool
from tests.cli.conftest import invoke

LITE0 = "efficientnet-lite0"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None) -> Path:
    """Empty but for photos/; nothing may be fetched, and nothing was before."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ACTSTORE", raising=False)
    write_glyphs(tmp_path / "photos", 10, 3, 2, size=40)
    return tmp_path


def store(*arguments: Any, code: int = 0) -> Any:
    return invoke(store_tool, arguments, code)


def ppa(*arguments: Any, code: int = 0) -> Any:
    return invoke(ppa_tool, arguments, code)


def test_build_and_train_need_no_option(folder: Path) -> None:
    built = store("build", "photos/")
    line = next(line for line in built.stderr.splitlines() if line.startswith("network: "))
    assert LITE0 in line
    assert "--backbone" in line
    provenance = actstore.open("photos.zarr").spec.provenance
    assert provenance["backbone"] == LITE0
    assert "resnet50" in provenance["network_chosen"]
    trained = ppa("train", "--phi", "phi1", "--epochs", "2")
    assert "90%" in trained.stderr
    assert Path("runs/phi1/model.safetensors").is_file()


def test_a_build_goes_on_with_the_network_it_began_with(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.move("photos/val", "later")
    store("build", "photos/train", "photos.zarr", "--workers", 0)

    def never(*_: Any) -> Any:
        raise AssertionError("the store says which network it is")

    monkeypatch.setattr("actstore.backbones.default_choice.default_backbone", never)
    assert "network: " not in store("build", "photos/train", "photos.zarr", "--workers", 0).stderr


def test_a_store_of_code_or_other_weights_is_not_gone_on_with(folder: Path) -> None:
    store("build", "photos/", "--backbone", "small", "--random-weights", "--workers", 0)
    assert "small needs weights" in store("build", "photos/", code=1).stderr
    actstore.open("photos.zarr").add_provenance(backbone="os:abort")
    assert "os:abort" in store("build", "photos/", code=1).stderr
    actstore.open("photos.zarr").add_provenance(backbone=LITE0)
    assert "--weights" in store("build", "photos/", code=1).stderr


def test_photos_are_learnt_without_an_option(folder: Path) -> None:
    adapted = ppa("adapt", "--support", "photos/train", "--device", "cpu")
    assert f"network: {LITE0}" in adapted.stderr
    checked = ppa("check", "photos/train", "--device", "cpu", "--json")
    assert f"network: {LITE0}" in checked.stderr
    assert json.loads(checked.stdout)


def test_bad_input_is_answered_before_anything_is_fetched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACTSTORE_OFFLINE", raising=False)
    monkeypatch.setattr("actstore.backbones.fetching.urlopen", None)
    Path("empty").mkdir()
    assert "empty" in store("build", "empty", code=1).stderr
    assert "did you mean resnet50" in store("build", "photos", "--backbone", "resnet5", code=1).stderr
    assert "--backbone" in store("build", "photos", "--pretrained", code=2).stderr
    assert "--offline" in store("build", "photos", "--backbone", "resnet50", "--pretrained", "--offline", code=2).stderr
