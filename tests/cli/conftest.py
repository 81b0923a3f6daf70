"""`ppa` as a user runs it: a small store, a split and trained phis, made once and never written to."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click.testing
import numpy as np
import pytest

CLASSES = [f"c{number}" for number in range(10)]
Run = Callable[..., click.testing.Result]


def invoke(tool: Any, arguments: tuple[Any, ...], code: int) -> click.testing.Result:
    """A run that ends as it should: on failure with one line that says why, and never with a traceback."""
    result = click.testing.CliRunner().invoke(tool, [str(one) for one in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    if code:
        errors = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
        assert len(errors) == 1, result.stderr
        assert result.stderr.splitlines()[-1] == errors[0]
        assert result.stdout == ""
    return result


@pytest.fixture
def ppa() -> Iterator[Run]:
    """Run a command of `ppa` on one thread and expect this exit code."""
    import torch

    from cli.ppa import main

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield lambda *arguments, code=0: invoke(main, arguments, code)
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def make_activations() -> Callable[..., Any]:
    """Rows (n, dim) around a centre per class, and labels."""

    def make(per_class: int, seed: int, dim: int = 16) -> Any:
        random, centres = np.random.default_rng(seed), 2 * np.random.default_rng(5).random((10, dim))
        labels = np.repeat(np.arange(10), per_class)
        rows = np.abs(centres[labels] + 0.5 * random.standard_normal((len(labels), dim)))
        return rows.astype(np.float32), labels

    return make


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory, make_activations: Any) -> Path:
    """x.zarr (train and val of ten classes), split.json (7 base, 3 novel), runs/phi1 and runs/phi2."""
    import actstore
    from cli.ppa import main

    folder = tmp_path_factory.mktemp("world")
    splits = {"train": make_activations(12, 0), "val": make_activations(4, 1)}
    actstore.from_arrays(folder / "x.zarr", splits, classes=CLASSES).add_provenance(trained_classes=CLASSES[:7])
    invoke(main, ("split", "--store", folder / "x.zarr", "--novel-share", 0.3, "--out", folder / "split.json"), 0)
    for phi in ("phi1", "phi2"):
        invoke(
            main,
            ("train", "--phi", phi, "--store", folder / "x.zarr", "--split-file", folder / "split.json", "--lr", 0.05,
             "--epochs", 2, "--batches", 10, "--out", folder / "runs" / phi), 0,
        )  # fmt: skip
    return folder


@pytest.fixture
def here(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of one's own with all that; its runs and split may be changed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ACTSTORE", raising=False)
    (tmp_path / "x.zarr").symlink_to(world / "x.zarr")
    shutil.copy(world / "split.json", tmp_path)
    shutil.copytree(world / "runs", tmp_path / "runs")
    return tmp_path


@pytest.fixture(scope="session")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Glyphs of eight categories: six in a store built with random weights, two left over as support."""
    import torch

    from actstore.images.glyphs import write_glyphs
    from cli.actstore import main as store_tool
    from cli.ppa import main

    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("gallery")
    write_glyphs(folder / "images", 8, 4, 0, size=40)
    names = sorted(entry.name for entry in (folder / "images" / "train").iterdir())
    for name in names[6:]:
        shutil.move(folder / "images" / "train" / name, folder / "new" / name)
    next((folder / "new" / names[7]).iterdir()).unlink()  # 4 examples of one, 3 of the other
    for tool, arguments in (
        (store_tool, ["build", folder / "images", folder / "g.zarr", "--backbone", "small", "--random-weights",
                      "--workers", 0, "--dtype", "f4"]),
        (main, ["train", "--phi", "phi1", "--store", folder / "g.zarr", "--epochs", 1, "--batches", 3,
                "--out", folder / "runs" / "phi1"]),
    ):  # fmt: skip
        invoke(tool, tuple(arguments), 0)
    return folder


@pytest.fixture
def studio(gallery: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "g.zarr").symlink_to(gallery / "g.zarr")
    shutil.copytree(gallery / "new", tmp_path / "new")
    return gallery


@pytest.fixture
def adapt(studio: Path) -> tuple[Any, ...]:
    return ("adapt", "--phi", studio / "runs" / "phi1", "--support", "new", "--device", "cpu")
