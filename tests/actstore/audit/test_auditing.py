"""Audits of small stores with planted faults; stores that lack this or that; interruption; what is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import actstore
from actstore.analysis import neighbours
from actstore.audit import Audit, Finding, audit_store, kept_audit, shared_rows
from actstore.audit.detection import UNJUDGED
from actstore.audit.outcome import BLOCKS, FILE
from actstore.errors import DamagedError, IncompleteError, InvalidInputError, LockedError, MissingSplitError
from actstore.storage.tensor_file import write_tensors
from actstore.upkeep.copies import select
from actstore.upkeep.repair import repair_faults
from actstore.upkeep.verify import verify_store

CLASSES = [f"c{number}" for number in range(5)]
Rows = tuple[NDArray[np.float32], NDArray[np.int64]]


def rows_of(per_class: int, seed: int, dim: int = 24) -> Rows:
    """Rows around a centre per class, far enough apart to tell their classes."""
    random, centres = np.random.default_rng(seed), 3 * np.random.default_rng(5).random((len(CLASSES), dim))
    labels = np.repeat(np.arange(len(CLASSES)), per_class)
    return np.abs(centres[labels] + 0.5 * random.standard_normal((len(labels), dim))).astype(np.float32), labels


def planted() -> dict[str, Rows]:
    """train: row 7 is row 3, row 60 almost row 50, the label of row 20 is wrong, row 9 is zero, feature 2 is dead.
    val: row 4 is train's row 11, row 5 almost train's row 12, row 10 is train's row 13 with another label."""
    (train, labels), (val, val_labels) = rows_of(30, 0), rows_of(8, 1)
    train[:, 2] = 0
    random = np.random.default_rng(2)
    train[7], train[60] = train[3], train[50] * (1 + 0.02 * random.standard_normal(24)).astype(np.float32)
    train[9], labels[20] = 0, 4
    val[4], val[5] = train[11], train[12] * (1 + 0.02 * random.standard_normal(24)).astype(np.float32)
    val[10] = train[13]
    return {"train": (train, labels), "val": (val, val_labels)}


@pytest.fixture
def store(tmp_path: Path) -> actstore.ActivationStore:
    return actstore.from_arrays(tmp_path / "x.zarr", planted(), classes=CLASSES, chunk_rows=64)


def pairs(audit: Audit, kind: Any) -> set[tuple[str, int, str, int]]:
    return {(one.split, one.row, one.other_split, one.other_row) for one in audit.of_kind(kind)}


def test_what_was_planted_is_found(store: actstore.ActivationStore) -> None:
    audit = audit_store(store)
    assert pairs(audit, "copy") == {
        ("train", 7, "train", 3), ("val", 4, "train", 11), ("val", 10, "train", 13),
    }  # fmt: skip
    assert pairs(audit, "near-copy") == {("train", 60, "train", 50), ("val", 5, "train", 12)}
    assert {(one.split, one.row) for one in audit.leaks()} == {("val", 4), ("val", 10), ("val", 5)}
    assert [(one.split, one.row) for one in audit.of_kind("empty-row")] == [("train", 9)]
    assert [(one.split, one.row, one.score) for one in audit.of_kind("dead-feature")] == [("train", 2, 0.0)]
    worst = audit.of_kind("suspect-label")[:2]  # and the copy of a row of another class
    assert {(one.split, one.row) for one in worst} == {("train", 20), ("val", 10)}
    assert {one.suggested for one in worst} == {0}
    assert audit.label_scores["train"][9] == UNJUDGED


@pytest.mark.numeric
@pytest.mark.parametrize("least", [1, 20_000])
def test_neighbours_are_those_of_plain_numpy(
    store: actstore.ActivationStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: int
) -> None:
    monkeypatch.setattr(neighbours, "_LEAST_INDEXED", least)  # with an index in memory, and without
    splits = [store["train"], store["val"]]
    rows = np.concatenate([np.asarray(split) for split in splits]).astype(np.float64)
    is_zero = ~rows.any(axis=1)
    found = neighbours.find_neighbours(splits, is_zero, 6, tmp_path / "blocks", "key")
    units = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)
    scores = units @ units.T
    np.fill_diagonal(scores, -np.inf)
    scores[:, is_zero] = -np.inf
    best = -np.sort(-scores, axis=1)[:, :6]
    np.testing.assert_allclose(found.scores[~is_zero], best[~is_zero], atol=1e-6)
    given = np.take_along_axis(scores, np.maximum(found.places, 0), 1)
    np.testing.assert_allclose(given[~is_zero], best[~is_zero], atol=1e-6)
    assert (found.places[is_zero] == -1).all()


