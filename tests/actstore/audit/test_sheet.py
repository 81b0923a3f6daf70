"""The page of thumbnails, and the tables."""

from __future__ import annotations

import base64
import csv
import io
import re
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from PIL import Image

import actstore
from actstore.audit import Audit, Finding
from actstore.audit.outcome import COLUMNS, make_sheet, write_findings
from actstore.errors import ActstoreError, InvalidInputError
from actstore.images.opening import SplitImages
from actstore.split import Split

COLOURS = [(250, 10, 10), (10, 250, 10), (10, 10, 250), (240, 240, 20)]


@pytest.fixture
def splits(tmp_path: Path) -> dict[str, Split]:
    """Imported rows whose ids are paths of images; that of row 3 is gone, and names are not to be trusted."""
    for number, colour in enumerate(COLOURS[:3]):
        Image.new("RGB", (40, 30), colour).save(tmp_path / f"{number}.png")
    rows, ids = np.eye(4, 6, dtype=np.float32), [f"{number}.png" for number in range(4)]
    train = (rows, [0, 1, 0, -1], ids)
    store = actstore.from_arrays(tmp_path / "x.zarr", {"train": train, "val": train}, classes=["<b>ant", "bee"])
    return {name: store[name] for name in ("train", "val")}


@pytest.fixture
def audit() -> Audit:
    findings = [
        Finding("copy", "val", 0, "train", 1, 1.0),
        Finding("near-copy", "train", 2, "train", 3, 0.98, 0.3),
        Finding("suspect-label", "train", 0, "train", 1, 0.5, -3.0, 1),
        Finding("outlier", "train", 2, "train", 1, 0.1, 4.5),
        Finding("empty-row", "val", 2),
        Finding("dead-feature", "val", 5, score=0.0),
    ]
    return Audit({"train": "a", "val": "b"}, {"k": 10}, findings, {}, {}, [])


def test_every_finding_shows_its_images(audit: Audit, splits: dict[str, Split], tmp_path: Path) -> None:
    page = make_sheet(audit, splits, tmp_path)
    found = re.findall(r"data:image/jpeg;base64,([^\"]+)", page)
    shown = [Image.open(io.BytesIO(base64.b64decode(data))) for data in found]
    middle = [tuple(np.asarray(image)[50, 50].tolist()) for image in shown]
    expected = [0, 1, 2, 0, 1, 2, 2]  # leak, near copy (its other image is gone), suspect, outlier, empty row
    assert len(middle) == len(expected)
    for colour, number in zip(middle, expected, strict=True):
        assert np.abs(np.subtract(colour, COLOURS[number])).max() < 20
    assert page.count("no image") == 1
    assert "<b>ant" not in page.replace("<b>&lt;b&gt;ant", "")
    assert "perhaps bee" in page
    assert page.count("but other labels") == 2
    assert not re.search(r"(src|href)=\"(?!data:)", page)  # nothing is fetched


def test_long_sections_are_cut_and_say_so(splits: dict[str, Split], tmp_path: Path) -> None:
    audit = Audit({}, {}, [Finding("empty-row", "train", 0)] * 9, {}, {}, [])
    page = make_sheet(audit, splits, tmp_path, most=4)
    assert "9, 4 shown" in page
    assert page.count("<article") == 4
    assert "Nothing was found" in make_sheet(Audit({}, {}, [], {}, {}, []), splits, tmp_path)


def test_images_that_are_not_at_hand(audit: Audit, splits: dict[str, Split]) -> None:
    with pytest.raises(InvalidInputError, match="its rows were imported; name the folder of their ids with --images"):
        make_sheet(audit, splits)
    with pytest.raises(ActstoreError, match="are not at hand"):
        SplitImages(splits["train"]).load(0)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_tables_hold_every_finding(audit: Audit, splits: dict[str, Split], tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"findings.{ending}"
    write_findings(audit, splits, path)
    if ending == "csv":
        lines = [
            {key: value or None for key, value in line.items()}
            for line in csv.DictReader(io.StringIO(path.read_text()))
        ]
    else:
        lines = pyarrow.parquet.read_table(path).to_pylist()
    assert [tuple(line) for line in lines] == [COLUMNS] * 6
    text = [{key: None if value is None else str(value) for key, value in line.items()} for line in lines]
    assert [line["kind"] for line in text] == [finding.kind for finding in audit.findings]
    assert [line["leak"] for line in text] == ["True", *["False"] * 5]
    assert [line["conflict"] for line in text] == ["True", "True", *["False"] * 4]
    assert (text[0]["id"], text[0]["other_id"], text[0]["other_label"]) == ("0.png", "1.png", "bee")
    assert (text[2]["label"], text[2]["other_label"], text[2]["score"]) == ("<b>ant", "bee", "-3.0")
    assert (text[5]["row"], text[5]["id"], text[5]["other_row"]) == ("5", None, None)


def test_other_endings_are_refused(audit: Audit, splits: dict[str, Split], tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="findings are written to"):
        write_findings(audit, splits, tmp_path / "findings.txt")
