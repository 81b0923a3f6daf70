from __future__ import annotations

import json
import os
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from actstore.storage.atomic_file import check_checksum

Run = Callable[..., Any]


def read(path: str = "new.json") -> dict[str, list[str]]:
    """What a split file says, without its checksum, which is compared."""
    found: dict[str, list[str]] = check_checksum(json.loads(Path(path).read_text()))
    return found


def test_the_first_ninety_percent_are_the_base(here: Path, ppa: Run) -> None:
    result = json.loads(ppa("split", "--out", "new.json", "--json").stdout)
    assert result == {"file": "new.json", "base": 9, "novel": 1, "validation": 0, "warning": None}
    assert read() == {"base": [f"c{number}" for number in range(9)], "novel": ["c9"], "validation": []}
    shown = ppa("split", "--out", "new.json").stdout
    assert shown == "new.json: 9 base (c0 … c8), 1 novel category\n"
    assert "WARNING: no category is novel" in ppa("split", "--novel-share", 0.01, "--out", "none.json").stdout


def test_validation_categories_come_from_the_end_of_the_base(here: Path, ppa: Run) -> None:
    ppa("split", "--novel-share", 0.2, "--validation-share", 0.3, "--out", "new.json")
    assert read() == {"base": ["c0", "c1", "c2", "c3", "c4"], "novel": ["c8", "c9"], "validation": ["c5", "c6", "c7"]}


def test_drawn_by_a_seed(here: Path, ppa: Run) -> None:
    options = ("--novel-share", 0.3, "--validation-share", 0.2)
    for seed, out in ((1, "a.json"), (1, "b.json"), (2, "c.json")):
        ppa("split", "--seed", seed, *options, "--out", out)
    assert read("a.json") == read("b.json") != read("c.json")
    parts = read("a.json")
    assert [len(parts[name]) for name in ("base", "novel", "validation")] == [5, 3, 2]
    assert sorted(chain(*parts.values())) == [f"c{number}" for number in range(10)]


def test_from_a_file_with_some_held_out(here: Path, ppa: Run) -> None:
    source = {"base": ["c3", "c1", "c0"], "novel": ["c7"], "others say": ["c1"]}
    Path("old.json").write_text(json.dumps(source))
    ppa("split", "--from", "old.json", "--validate", "c1", "--out", "new.json")
    assert read() == {"base": ["c3", "c0"], "novel": ["c7"], "validation": ["c1"]}


def test_another_split_is_not_overwritten(here: Path, ppa: Run) -> None:
    before = read("split.json")
    assert (
        "split.json exists; it is another split; choose another --out, or replace it with --force"
        in ppa("split", "--seed", 3, code=1).stderr
    )
    assert read("split.json") == before
    ppa("split", "--novel-share", 0.3)  # the same again is fine
    ppa("split", "--seed", 3, "--force")
    assert read("split.json") != before
    Path("split.json").write_text("{ not json")
    assert "split.json exists" in ppa("split", code=1).stderr
    assert Path("split.json").read_text() == "{ not json"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--store", "no.zarr"], 1, "no.zarr"),
        (["--novel-share", 1.5], 2, "is not in the range"),
        (["--novel-share", 1], 2, "is not in the range 0<=x<1"),
        (["--novel-share", 0.5, "--validation-share", 0.6], 2, "got 1.1"),
        (["--from", "split.json", "--seed", 1], 2, "--from takes the classes of a file, --seed draws them"),
        (["--from", "split.json", "--validation-share", 0.1], 2, "name validation classes with --validate"),
        (["--from", "absent.json"], 1, "no split file at absent.json"),
        (["--from", "other.json"], 1, "base class 'zebra' of the split is not among the 10 classes"),
        (["--validate", "c9"], 1, "only base classes can be held out for validation, 'c9' is none"),
    ],
)
def test_bad_input(here: Path, ppa: Run, arguments: list[Any], code: int, message: str) -> None:
    Path("other.json").write_text(json.dumps({"base": ["zebra"], "novel": []}))
    assert message in ppa("split", *arguments, "--out", "new.json", code=code).stderr
    assert not Path("new.json").exists()


def test_no_store_or_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ppa: Run) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ACTSTORE", raising=False)
    assert "`actstore build IMAGES/`" in ppa("split", code=2).stderr
    for age, name in enumerate(("b.zarr", "c d.zarr", "a.zarr")):
        Path(name).mkdir()
        os.utime(name, (1000 - age, 1000 - age))
    Path("c d.zarr/zarr.json").touch()  # written to last
    said = ppa("split", "--seed", 4, code=2).stderr
    assert "c d.zarr, b.zarr, a.zarr" in said
    assert "`ppa split --seed 4 --store 'c d.zarr'`" in said


def test_a_backbone_that_saw_a_novel_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ppa: Run) -> None:
    import numpy as np

    import actstore

    monkeypatch.chdir(tmp_path)
    store = actstore.create("x.zarr", classes=["a", "b", "c"], dim=4, provenance={"trained_classes": ["a", "c"]})
    with store.writer("train") as writer:
        writer.append(np.ones((3, 4), np.float32), np.arange(3))
    warned = ppa("split", "--novel-share", 0.34)
    assert "WARNING: the backbone was trained on novel class 'c'" in warned.stdout
    fine = json.loads(ppa("split", "--from", "split.json", "--validate", "b", "--out", "new.json", "--json").stdout)
    assert "novel class 'c'" in fine["warning"]
    Path("fine.json").write_text(json.dumps({"base": ["a", "c"], "novel": ["b"]}))
    assert json.loads(ppa("split", "--from", "fine.json", "--force", "--json").stdout)["warning"] is None
