"""Where an audit is kept: STORE.audit/audit.safetensors, one file with a checksum, named by the content it is of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from actstore.audit.outcome import KINDS, Audit, Finding
from actstore.errors import ActstoreError, DamagedError, InvalidInputError, StorageError, reason_of
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


def save_audit(folder: Path, audit: Audit) -> None:
    names, findings = [*audit.contents, ""], audit.findings
    columns = {
        "kind": [KINDS.index(finding.kind) for finding in findings],
        "split": [names.index(finding.split) for finding in findings],
        "other_split": [names.index(finding.other_split) for finding in findings],
        **{key: [getattr(finding, key) for finding in findings] for key in (*_NUMBERS, *_FIGURES)},
    }
    tensors = {
        **{key: torch.tensor(values, dtype=_type_of(key)) for key, values in columns.items()},
        **{f"label_score.{name}": torch.from_numpy(scores) for name, scores in audit.label_scores.items()},
    }
    about = {key: getattr(audit, key) for key in ("contents", "settings", "measured", "notes")}
    write_tensors(folder / FILE, _KIND, tensors, {"version": VERSION, **about})


def _type_of(column: str) -> torch.dtype:
    return torch.float64 if column in _FIGURES else torch.int64


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
        scores = {name: tensors[f"label_score.{name}"].numpy() for name in about["contents"]}
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


def damaged(store: ActivationStore) -> Iterator[ActstoreError]:
    """What is wrong with the audit kept beside a store; one that is merely old is no damage."""
    try:
        load_audit(folder_of(store.path))
    except InvalidInputError:
        return
    except ActstoreError as error:
        yield error
    except OSError as error:
        yield StorageError(f"cannot read {folder_of(store.path)}: {reason_of(error)}")
