"""What a command may write to: its own kind of file, work only with --force, and never what it reads."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

import actstore
from actstore.errors import InvalidInputError
from actstore.storage.atomic_file import npy_bytes
from cli.outputs import claim
from cli.stores import sources_of
from predictor.classifier.classifier_file import load_classifier
from predictor.report import find_run
from tests.cli.conftest import invoke

Run = Callable[..., Any]
NAMED = ("--out", "--onnx")  # of which a file at a name of the user's is replaced by force alone
NEW = ("--store", "x.zarr", "--support-store", "x.zarr", "--class")


def run(*arguments: Any) -> Any:
    from cli.actstore import main

    return invoke(main, arguments, 0)


def test_an_existing_file_is_replaced_only_by_force(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("text")
    claim(new, None, new.with_name("deep") / "new")
    claim(old, new, force=True)
    with pytest.raises(InvalidInputError, match=r"old exists; .*--force"):
        claim(new, old)
    with pytest.raises(InvalidInputError, match="old exists; elsewhere"):
        claim(old, advice="elsewhere")


def test_what_a_command_keeps_by_itself_is_replaced_where_our_tools_wrote_it(tmp_path: Path) -> None:
    foreign, empty, ours, picture = (tmp_path / name for name in ("foreign", "empty", "ours", "picture.png"))
    foreign.write_bytes(np.random.default_rng(0).bytes(5000))
    empty.touch()
    ours.write_text(json.dumps([{"method": "nn"}]))
    Figure().savefig(picture)
    claim(kept=[ours, picture, tmp_path / "new"])
    for path in (foreign, empty):
        with pytest.raises(InvalidInputError, match=f"{path.name} exists"):
            claim(kept=[path])


def test_what_is_read_is_never_written_through_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a").write_text("text")
    Path("soft").symlink_to("a")
    os.link("a", "hard")
    Path("folder").mkdir()
    for name in ("a", "soft", "hard", "folder/../a", str(Path("a").resolve())):
        with pytest.raises(InvalidInputError, match="is read by this command"):
            claim(Path(name), inputs=[None, "s3://bucket/a", Path("a")], force=True)
    with pytest.raises(InvalidInputError, match="is asked for twice"):
        claim(Path("new"), Path("folder/../new"))
    with pytest.raises(InvalidInputError, match="is asked for twice"):
        claim(Path("a"), Path("hard"), force=True)


def test_adapt_from_a_classifier_changes_that_very_file(here: Path, ppa: Run) -> None:
    ppa("adapt", "--phi", "runs/phi2", *NEW, "c7", "--out", "mine.safetensors")
    Path("link").symlink_to("mine.safetensors")
    Path("classifier.safetensors").write_text("of somebody else")
    said = json.loads(ppa("adapt", "--classifier", "mine.safetensors", *NEW[2:], "c8", "--json").stdout)
    assert said["classifier"] == "mine.safetensors"
    ppa("adapt", "--classifier", "link", *NEW[2:], "c9", "--out", "mine.safetensors")
    assert set(load_classifier("mine.safetensors").support) == {"c7", "c8", "c9"}
    ppa("categories", "remove", "c7", "--classifier", "link")
    assert Path("link").is_symlink()
    assert set(load_classifier("mine.safetensors").support) == {"c8", "c9"}
    assert Path("classifier.safetensors").read_text() == "of somebody else"


def test_adapt_from_phi_replaces_a_classifier_only_by_force(here: Path, ppa: Run) -> None:
    ppa("adapt", "--phi", "runs/phi2", *NEW, "c7")
    refused = ppa("adapt", "--phi", "runs/phi2", *NEW, "c8", code=1).stderr
    for option in ("--force", "--out", "--classifier classifier.safetensors"):
        assert option in refused
    ppa("adapt", "--phi", "runs/phi2", *NEW, "c8", "--force")
    assert set(load_classifier("classifier.safetensors").support) == {"c8"}


def test_exports_tables_and_figures_are_made_again(here: Path, ppa: Run) -> None:
    """Every kind is recognised in what its command wrote: the second time is as the first."""
    ppa("adapt", "--phi", "runs/phi2", *NEW, "c7")
    commands: list[tuple[str, ...]] = [
        ("export", "--onnx", "c.onnx", "--torch", "c.pt"),
        *(("eval", "--methods", "nn", "--draws", "1", "--shots", "1", "--out", f"t.{kind}") for kind in ("md", "csv")),
        ("eval", "--phi", "runs/phi2", "--methods", "nn", "--draws", "1", "--shots", "1,2", "--out", "table.json"),
        ("episodes", "--way", "2", "--tasks", "2", "--methods", "class-mean", "--out", "episodes.json"),
        ("episodes", "--way", "2", "--tasks", "2", "--methods", "class-mean", "--out", "e.csv"),
        ("figures", "--run-folder", "."),
        ("report", "--folder", "."),
        ("calibrate", "--phi", "runs/phi1", "--tasks", "2", "--shots", "1", "--force"),
    ]
    for command in commands:
        again = ("--force",) if any(name in command for name in NAMED) and "--force" not in command else ()
        first, second = ppa(*command), ppa(*command, *again)
        assert first.exit_code == second.exit_code == 0, command
    for command in (
        ("train", "--phi", "phi1", "--epochs", "1", "--batches", "2", "--out", "runs/phi1", "--restart"),
        ("baseline", "oracle", "--epochs", "1", "--out", "runs/oracle", "--restart"),
    ):
        assert ppa(*command).exit_code == ppa(*command).exit_code == 0, command


def test_a_kept_table_of_other_figures_is_moved_aside(here: Path, ppa: Run) -> None:
    table, *aside = (Path("results") / f"table{end}.json" for end in ("", "-1", "-2", "-3"))
    command = ("eval", "--methods", "nn", "--shots", "1", "--draws")
    held: list[str] = []
    for draws in ("3", "2", "4"):
        said = [ppa(*command, draws).stderr for _ in range(2)]  # the second time nothing differs
        moved = f"{table} held other figures: they are in {aside[len(held) - 1]} now\n"
        assert [text.count(moved) for text in said] == [int(bool(held)), 0]
        held.append(table.read_text())
    assert [path.read_text() for path in aside[:2]] == held[:2]
    assert not aside[2].exists()
    assert find_run(Path()).table == table


@pytest.mark.parametrize("ending", ["npy", "npz", "csv", "parquet", "safetensors"])
def test_an_export_is_made_again_but_not_over_what_it_came_from(here: Path, ending: str) -> None:
    run("export", "x.zarr", f"rows.{ending}", "--rows", "0:5")
    run("export", "x.zarr", f"rows.{ending}", "--rows", "0:7", "--force")
    run("import", f"rows.{ending}", "again.zarr") if ending != "csv" else None
    if ending != "csv":
        with pytest.raises(InvalidInputError, match="is read by this command"):
            claim(Path(f"rows.{ending}"), inputs=sources_of(actstore.open("again.zarr")["train"]))


def test_row_numbers_and_means_are_made_again(here: Path) -> None:
    for force in ([], ["--force"]):
        run("query", "x.zarr", "--class", "c1", "-o", "deep/rows.npy", *force)
        run("query", "x.zarr", "--class", "c1", "-o", "deep/rows.txt", *force)
        run("means", "x.zarr", "-o", "deep/means.npy", *force)
    assert np.load("deep/rows.npy").tolist() == list(range(12, 24))
    assert Path("deep/rows.txt").read_text() == "".join(f"{row}\n" for row in range(12, 24))
    assert np.load("deep/means.npy").shape == (10, 16)
    assert np.load(io.BytesIO(npy_bytes(np.arange(3)))).tolist() == [0, 1, 2]


def test_a_folder_of_downloads_keeps_its_parts(here: Path) -> None:
    """`.part` is what browsers call an unfinished download too."""
    Path("downloads").mkdir()
    Path("downloads/film.part").write_text("half of it")
    shutil.copy("split.json", "downloads")
    from cli.actstore import main

    invoke(main, ("synth", "downloads", "--rows", 4, "--dim", 4, "--classes", 2), 1)
    assert Path("downloads/film.part").read_text() == "half of it"
