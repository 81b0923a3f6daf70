"""`ppa pretrain` as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import click.testing
import pytest
import torch

from cli.group import Commands
from cli.ppa.pretrain import PRESETS, pretrain


@click.group(cls=Commands)
def ppa() -> None:
    """The group that the command belongs to."""


ppa.add_command(pretrain)
TINY = ("--epochs", 2, "--batch-size", 16, "--lr", 0.05, "--device", "cpu", "--workers", 0)


pytestmark = pytest.mark.usefixtures("one_thread")


def run(*arguments: Any, code: int = 0) -> click.testing.Result:
    result = click.testing.CliRunner().invoke(ppa, ["pretrain", *(str(one) for one in arguments)])
    assert result.exit_code == code, result.output
    return result


def test_train_on_the_embedded_glyphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = json.loads(run("glyphs:10x8x3", *TINY, "--out", "out", "--json").stdout)
    assert (result["preset"], result["classes"], result["train_images"], result["val_images"]) == ("quick", 9, 72, 27)
    assert result["weights"] == "out/best.safetensors"
    assert {file.name for file in Path("out").iterdir()} >= {
        "best.safetensors", "last.safetensors", "checkpoint.safetensors", "checkpoint.json", "log.csv", "curves.png",
    }  # fmt: skip
    again = run("glyphs:10x8x3", *TINY, "--out", "out")
    assert "small on 72 images of 9 base classes, 2 epochs" in again.stdout
    assert again.stdout.count("\n") == 1
    refused = run("glyphs:10x8x3", *TINY, "--out", "out", "--seed", 1, code=1)
    assert "belongs to another training: config seed was 0, is 1" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_two_networks_are_trained_and_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from actstore.backbones.loading import load_backbone, stated_backbone

    monkeypatch.chdir(tmp_path)
    asked = ("glyphs:10x8x3", *TINY, "--out", "out", "--ensemble", 2)
    result = json.loads(run(*asked, "--json").stdout)
    assert result["weights"] == "out/best.safetensors"
    assert [member["weights"] for member in result["members"]] == [f"out/{n}/best.safetensors" for n in (1, 2)]
    assert stated_backbone(Path("out/best.safetensors")) == "small+small"
    joined = load_backbone("small+small", Path("out/best.safetensors"))
    members = [load_backbone("small", Path(f"out/{n}/best.safetensors")) for n in (1, 2)]
    images = torch.rand(3, 3, 32, 32)
    (rows,) = joined.activations(images).values()
    expected = torch.cat([next(iter(member.activations(images).values())) for member in members], 1)
    torch.testing.assert_close(rows, expected)
    assert not torch.equal(rows[:, :256], rows[:, 256:])
    with torch.no_grad():
        mean = sum(member.module(images) for member in members) / 2
        torch.testing.assert_close(joined.module(images), mean, rtol=1e-4, atol=1e-4)
    assert joined.trained_classes == members[0].trained_classes
    again = run(*asked)  # trained already: joined and measured anew
    assert f"small+small, with the activations of all; top-1 {result['val_top1']:.2%}" in again.stdout
    alone = run("glyphs:10x8x3", *TINY, "--out", "out/2", "--seed", 1).stdout  # a member is a training like others
    assert "small on 72 images" in alone
    with torch.no_grad():
        hits = count_hits(joined, "glyphs:10x8x3")
    assert (result["val_images"], result["val_top1"]) == (27, pytest.approx(hits / 27))


def count_hits(backbone: Any, images: str) -> int:
    """Of the held-out images of its classes, those that it recognises."""
    from actstore.images.opening import open_images

    classes = backbone.trained_classes
    items = [item for item in open_images(images)["val"].items if item.label in classes]
    pixels = torch.stack([backbone.transform(item.load()) for item in items])
    wanted = torch.tensor([classes.index(item.label) for item in items])
    return int((backbone.module(pixels).argmax(1) == wanted).sum())


def test_an_ensemble_and_one_network_do_not_share_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for first, then, expected in (((), ("--ensemble", 2), "one network"), (("--ensemble", 2), (), "an ensemble")):
        out = ("glyphs:10x8x3", *TINY, "--out", expected)
        run(*out, *first)
        before = Path(expected, "best.safetensors").read_bytes()
        assert expected in run(*out, *then, code=1).stderr
        assert Path(expected, "best.safetensors").read_bytes() == before


def test_a_restarted_ensemble_keeps_nothing_of_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ("glyphs:10x8x3", *TINY, "--out", "out", "--ensemble", 2)
    run(*asked)
    second = Path("out/2/best.safetensors").read_bytes()
    restarted = (*asked, "--lr", 0.01)
    assert "belongs to another training" in run(*restarted, code=1).stderr
    run(*restarted, "--restart")
    assert Path("out/2/best.safetensors").read_bytes() != second
    run(*restarted)


def test_members_hold_out_the_same_tenth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no split val: what one was trained on, the joined network is not measured on."""
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        for number in range(20):
            path = Path(f"photos/{name}/{number}.png")
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (32, 32), (number * 12, 0, 255 if name == "a" else 0)).save(path)
    Path("split.json").write_text(json.dumps({"base": ["a", "b"], "novel": []}))
    result = json.loads(
        run("photos", *TINY, "--split-file", "split.json", "--out", "out", "--ensemble", 2, "--json").stdout
    )
    assert [member["val_images"] for member in result["members"]] == [result["val_images"]] * 2
    listings = [json.loads(Path(f"out/{n}/checkpoint.json").read_text())["identity"]["source"] for n in (1, 2)]
    assert listings[0] == listings[1]


