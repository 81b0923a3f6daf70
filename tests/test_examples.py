"""The examples run as they are, each within 40 lines, and say what is true of the data that they generate."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

import actstore
from actstore.images.glyphs import write_glyphs

pytestmark = pytest.mark.slow
FOLDER = Path(__file__).parents[1] / "examples"
NAMES = ("linear_probe", "cka", "neighbours")


def run(name: str, *arguments: object) -> str:
    command = [sys.executable, "-W", "error", FOLDER / f"{name}.py", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_short_enough_to_read(name: str) -> None:
    assert len((FOLDER / f"{name}.py").read_text().splitlines()) < 40


def test_linear_probe() -> None:
    found = re.fullmatch(r"([\d.]+)% of 500 rows of val, 10 classes\n", run("linear_probe"))
    assert found is not None
    assert float(found[1]) > 80  # the centres are eight noises apart; chance is 10%


@pytest.mark.numeric
def test_cka(tmp_path: Path) -> None:
    assert re.fullmatch(r"CKA of train and train\.layer3: 0\.\d{4}\n", run("cka"))
    random = np.random.default_rng(0)
    rows = random.standard_normal((300, 8)).astype(np.float32)
    turned = 3 * rows @ np.linalg.qr(random.standard_normal((8, 8)))[0] + 1
    other = random.standard_normal((300, 8)).astype(np.float32)
    actstore.from_arrays(tmp_path / "x.zarr", {"a": (rows, None), "b": (turned, None), "c": (other, None)})
    assert run("cka", tmp_path / "x.zarr", "a", "b") == "CKA of a and b: 1.0000\n"
    x, y = (part - part.mean(0) for part in (rows.astype(float), other.astype(float)))
    expected = np.linalg.norm(x.T @ y) ** 2 / (np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y))
    assert abs(float(run("cka", tmp_path / "x.zarr", "a", "c").split()[-1]) - expected) < 1e-4


def test_a_method_of_ones_own() -> None:
    printed = run("own_method")
    assert "Ridge regression" in printed
    assert "Nearest class mean" in printed


@pytest.mark.parametrize("name", ["own_method.py", "mission.ipynb"])
def test_public_names_are_enough(name: str) -> None:
    text = (FOLDER / name).read_text()
    assert re.search(r"import [^\n]*predictor", text)
    assert not re.search(r"(from|import) (actstore|predictor|baselines)\.", text)


def test_the_mission_in_a_notebook(tmp_path: Path) -> None:
    """In a kernel of its own, as a reader runs it."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(FOLDER / "mission.ipynb", 4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert sum(len(cell.source.splitlines()) for cell in cells) <= 30
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output.data for cell in cells for output in cell.outputs if "data" in output]
    assert sum("text/html" in data for data in shown) >= 6  # stores, results, what was learnt and predicted
    assert any("image/png" in data for data in shown)


def test_neighbours() -> None:
    lines = run("neighbours").splitlines()
    found = [re.fullmatch(r"other(\d+) is like first(\d+): 0\.9\d+", line) for line in lines]
    assert [(int(one[1]), int(one[2])) for one in found if one] == [(80 + row, 50 * row) for row in range(20)]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Characters under the names of mini-ImageNet's files: 10 base categories, 3 of them to choose by, 5 novel."""
    folder = tmp_path_factory.mktemp("photos")
    write_glyphs(folder / "glyphs", 15, 24, 10)
    with tarfile.open(folder / "miniimagenet.tar", "w") as tar:
        tar.add(folder / "glyphs", "miniimagenet")
    names = sorted(path.name for path in (folder / "glyphs" / "train").iterdir())
    split = {"base": names[:10], "novel": names[10:], "validation_novel_of_the_usual_split": names[7:10]}
    (folder / "miniimagenet-split.json").write_text(json.dumps(split))
    return folder


