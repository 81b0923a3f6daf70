"""`ppa predict` on a folder as people have them: a table, csv, a sheet, one bad photo; and display names."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click.testing
import pytest

from actstore.backbones.network import imagenet_names
from predictor.classifier.classifier_file import load_classifier

Run = Callable[..., Any]


@pytest.fixture
def learnt(studio: Path, ppa: Run, adapt: tuple[Any, ...]) -> Path:
    ppa(*adapt, "--novel-bias", 0.5)
    return Path("classifier.safetensors")


def partly(*arguments: Any) -> click.testing.Result:
    """A run that did its work but for some images: exit code 1, and results all the same."""
    from cli.ppa import main

    result = click.testing.CliRunner().invoke(main, [str(one) for one in arguments])
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, SystemExit)
    return result


def test_one_bad_photo_does_not_stop_the_others(learnt: Path, ppa: Run) -> None:
    folder = sorted(Path("new").iterdir())[0]
    (folder / "broken.jpg").write_bytes(b"no image")
    result = partly("predict", "new", "--device", "cpu", "--json")
    assert len(json.loads(result.stdout)) == 7
    *_, skipped, last = result.stderr.splitlines()
    assert skipped.startswith(f"skipped {folder}/broken.jpg: not an image of a known kind")
    assert last == "1 of 8 images could not be read"
    assert len(json.loads(ppa("predict", "new", "--on-error", "skip", "--json").stdout)) == 7
    assert "broken.jpg: not an image" in ppa("predict", "new", "--on-error", "fail", code=1).stderr
    assert "the image cannot be read" in ppa("predict", folder / "broken.jpg", code=1).stderr
    shutil.copy(folder / "broken.jpg", folder / "broken2.jpg")
    for file in folder.iterdir():
        file.write_bytes(b"none")
    assert "none of the 6 images can be read" in ppa("predict", folder, code=1).stderr


def test_a_table_and_a_csv(learnt: Path, ppa: Run) -> None:
    found = json.loads(ppa("predict", "new", "--json").stdout)
    lines = ppa("predict", "new").stdout.splitlines()
    assert lines[0].split() == ["image", "category", "or"]
    assert len(lines) == 8
    for line, one in zip(lines[1:], found, strict=True):
        first, second, third = one["top"][:3]
        assert line.startswith(f"{one['image']}  {first['display']}")
        assert line.endswith(", ".join(f"{each['display']} {each['probability']:.1%}" for each in (second, third)))
    assert len(ppa("predict", "new", "--top", 1).stdout.splitlines()[1].split()) == 3
    printed = ppa("predict", "new", "--csv", "-", "--top", 2).stdout
    for _ in range(2):  # it may replace its own
        assert ppa("predict", "new", "--csv", "found.csv", "--top", 2).stdout.startswith("image")
    assert Path("found.csv").read_text() == printed
    Path("mine.csv").write_text("name,price\n")
    assert "mine.csv" in ppa("predict", "new", "--csv", "mine.csv", code=1).stderr
    rows = list(csv.DictReader(io.StringIO(printed)))
    assert [row["image"] for row in rows] == [one["image"] for one in found]
    for row, one in zip(rows, found, strict=True):
        assert (row["category_1"], row["name_2"]) == (one["top"][0]["category"], one["top"][1]["display"])
        assert float(row["probability_2"]) == pytest.approx(one["top"][1]["probability"], abs=1e-5)


def test_only_mine(learnt: Path, ppa: Run) -> None:
    taught = set(load_classifier(learnt).support)
    for one in json.loads(ppa("predict", "new", "--only-mine", "--json").stdout):
        assert {each["category"] for each in one["top"]} == taught
        assert sum(each["probability"] for each in one["top"]) == pytest.approx(1)
    for name in taught:
        ppa("categories", "remove", name)
    assert "none is left with --only-mine" in ppa("predict", "new", "--only-mine", code=1).stderr


def test_a_sheet_is_made_again_with_force_alone(learnt: Path, ppa: Run) -> None:
    for force in ((), ("--force",)):
        said = ppa("predict", "new", "--sheet", "deep/s.html", *force)
        assert "sheet: deep/s.html" in said.stderr
        assert "sheet" not in said.stdout
    page = Path("deep/s.html").read_text()
    assert page.count("data:image/jpeg;base64,") == 7
    for photo in Path("new").rglob("*.png"):
        assert photo.as_posix() in page
    Path("mine.html").write_text("my page")
    assert "mine.html" in ppa("predict", "new", "--sheet", "mine.html", code=1).stderr
    assert Path("mine.html").read_text() == "my page"


def test_display_names_are_shown_everywhere(learnt: Path, ppa: Run) -> None:
    first, second = load_classifier(learnt).support
    assert f"{first}         4  {chr(int(first[2:], 16))}" in ppa("categories", "list").stdout
    ppa("categories", "label", first, "the first one")
    Path("names.txt").write_text(f"{second} another\n")
    said = json.loads(ppa("categories", "label", "--names", "names.txt", "--json").stdout)
    assert (said["display"][first], said["display"][second]) == ("the first one", "another")
    found = json.loads(ppa("predict", f"new/{first}", "--json").stdout)
    assert (found[0]["top"][0]["category"], found[0]["top"][0]["display"]) == (first, "the first one")
    assert "the first one" in ppa("predict", f"new/{first}", "--sheet", "s.html").stdout
    assert '<p class="note plain">the first one</p>' in Path("s.html").read_text()
    ppa("categories", "rename", first, "n01440764")
    ppa("categories", "label", "n01440764", "")
    assert imagenet_names()["n01440764"] in ppa("predict", f"new/{first}").stdout
    ppa("categories", "remove", second)
    assert second not in load_classifier(learnt).about["display"]


def test_an_image_counts_once(studio: Path, ppa: Run, adapt: tuple[Any, ...]) -> None:
    first, second = sorted(Path("new").iterdir())
    image = sorted(first.iterdir())[0]
    shutil.copy(image, first / "zz copy.png")
    shutil.copy(image, second / "astray.png")
    said = ppa(*adapt)
    assert f"counted once: {first}/zz copy.png is the same image as {image}" in said.stderr
    assert f"WARNING: the same image is in 2 categories: {image} and {second}/astray.png" in said.stderr
    assert "from 8 examples" in said.stdout
