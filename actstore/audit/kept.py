"""Where an audit is kept: STORE.audit/audit.safetensors, one file with a checksum, named by the content it is of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.audit.outcome import KINDS, Audit, Finding
from actstore.errors import ActstoreError, DamagedError, InvalidInputError
from actstore.spec import Json
from actstore.storage.place import Place
from actstore.storage.tensor_file import read_tensors, write_tensors
from actstore.store import ActivationStore

FILE, BLOCKS = "audit.safetensors", "blocks"
VERSION = 1  # of what is computed and kept: another one's audit is made again
_KIND = "audit"
_NUMBERS = ("row", "other_row", "suggested")
_FIGURES = ("similarity", "score")


def folder_of(store: Place) -> Path:
    return store.side_folder("audit")


def key_of(contents: Mapping[str, str], settings: Mapping[str, Json]) -> str:
    """Names the rows and settings that an audit, or a part of it, is of."""
    text = json.dumps([VERSION, dict(contents), dict(settings)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def save_audit(folder: Path, audit: Audit) -> Path:
    names = list(audit.contents)
    findings = audit.findings
    places = {name: number for number, name in enumerate([*names, ""])}
    kinds = {kind: number for number, kind in enumerate(KINDS)}
    tensors: dict[str, Tensor] = {
        "kind": torch.tensor([kinds[one.kind] for one in findings], dtype=torch.int64),
        "split": torch.tensor([places[one.split] for one in findings], dtype=torch.int64),
        "other_split": torch.tensor([places[one.other_split] for one in findings], dtype=torch.int64),
        **{key: torch.tensor([getattr(one, key) for one in findings], dtype=torch.int64) for key in _NUMBERS},
        **{key: torch.tensor([getattr(one, key) for one in findings], dtype=torch.float64) for key in _FIGURES},
        **{f"label_score.{name}": torch.from_numpy(scores) for name, scores in audit.label_scores.items()},
    }
    about = {
        "version": VERSION,
        "contents": dict(audit.contents),
        "settings": dict(audit.settings),
        "measured": dict(audit.measured),
        "notes": list(audit.notes),
    }
    write_tensors(folder / FILE, _KIND, tensors, about)
    return folder / FILE


def load_audit(folder: Path) -> Audit | None:
    """What is kept there, of whatever rows; None where nothing is, or where another version made it."""
    path = folder / FILE
    if not path.exists():
        return None
    tensors, about = read_tensors(path, _KIND, "run `actstore audit` again")
    if about.get("version") != VERSION:
        return None
    try:
        names = [*about["contents"], ""]
        columns = {key: tensors[key].tolist() for key in ("kind", "split", "other_split", *_NUMBERS, *_FIGURES)}
        findings = [
            Finding(KINDS[kind], names[split], row, names[other], other_row, similarity, score, suggested)
            for kind, split, other, row, other_row, suggested, similarity, score in zip(*columns.values(), strict=True)
        ]
        scores: dict[str, NDArray[np.float32]] = {
            name: tensors[f"label_score.{name}"].numpy() for name in about["contents"]
        }
        return Audit(about["contents"], about["settings"], findings, scores, about["measured"], about["notes"])
    except (KeyError, IndexError, TypeError) as error:
        raise DamagedError(f"{path} is damaged ({error!r} is missing); run `actstore audit` again") from error


def kept_audit(store: ActivationStore, *names: str) -> Audit | None:
    """The audit beside a store, if it is of what these splits (all by default) hold now; None where there is none.

    One that is of other rows, labels or ids is refused by name.
    """
    audit = load_audit(folder_of(store.path))
    if audit is None:
        return None
    splits = store.splits
    for name in names or splits:
        if audit.contents.get(name) != splits[name].content:
            what = "is older than" if name in audit.contents else "has not seen"
            raise InvalidInputError(
                f"the audit in {folder_of(store.path)} {what} split {name!r} as it is now; "
                f"run `actstore audit {store.path}` again"
            )
    return audit


def damaged(store: ActivationStore) -> Iterator[str]:
    """What is wrong with the audit kept beside a store; one that is merely old is no damage."""
    try:
        load_audit(folder_of(store.path))
    except InvalidInputError:
        return
    except ActstoreError as error:
        yield str(error)
