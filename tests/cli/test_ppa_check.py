"""`ppa check` on a folder of class folders, and on what a classifier was taught."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from actstore.backbones.loading import load_backbone
    from actstore.backbones.weights import save_weights

    file = tmp_path_factory.mktemp("weights") / "small.safetensors"
    save_weights(file, load_backbone("small", random_weights=True).module, "small")
    return file


@pytest.fixture
def check(studio: Path, weights: Path) -> tuple[Any, ...]:
    """new/ has 4 images of one glyph and 3 of another; one of a third is added."""
    third = sorted((studio / "images" / "train").iterdir())[0]
    Path("new/third").mkdir()
    shutil.copy(sorted(third.iterdir())[0], "new/third/only.png")
    return ("check", "new", "--backbone", "small", "--weights", weights, "--device", "cpu")


def test_a_folder(check: tuple[Any, ...], ppa: Run) -> None:
    found = json.loads(ppa(*check, "--json").stdout)
    first, second, _ = names = sorted(entry.name for entry in Path("new").iterdir())
    assert (found["images"], found["categories"], found["single"]) == (7, [first, second], ["third"])
    assert [sum(row) for row in found["confusion"]] == [4, 3]
    right = found["confusion"][0][0] + found["confusion"][1][1]
    assert found["accuracy"] == pytest.approx(right / 7)
    assert len(found["wrong"]) == 7 - right
    shown = ppa(*check).stdout
    assert f"{right} of 7 photos are taken for their category by the others" in shown
    assert "not checked, as they have one photo: third" in shown
    assert f"look alike: {chr(int(first[2:], 16))} and {chr(int(second[2:], 16))}" in shown
    assert names[2] == "third"


def test_an_image_in_the_wrong_folder_is_named_in_the_sheet(check: tuple[Any, ...], ppa: Run) -> None:
    first, second, _ = sorted(Path("new").iterdir())
    shutil.rmtree("new/third")
    for place in range(4):  # copies in all but bytes, so that the astray one is taken for them
        data = sorted(first.iterdir())[0].read_bytes()
        (first / f"copy{place}.png").write_bytes(data + bytes(place))
    (second / "astray.png").write_bytes(sorted(first.iterdir())[0].read_bytes() + bytes(9))
    (first / "broken.jpg").write_bytes(b"no image")
    said = ppa(*check, "--sheet", "check.html", "--json")
    assert f"skipped {first}/broken.jpg" in said.stderr
    wrong = {one["image"]: one for one in json.loads(said.stdout)["wrong"]}
    assert wrong[f"{second}/astray.png"]["taken_for"] == first.name
    page = Path("check.html").read_text()
    assert f"{second}/astray.png" in page
    assert page.count("data:image/jpeg") == json.loads(said.stdout)["images"]
    assert '<td class="off">' in page
    ppa(*check, "--sheet", "check.html", "--force")  # made again


def test_weights_that_are_fetched(studio: Path, ppa: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from actstore.extraction import from_images

    asked, load = [], from_images.load_backbone

    def fetched(name: str, weights: Path | None, pretrained: bool, **_: Any) -> Any:
        asked.append((name, pretrained))
        return load(name, random_weights=True)

    monkeypatch.setattr(from_images, "load_backbone", fetched)
    ppa("check", "new", "--backbone", "small", "--pretrained", "--device", "cpu")
    assert asked == [("small", True)]


def test_what_a_classifier_was_taught(studio: Path, ppa: Run, adapt: tuple[Any, ...]) -> None:
    ppa(*adapt)
    found = json.loads(ppa("check", "--json").stdout)
    assert (found["images"], len(found["categories"])) == (7, 2)
    assert all(", example " in one["image"] for one in found["wrong"])
    assert ppa("check", "--classifier", "classifier.safetensors").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["new", "--classifier", "c.safetensors"], "one of the two"), (["--sheet", "s.html"], "belong to PHOTOS"),
     (["--backbone", "small"], "belong to PHOTOS"), (["--pretrained"], "belong to PHOTOS"),
     (["new", "--pretrained"], "--pretrained belongs to --backbone")],
)  # fmt: skip
def test_options_that_exclude_each_other(studio: Path, ppa: Run, arguments: list[str], message: str) -> None:
    assert message in ppa("check", *arguments, code=2).stderr