def test_hours_plan_a_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from predictor.training.backbones import pretraining

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pretraining, "measure_speed", lambda config, size, **_: 72.0)
    arguments = ("glyphs:10x8x3", "--preset", "few-shot", "--batch-size", 16, "--device", "cpu", "--workers", 0)
    first = json.loads(run(*arguments, "--hours", 0.0007, "--backbone", "small", "--json").stdout)
    assert (first["epochs"], first["backbone"], first["preset"]) == (2, "small", "few-shot")
    assert json.loads(Path("pretrained/plan.json").read_text())["config"]["image_size"] == 32
    monkeypatch.setattr(pretraining, "measure_speed", None)  # the plan is not made again
    assert json.loads(run(*arguments, "--hours", 0.0007, "--backbone", "small", "--json").stdout)["epochs"] == 2


def test_two_processes_plan_and_train_together(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
    settings = "--preset few-shot --backbone small --image-size 32 --precision float32 --batch-size 16 --hours 1e-9"
    command = [*launcher, str(Path(sys.executable).with_name("ppa")), "pretrain", "glyphs:10x8x3", *settings.split()]
    environment = {
        **os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    done = subprocess.run(
        [*command, "--device", "cpu", "--workers", "0", "--json"], capture_output=True, text=True, env=environment,
        cwd=tmp_path, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["epochs"] == 1
    speeds = json.loads((tmp_path / "pretrained" / "plan.json").read_text())["images per second"]
    assert list(speeds) == ["small, 32 pixels, float32"]


@pytest.mark.parametrize("named", [("--split-file", "split.json"), ()], ids=["named", "found"])
def test_a_folder_with_a_split_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: tuple[str, ...]) -> None:
    from actstore.images.glyphs import write_glyphs

    monkeypatch.chdir(tmp_path)
    write_glyphs(Path("images"), 4, 10, 0, size=40)
    names = sorted(folder.name for folder in Path("images/train").iterdir())
    Path("split.json").write_text(json.dumps({"base": names[2:], "novel": names[:2]}))
    settings = ("--backbone", "simple", "--image-size", 24, "--augment", "crop", "--no-in-memory", "--jitter", 0.2)
    done = run("images", *TINY, *settings, *named, "--json")
    assert ("categories: split.json of this folder" in done.stderr) == (not named)
    result = json.loads(done.stdout)
    assert (result["backbone"], result["classes"], result["train_images"]) == ("simple", 2, 18)
    assert result["held_out"] == "10% of train"
    config = json.loads(Path("pretrained/checkpoint.json").read_text())["identity"]["config"]
    assert (config["image_size"], config["augment"], config["in_memory"], config["jitter"]) == (24, "crop", False, 0.2)


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["nowhere"], 1, "no such file or folder: nowhere"),
        (["glyphs:10x8"], 1, "or glyphs:CLASSESxTRAINxVAL such as glyphs:1000x40x10, got 'glyphs:10x8'"),
        (["glyphs:10x8x3", "--split-file", "absent.json"], 1, "no split file at absent.json"),
        (["glyphs:10x8x3", "--backbone", "alexnet"], 1, "can be trained here, got 'alexnet'"),
        (["glyphs:10x8x3", "--preset", "slow"], 2, "'slow' is not one of"),
        (["glyphs:10x8x3", "--jitter", "0.4"], 1, "colours of images kept in memory cannot be changed"),
        (["glyphs:10x8x3", "--hours", "1", "--epochs", "3"], 2, "--hours plans the epochs"),
        (["glyphs:10x8x3", "--hours", "0"], 2, "0 is not in the range"),
        ([], 2, "Missing argument 'IMAGES'"),
    ],
)
def test_bad_input_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert expected in run(*arguments, code=code).stderr


def test_the_presets_of_the_help_are_those_of_the_table() -> None:
    from predictor.training.backbones import config

    assert set(PRESETS) == set(config.PRESETS)


def test_every_setting_has_an_option() -> None:
    from dataclasses import fields

    from predictor.training.backbones.config import TrainingConfig

    options = {parameter.name for parameter in pretrain.params}
    assert {field.name for field in fields(TrainingConfig)} <= options