def test_an_interrupted_audit_goes_on_and_ends_the_same(
    store: actstore.ActivationStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "BLOCK_ROWS", 32)
    whole = audit_store(store, folder=tmp_path / "whole")
    searched: list[int] = []
    real = neighbours._search

    def search(*arguments: Any) -> Any:
        if len(searched) == 3:
            raise KeyboardInterrupt
        searched.append(1)
        return real(*arguments)

    monkeypatch.setattr(neighbours, "_search", search)
    with pytest.raises(KeyboardInterrupt):
        audit_store(store)
    blocks = tmp_path / "x.zarr.audit" / BLOCKS
    assert len(list(blocks.iterdir())) == 3
    assert kept_audit(store) is None
    (blocks / "train-32.safetensors").write_bytes(b"broken")  # made again
    monkeypatch.setattr(neighbours, "_search", lambda *given: searched.append(1) or real(*given))  # type: ignore[func-returns-value]
    resumed = audit_store(store)
    assert len(searched) == 3 + 5 + 2 - 2
    assert not blocks.exists()
    assert list(resumed.findings) == list(whole.findings)
    assert (tmp_path / "x.zarr.audit" / FILE).read_bytes() == (tmp_path / "whole" / FILE).read_bytes()


def test_a_kept_audit_is_read_and_restart_makes_it_again(
    store: actstore.ActivationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = audit_store(store)
    searched: list[int] = []
    real = neighbours._search
    monkeypatch.setattr(neighbours, "_search", lambda *given: searched.append(1) or real(*given))  # type: ignore[func-returns-value]
    kept = audit_store(store)
    assert (list(kept.findings), kept.measured, searched) == (list(first.findings), first.measured, [])
    for name in ("train", "val"):
        np.testing.assert_array_equal(kept.label_scores[name], first.label_scores[name])
    audit_store(store, k=5)  # other settings
    assert len(searched) == 2
    audit_store(store, k=5, restart=True)
    assert len(searched) == 4


def test_an_audit_older_than_the_store_is_named_and_not_used(store: actstore.ActivationStore) -> None:
    assert kept_audit(store) is None
    audit_store(store)
    assert kept_audit(store) is not None
    with store.writer("train") as writer:
        writer.append(*rows_of(1, 3))
    with pytest.raises(InvalidInputError, match="is older than split 'train' as it is now; run `actstore audit"):
        kept_audit(store)
    assert kept_audit(store, "val") is not None
    assert len(audit_store(store).label_scores["train"]) == 155
    with store.writer("test") as writer:
        writer.append(*rows_of(1, 4))
    with pytest.raises(InvalidInputError, match="has not seen split 'test'"):
        kept_audit(store)


def test_a_damaged_audit_is_named_and_repaired(store: actstore.ActivationStore, tmp_path: Path) -> None:
    audit_store(store)
    file = tmp_path / "x.zarr.audit" / FILE
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)
    with pytest.raises(DamagedError, match=r"audit.safetensors is damaged: .* run `actstore audit` again"):
        kept_audit(store)
    faults = verify_store(store)
    assert [(fault.array, fault.kind) for fault in faults] == [("audit", "corrupt")]
    assert [said for _, said in repair_faults(store, faults)] == ["removed: make it again with `actstore audit`"]
    assert verify_store(store) == []
    assert kept_audit(store) is None


@pytest.mark.parametrize("content", [b"", b"nothing of the kind", None])
def test_a_damaged_audit_is_made_again(store: actstore.ActivationStore, tmp_path: Path, content: bytes | None) -> None:
    whole = audit_store(store)
    file = tmp_path / "x.zarr.audit" / FILE
    data = file.read_bytes()
    file.write_bytes(data[:-3] if content is None else content)
    assert list(audit_store(store).findings) == list(whole.findings)
    assert file.read_bytes() == data


def test_a_file_of_another_kind_is_replaced_only_beside_the_store(
    store: actstore.ActivationStore, tmp_path: Path
) -> None:
    place = tmp_path / "mine" / FILE
    write_tensors(place, "head", {"weight": torch.ones(2)}, {})
    with pytest.raises(InvalidInputError, match="got a head"):
        audit_store(store, folder=place.parent)
    write_tensors(tmp_path / "x.zarr.audit" / FILE, "head", {"weight": torch.ones(2)}, {})
    audit_store(store)
    assert kept_audit(store) is not None


def test_notes_say_whether_rows_or_neighbours_are_too_few(store: actstore.ActivationStore) -> None:
    assert audit_store(store).notes == []
    assert audit_store(store, k=3).notes == ["train, val: near copies are told by 5 neighbours or more, k is 3"]
    (said,) = audit_store(store, k=1000).notes
    assert "too few rows have 1000 neighbours that are no copies" in said


def test_rows_that_splits_share_are_all_named() -> None:
    findings = [
        Finding("copy", "train", 7, "train", 3), Finding("copy", "val", 4, "train", 3),
        Finding("copy", "train", 8, "other", 1), Finding("copy", "val", 6, "other", 1),
        Finding("near-copy", "val", 5, "train", 3), Finding("outlier", "val", 9, "train", 3),
    ]  # fmt: skip
    audit = Audit({}, {}, findings, {}, {}, [])
    assert shared_rows(audit, "val", "train") == {4: [3, 7], 5: [3, 7], 6: [8]}
    assert shared_rows(audit, "train", "val") == {3: [4, 5], 7: [4, 5], 8: [6]}


