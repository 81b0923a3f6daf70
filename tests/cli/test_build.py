from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click.testing
import pytest
from PIL import Image

import actstore
from actstore.extraction.from_images import default_store
from cli.actstore import main


def run(*arguments: Any, code: int = 0) -> click.testing.Result:
    result = click.testing.CliRunner().invoke(main, [str(one) for one in arguments])
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("cat", "dog"):
        Path("photos", name).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (50, 60), (40 * number, 9, 90)).save(f"photos/{name}/{number}.jpg")
    Path("photos/dog/3.jpg").write_bytes(b"")
    return tmp_path / "photos"


SMALL = ("--backbone", "small", "--random-weights", "--workers", "0")


def test_a_folder_of_photos_becomes_a_store(photos: Path) -> None:
    result = json.loads(run("build", "photos/", *SMALL, "--json").stdout)
    assert result["rows"] == {"train": 6}
    assert result["skipped"] == 1
    shown = run("info", "photos.zarr", "--skipped").stdout
    assert "1 file or folder skipped" in shown
    assert "dog/3.jpg" in shown
    assert "6 rows" in run("build", "photos/", *SMALL).stdout  # repeated: nothing to do


def test_the_network_is_the_one_that_the_file_of_weights_says(photos: Path) -> None:
    from actstore.backbones.construction import build_network
    from actstore.backbones.weights import save_weights

    save_weights(Path("trained.safetensors"), build_network("small", 9), "small")
    weights = ("--weights", "trained.safetensors", "--workers", "0")
    run("build", "photos", *weights)
    assert "small" in run("info", "photos.zarr").stdout
    refused = run("build", "photos", "other.zarr", "--backbone", "simple", *weights, code=1)
    assert "it holds weights of small; pass --backbone small" in refused.stderr
    save_weights(Path("named.safetensors"), build_network("small", 9), "os:abort")  # a file can name no code to run
    refused = run("build", "photos", "other.zarr", "--weights", "named.safetensors", code=1)
    assert "it holds weights of os:abort" in refused.stderr


def test_a_class_that_only_val_has_is_named(photos: Path) -> None:
    photos.rename("train")
    for name in ("cat", "yak"):
        Path("set/val", name).mkdir(parents=True)
        Image.new("RGB", (50, 60)).save(f"set/val/{name}/0.jpg")
    Path("train").rename("set/train")
    done = run("build", "set", *SMALL, "--json")
    assert json.loads(done.stdout)["classes_train_lacks"] == {"val": ["yak"]}
    assert "WARNING: val has a class that train lacks: 'yak'" in done.stderr.splitlines()


ERRORS: dict[str, tuple[list[str], int, str]] = {
    "no images": (["build", "nowhere", *SMALL], 1, "no such file or folder: nowhere"),
    "no weights": (["build", "photos", "--backbone", "simple"], 1, "--weights FILE"),
    "missing weights": (["build", "photos", "--weights", "none.pth"], 1, "none.pth"),
    "unknown backbone": (["build", "photos", "--backbone", "alexnet"], 1, "alexnet"),
    "unknown layer": (["build", "photos", *SMALL, "--layer", "layer9"], 1, "no layer 'layer9'"),
    "device": (["build", "photos", *SMALL, "--device", "tpu"], 1, "device must be auto"),
    "fail": (["build", "photos", "f.zarr", *SMALL, "--on-error", "fail"], 1, "dog/3.jpg"),
    "both weights": (["build", "photos", *SMALL, "--weights", "x.pth"], 1, "exclude each other"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_are_one_clear_line(photos: Path, case: str) -> None:
    arguments, code, message = ERRORS[case]
    result = run(*arguments, code=code)
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_the_store_is_named_after_the_images() -> None:
    assert default_store("data/imagenet/") == Path("imagenet.zarr")
    assert default_store("mini.tar") == Path("mini.zarr")
    assert default_store("list.csv") == Path("list.zarr")
    assert default_store("glyphs:5x5x1") == Path("glyphs.zarr")


def test_the_path_of_a_folder_is_kept_without_the_slash_at_its_end(photos: Path) -> None:
    run("build", "photos/", *SMALL)
    (source,) = actstore.open("photos.zarr")["train"].committed.sources
    assert source["path"] == "photos"


def test_folders_that_hold_further_folders_are_named(photos: Path) -> None:
    for kind in ("kiwi", "lime"):
        Path("photos/cat", kind).mkdir()
        Image.new("RGB", (50, 60)).save(f"photos/cat/{kind}/1.jpg")
    shown = run("build", "photos", *SMALL).stderr
    assert "cat/kiwi" in shown


def test_a_share_that_leaves_nothing_is_a_wrong_option() -> None:
    for share in ("0", "1", "2"):
        assert "is not in the range 0<x<1" in run("build", "photos", "--val-share", share, code=2).stderr


def test_its_help_names_the_columns_of_a_list() -> None:
    assert "columns path, label and, if there are several splits, split" in " ".join(
        run("build", "--help").stdout.split()
    )
