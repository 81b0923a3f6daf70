"""What a store declares, the schema of it, and the key of a cache."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr
from click.testing import CliRunner

import actstore
from actstore.errors import InvalidInputError
from actstore.spec import CONVENTION
from cli.actstore import main

ROOT = Path(__file__).parents[3]
SCHEMA = json.loads((ROOT / "docs" / "actstore.schema.json").read_text())


@pytest.fixture
def store(tmp_path: Path) -> actstore.ActivationStore:
    columns = {"area": np.arange(6.0)}
    rows = np.ones((6, 4), np.float16)
    made = actstore.from_arrays(tmp_path / "x.zarr", {"train": (rows, [0, 1] * 3, list("abcdef"), columns)})
    made.add_provenance(license="CC-BY-4.0", backbone="resnet50", weights_sha256="0" * 64)
    return made


def test_a_new_store_declares_its_convention(store: actstore.ActivationStore) -> None:
    declared = zarr.open_group(store.path, mode="r").attrs["zarr_conventions"]
    assert declared == [CONVENTION]
    assert set(CONVENTION) <= {"uuid", "schema_url", "spec_url", "name", "description"}  # nothing else is allowed
    shown = CliRunner().invoke(main, ["info", str(store.path), "--json"])
    assert json.loads(shown.stdout)["conventions"] == [CONVENTION]
    assert CONVENTION["uuid"] in CliRunner().invoke(main, ["info", str(store.path)]).stdout
    assert CONVENTION["uuid"] in (ROOT / "docs" / "format.md").read_text()
    assert SCHEMA["$id"] == f"urn:uuid:{CONVENTION['uuid']}"


def test_a_store_that_declares_none_is_read_and_shown(store: actstore.ActivationStore) -> None:
    document = json.loads((store.path / "zarr.json").read_bytes())
    for key in ("zarr_conventions", "checksum"):
        del document["attributes"][key]
    Path(str(store.path), "zarr.json").write_text(json.dumps(document))
    assert len(actstore.open(store.path)["train"]) == 6
    shown = CliRunner().invoke(main, ["info", str(store.path), "--json"])
    assert json.loads(shown.stdout)["conventions"] == []


def documents(folder: Path) -> list[dict[str, Any]]:
    """Of all stores below a folder and of their splits."""
    found = [json.loads(path.read_text()) for path in sorted(folder.rglob("zarr.json"))]
    return [document for document in found if "actstore" in document["attributes"]]


def test_the_schema_holds_for_stores_of_now_and_of_before(store: actstore.ActivationStore, tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    with tarfile.open(ROOT / "tests" / "data" / "earlier.tar.gz") as archive:
        archive.extractall(tmp_path / "release", filter="data")
    checked = documents(tmp_path)
    assert len(checked) > 5
    for document in checked:
        jsonschema.validate(document, SCHEMA)


@pytest.mark.parametrize("change", [
    {"dim": 0}, {"dtype": "f8"}, {"format_version": 2}, {"classes": ["a", "a"]}, {"codec": "gzip"},
    {"provenance": {"weights_sha256": "unknown"}}, {"provenance": []},
])  # fmt: skip
def test_the_schema_refuses_what_is_none(store: actstore.ActivationStore, change: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    document = json.loads((store.path / "zarr.json").read_bytes())
    document["attributes"]["actstore"] |= change
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, SCHEMA)


@dataclass
class Resize:
    size: int
    crop: float = 0.875


class Described:
    def __repr__(self) -> str:
        return "Described(7)"


def test_a_fingerprint_changes_with_every_part_and_with_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.jpg").write_bytes(b"one")
    linear = torch.nn.Linear(3, 2)
    other = torch.nn.Linear(3, 2)
    other.load_state_dict(linear.state_dict())
    values = [
        "resnet50", "resnet18", 7, "7", 7.0, None, True, b"7", [1, 2], [2, 1], {"a": 1}, {"a": 2}, Resize(224),
        Resize(256), np.arange(3), np.arange(3.0), torch.arange(3), linear, Described(), tmp_path / "images",
    ]  # fmt: skip
    keys = [actstore.fingerprint(value) for value in values]
    assert len(set(keys)) == len(values)
    assert actstore.fingerprint(other) == actstore.fingerprint(linear)
    assert actstore.fingerprint({"b": 1, "a": 2}) == actstore.fingerprint({"a": 2, "b": 1})
    assert len({actstore.fingerprint(*parts) for parts in (("a", "b"), ("b", "a"), ("a", None, "b"))}) == 3
    with torch.no_grad():
        other.weight[0, 0] += 1
    assert actstore.fingerprint(other) != actstore.fingerprint(linear)
    (tmp_path / "images" / "a.jpg").write_bytes(b"two")
    assert actstore.fingerprint(tmp_path / "images") != keys[-1]


def test_a_fingerprint_is_the_same_in_another_process(store: actstore.ActivationStore) -> None:
    here = actstore.fingerprint("resnet50", {"resize": 256, "mean": [0.5, 0.25]}, store["train"])
    code = (
        "import sys, actstore; split = actstore.open(sys.argv[1])['train']; "
        "print(actstore.fingerprint('resnet50', {'mean': [0.5, 0.25], 'resize': 256}, split))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(store.path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == here


@pytest.mark.parametrize("value", [lambda image: image, object(), partial(max, object()), [object()]])
def test_what_has_no_lasting_description_is_refused_by_name(value: Any) -> None:
    with pytest.raises(InvalidInputError, match="transform"):
        actstore.fingerprint("resnet50", value)


def test_a_path_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="nowhere"):
        actstore.fingerprint("resnet50", source=tmp_path / "nowhere")