def audit_of(tmp_path: Path, splits: dict[str, Any], **options: Any) -> Audit:
    return audit_store(actstore.from_arrays(tmp_path / "y.zarr", splits, **options))


def test_without_labels_all_else_is_found(tmp_path: Path) -> None:
    audit = audit_of(tmp_path, {"train": (planted()["train"][0], None)})
    assert pairs(audit, "copy") == {("train", 7, "train", 3)}
    assert audit.of_kind("suspect-label") == []
    assert any("no row has a label" in note for note in audit.notes)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_few_rows_are_an_audit_too(tmp_path: Path, count: int) -> None:
    rows, labels = rows_of(1, 0)
    audit = audit_of(tmp_path, {"train": (rows[:count], labels[:count])}, classes=CLASSES)
    assert list(audit.findings) == []
    assert len(audit.notes) == 2


def test_one_class_has_no_suspects(tmp_path: Path) -> None:
    rows, labels = rows_of(20, 0)
    audit = audit_of(tmp_path, {"train": (rows, np.zeros_like(labels))}, classes=["all"])
    assert audit.of_kind("suspect-label") == []
    assert any("two classes have two rows each" in note for note in audit.notes)


def test_rows_of_zeros_alone(tmp_path: Path) -> None:
    audit = audit_of(tmp_path, {"train": (np.zeros((60, 8), np.float32), np.arange(60) % 2)}, classes=["a", "b"])
    assert audit.summary() == {
        "leaks": 0, "copy": 0, "near-copy": 0, "suspect-label": 0, "outlier": 0, "empty-row": 60, "dead-feature": 8,
    }  # fmt: skip


def test_many_copies_of_one_row_are_all_named(tmp_path: Path) -> None:
    rows, labels = rows_of(20, 0)
    rows[10:40] = rows[3]
    audit = audit_of(tmp_path, {"train": (rows, labels)}, classes=CLASSES)
    assert pairs(audit, "copy") == {("train", row, "train", 3) for row in range(10, 40)}


def test_splits_of_other_dims_are_looked_at_by_themselves(tmp_path: Path) -> None:
    store = actstore.from_arrays(tmp_path / "y.zarr", planted(), classes=CLASSES)
    wide, labels = rows_of(12, 3, dim=32)
    wide[5] = wide[2]
    with store.writer("layer", dim=32) as writer:
        writer.append(wide, labels)
    audit = audit_store(store)
    assert ("layer", 5, "layer", 2) in pairs(audit, "copy")
    assert ("val", 4, "train", 11) in pairs(audit, "copy")
    assert set(audit.measured) == {"train, val", "layer"}


def test_layers_of_chosen_rows_are_looked_at_by_themselves(tmp_path: Path) -> None:
    store = actstore.create(tmp_path / "y.zarr", classes=CLASSES, dim=24)
    for name, layer in (("train", "last"), ("train.first", "first")):
        with store.writer(name, source={"kind": "images", "path": "photos", "layer": layer}) as writer:
            writer.append(*rows_of(12, 3))
    chosen = select(store.path, tmp_path / "z.zarr", rows="0:40")
    for one in (store, chosen):
        assert set(audit_store(one).measured) == {"train", "train.first"}


def test_only_the_splits_asked_for(store: actstore.ActivationStore) -> None:
    audit = audit_store(store, ["val"])
    assert list(audit.contents) == ["val"]
    assert audit.leaks() == []
    with pytest.raises(MissingSplitError, match="no split 'none'"):
        audit_store(store, ["none"])


def test_stores_that_cannot_be_audited(tmp_path: Path) -> None:
    store = actstore.create(tmp_path / "z.zarr", classes=CLASSES, dim=24)
    with pytest.raises(InvalidInputError, match="has no split to audit yet"):
        audit_store(store)
    writer = store.writer("train")
    writer.append(*rows_of(2, 0))
    writer.close()
    with pytest.raises(IncompleteError, match="is not complete"):
        audit_store(store)


def test_a_second_audit_at_once_is_refused_and_blocks_of_others_stay(
    store: actstore.ActivationStore, tmp_path: Path
) -> None:
    folder, refused = tmp_path / "audit", []
    (folder / BLOCKS).mkdir(parents=True)
    (folder / BLOCKS / "mine.txt").write_text("mine")

    def second(_: int) -> None:
        with pytest.raises(LockedError, match="auditing"):
            audit_store(actstore.open(store.path), folder=folder, restart=True)
        refused.append(True)

    audit_store(store, folder=folder, progress=second)
    assert refused
    assert [path.name for path in (folder / BLOCKS).iterdir()] == ["mine.txt"]