def run_script(name: str, *arguments: object, **settings: object) -> None:
    here = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment = os.environ | here | {key: str(value) for key, value in settings.items()}
    command = ["bash", FOLDER / name, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_few_shot_features_and_what_needs_images(photos: Path, tmp_path: Path) -> None:
    """Both scripts from end to end, so short that only their files tell of them."""
    out, short = tmp_path / "out", {"EPOCHS": 1, "DRAWS": 2, "TASKS": 20, "OMP_NUM_THREADS": 1}
    run_script("few_shot.sh", photos, out, HOURS=1e-4, PRESETS="few-shot", VIEWS=1, **short)
    for method in ("Nearest class mean", "SimpleShot (centred class mean)", "phi2", "Own classifier, centred examples"):
        for shots in (1, 3):
            table = (out / "few-shot-1.md").read_text()  # so few images may tell that a constant does not hold
            failed = re.escape(f"calibration failed: {method}, 100%, ") + f"(1 shot.*; )?{shots} shots?: "
            fitted = re.escape(f"| {method}, calibrated") + "(, max|, mean)? " + re.escape(f"| 100% | {shots} |")
            assert re.search(fitted, table) or re.search(failed, table)
    assert "phi2" in (out / "few-shot-1-episodes.md").read_text()
    run_script("photo_baselines.sh", photos, out, tmp_path / "more", SECONDS_EACH=1, STEPS=2, IMAGE_SIZE=28, **short)
    assert "MAML" in (tmp_path / "more" / "learners.md").read_text()
    assert "Triplet" in (tmp_path / "more" / "all-way.md").read_text()


def test_birds(tmp_path: Path) -> None:
    """Four base categories and four new ones; the listed examples are the first five of each."""
    write_glyphs(tmp_path / "glyphs", 8, 7, 3)
    photos, out, lists = tmp_path / "photos", tmp_path / "out", tmp_path / "lists"
    (tmp_path / "glyphs").rename(photos)
    (photos / "val").rename(photos / "test")
    lists.mkdir()
    shown = [path for name in sorted((photos / "train").iterdir()) for path in sorted(name.iterdir())[:5]]
    (lists / "session_1.txt").write_text("\n".join(map(str, shown)))
    settings = {
        "LISTS": lists,
        "SPLITS": "1",
        "SEEDS": "0",
        "DRAWS": 2,
        "NETWORKS": "efficientnet-lite0",
        "OPTIONS": "--batches 2",
        "STEPS": 2,
    }
    run_script("birds.sh", photos, out, OMP_NUM_THREADS=1, **settings)
    for name in ("sessions.md", "sessions-listed.md"):
        assert {"Nearest class mean", "phi1, mean"} <= set(
            re.findall(r"^\| ([^|]+) \|", (out / name).read_text(), re.M)
        )
    kept = list(csv.DictReader((out / "birds-all-way.csv").read_text().splitlines()))
    assert {"phi1, mean", "Ridge regression", "Attention over base weights"} <= {row["method"] for row in kept}
    assert all(bool(row["phi_leads_by_ausuc"]) != row["method"].startswith("phi") for row in kept)
    run_script("birds.sh", photos, out, OMP_NUM_THREADS=1, **settings)  # there is nothing left to do


def test_the_whole_way_on_photos(photos: Path, tmp_path: Path) -> None:
    """With a network that never saw a photo, and with pictures and a page at the end."""
    settings = {"BACKBONE": "small", "WEIGHTS": "--random-weights", "PER_CLASS": 8, "EPOCHS": 1, "DRAWS": 2}
    run_script("photo_features.sh", photos, tmp_path, **settings)
    assert {path.stem for path in (tmp_path / "figures").glob("*.png")} >= {"support", "class-maps", "channels"}
    assert "<h2" in (tmp_path / "report.html").read_text()


def test_few_shot_features_on_validation_categories(photos: Path, tmp_path: Path) -> None:
    run_script("few_shot.sh", photos, tmp_path / "out", SPLIT="validation", PRESETS="", OMP_NUM_THREADS=1)
    split = json.loads((tmp_path / "out" / "split.json").read_text())
    assert (len(split["base"]), len(split["novel"])) == (7, 3)
