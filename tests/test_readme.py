"""Every command and snippet of the README runs, in its order, on data small enough for a test.

Not run here: `make` and `pip install`, which set up an environment of their own; `ppa demo` and
`ppa teach`, which the text names, have tests/cli/test_demo.py and test_ppa_teach.py.
"""

from __future__ import annotations

import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from actstore.backbones.construction import build_network
from actstore.images.glyphs import write_glyphs
from predictor.training.phi_config import PRESETS
from tests.object_storage import S3Server

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
MANY = "When one machine is not enough"
NOT_RUN = ["make demo", "make test"]
# command -> options that make it short; they come last, so they replace what the README says
SHORT = {
    "ppa pretrain": "--backbone small --epochs 1 --batch-size 16 --image-size 32 --workers 0 --lr 0.01",
    "ppa train": "--epochs 1 --batches 3",
    "ppa calibrate": "--tasks 2 --shots 1,2",
    "ppa eval": "--draws 2 --shots 1,2",
    "ppa episodes": "--way 3 --tasks 4 --queries 1 --shots 1",
    "ppa sessions": "--draws 2 --way 2 --shots 2",
    "ppa baseline triplet": "--steps 3",
    "ppa baseline oracle": "--epochs 1",
    "ppa baseline maml": "--steps 2 --way 3 --queries 2",
    "ppa bench-inference": "--seconds 0.01 --backbone none --approximate none --no-fp32",
    "ppa bench-adapt": "--seconds 0.01 --backbone none --dim 32",
    "actstore build": "--backbone small --workers 0",
    "actstore synth": "--rows 300 --dim 64",
    "actstore glyphs": "--classes 5 --per-class 2",
    "actstore index": "",
}


def sections() -> dict[str, str]:
    parts = re.split(r"^## ", README, flags=re.MULTILINE)
    return {part.splitlines()[0]: part for part in parts[1:]}


def shell_lines(text: str) -> list[str]:
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    return [line.split("  #")[0].split(" # ")[0].strip() for block in blocks for line in block.splitlines()]


def commands(text: str) -> list[str]:
    return [line for line in shell_lines(text) if line.startswith(("actstore ", "ppa "))]


def snippets(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def run(line: str) -> None:
    from cli.actstore import main as actstore_main
    from cli.ppa import main as ppa_main

    shortened = max((key for key in SHORT if line.startswith(key)), key=len, default="")
    tool, *arguments = shlex.split(f"{line} {SHORT.get(shortened, '')}")
    done = CliRunner().invoke({"actstore": actstore_main, "ppa": ppa_main}[tool], arguments)
    assert done.exit_code == 0, f"{line}\n{done.output}"


def test_images_to_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_glyphs(tmp_path / "imagenet", 40, 5, 3, 0, 32)
    novel = sorted(folder for folder in (tmp_path / "imagenet" / "val").iterdir())[-2:]
    for folder, name in zip(novel, ("okapi", "quokka"), strict=True):
        shutil.copytree(folder, tmp_path / "new-animals" / name)
    shutil.copytree(novel[0], tmp_path / "photos")
    text = sections()
    wanted = [name for name in text if name not in ("Start", "Someone with features", MANY)]
    lines = [line for name in wanted for line in commands(text[name])]
    assert len(lines) > 15
    for line in lines:
        run(line)
    shutil.copy(next(novel[0].iterdir()), "a.jpg")  # what it is, its content says
    monkeypatch.setitem(PRESETS, "paper", replace(PRESETS["paper"], epochs=1, batches=2))
    monkeypatch.setenv("ACTSTORE_OFFLINE", "1")
    scope: dict[str, Any] = {}
    for name in ("Someone with 300 photos", "Someone with a notebook"):
        for code in snippets(text[name]):
            exec(code, scope)
    assert {"okapi", "quokka"} <= set(scope["classifier"].categories)
    assert {record["key"] for record in scope["results"].records} == {"phi2", "nn", "class-mean", "simple-shot"}


def test_features_and_snippets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    activations, labels, names = random.random((300, 16), np.float32), random.integers(0, 2, 300), ["tench", "goldfish"]
    for name, values in (("features", activations), ("labels", labels), ("more", activations[:9])):
        np.save(f"{name}.npy", values)
    Path("names.txt").write_text("tench\ngoldfish\n")
    Path("more.txt").write_text("shark\n" * 9)
    text = sections()
    for line in commands(text["Someone with features"]):
        run(line)
    scope = {"activations": activations, "labels": labels, "names": names}
    for code in snippets(text["Someone who only wants `take(rows)`"]):
        exec(code, scope)
    assert len(scope["train"]) == 309  # type: ignore[arg-type] # with those of `append`


def test_clusters_and_buckets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, s3: S3Server) -> None:
    monkeypatch.chdir(tmp_path)
    s3.create_bucket("features")
    write_glyphs(tmp_path / "imagenet", 4, 5, 3, 0, 32)
    torch.save(build_network("small", 4).state_dict(), "resnet50.pth")
    np.save("features.npy", np.random.default_rng(0).random((300, 16), np.float32))
    np.save("labels.npy", np.arange(300) % 5)
    lines = commands(sections()[MANY])
    assert len(lines) == 5
    for line in lines:
        run(line)


def test_every_command_of_the_readme_is_in_a_section_that_runs_or_is_named_as_one_that_cannot() -> None:
    assert set(commands(README)) == {line for part in sections().values() for line in commands(part)}
    assert [line for line in shell_lines(README) if line not in commands(README)] == NOT_RUN


@pytest.mark.parametrize(
    "page", [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"], ids=lambda page: page.name
)
def test_links_and_modules_of_the_documents_exist(page: Path) -> None:
    text = page.read_text()
    for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", text):
        assert (page.parent / link).exists(), f"{page.name} links to {link}"
    for module in re.findall(r"python -m (tests\.[a-z_.]+)", text):
        path = ROOT / module.rstrip(".").replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), f"{page.name} names {module}"
    for file in re.findall(r"`((?:actstore|predictor|baselines|cli|tests|tools|examples)/[\w/]+\.(?:py|sh))`", text):
        assert (ROOT / file).exists(), f"{page.name} names {file}"
