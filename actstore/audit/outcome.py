"""What an audit says: findings, each about a row or a feature, and scores of all rows; findings as a table and a page
of thumbnails; and the file that keeps them, STORE.audit/audit.safetensors, with a checksum and named by the content it
is of."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from actstore.errors import ActstoreError, DamagedError, InvalidInputError, StorageError, reason_of
from actstore.images.opening import SplitImages, data_address, html_page, image_sources, jpeg_bytes
from actstore.spec import Json
from actstore.split import Split
from actstore.storage.atomic_file import write_atomic
from actstore.storage.place import Place
from actstore.storage.tensor_file import read_tensors, write_tensors
from actstore.store import ActivationStore

Kind = Literal["copy", "near-copy", "suspect-label", "outlier", "empty-row", "dead-feature"]
KINDS: tuple[Kind, ...] = get_args(Kind)
COLUMNS = (
    "kind", "leak", "split", "row", "id", "label", "other_split", "other_row", "other_id", "other_label",
    "similarity", "score", "conflict",
)  # fmt: skip
KIND_LABELS = {
    "leaks": "rows that another split holds too",
    "copy": "rows that are another row once more, the same up to rounding",
    "near-copy": "pairs nearer than chance has them: re-encoded, resized, cropped",
    "suspect-label": "labels that neither neighbours nor class means agree with",
    "outlier": "rows far from all others",
    "empty-row": "rows of zeros",
    "dead-feature": "features with one value in a whole split",
}
ENDINGS = (".csv", ".parquet")  # of a table of findings
_Place = tuple[str, int]  # split, row


@dataclass(frozen=True)
class Finding:
    """row: of the split; of a dead feature, its number. A copy is the same up to rounding, a near copy nearer than
    chance has it. Of both, the other row is the one that came first, in the
    split `train` where it has one; of a suspect label, the nearest row with the label `suggested`.

    score: of a suspect label and of an outlier, in standard deviations; of a near copy, its distance as a share of
    that of its furthest neighbour. suggested: a label, -1 for none.
    """

    kind: Kind
    split: str
    row: int
    other_split: str = ""
    other_row: int = -1
    similarity: float = 0.0
    score: float = 0.0
    suggested: int = -1

    @property
    def is_leak(self) -> bool:
        """A row of one split that another split holds too."""
        return self.kind in ("copy", "near-copy") and self.split != self.other_split


@dataclass(frozen=True)
class Audit:
    """contents: the hash of every split's rows, labels and ids. notes: what could not be looked at, and why.

    label_scores: (rows,) of every split, low is suspect, labels.UNJUDGED where there is nothing to judge.
    """

    contents: Mapping[str, str]
    settings: Mapping[str, Json]
    findings: Sequence[Finding]
    label_scores: Mapping[str, NDArray[np.float32]]
    measured: Mapping[str, Json]
    notes: Sequence[str]

    def of_kind(self, kind: Kind) -> list[Finding]:
        return [finding for finding in self.findings if finding.kind == kind]

    def leaks(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.is_leak]

    def summary(self) -> dict[str, int]:
        return {"leaks": len(self.leaks()), **{kind: len(self.of_kind(kind)) for kind in KINDS}}

    def to_json(self, splits: Mapping[str, Split]) -> dict[str, Any]:
        """All of it, with ids and class names; splits: those that were looked at, opened."""
        return {
            "splits": {name: len(split) for name, split in splits.items()},
            "summary": self.summary(),
            "settings": dict(self.settings),
            "measured": dict(self.measured),
            "notes": list(self.notes),
            "findings": [record(finding, splits) for finding in self.findings],
        }


def record(finding: Finding, splits: Mapping[str, Split]) -> dict[str, Any]:
    """A finding with ids and class names: a line of a table, keys as in COLUMNS; None for what does not apply."""
    split = splits[finding.split]
    is_row = finding.kind != "dead-feature"
    label = class_of(split, finding.row) if is_row else None
    other = splits.get(finding.other_split)
    other_label = None if other is None else class_of(other, finding.other_row)
    if finding.suggested >= 0:
        other_label = split.classes[finding.suggested]
    is_pair = finding.kind in ("copy", "near-copy")
    return {
        "kind": finding.kind,
        "leak": finding.is_leak,
        "split": finding.split,
        "row": finding.row,
        "id": split.ids[finding.row] if is_row else None,
        "label": label,
        "other_split": finding.other_split or None,
        "other_row": finding.other_row if other is not None else None,
        "other_id": None if other is None else other.ids[finding.other_row],
        "other_label": other_label,
        "similarity": round(finding.similarity, 6) if other is not None else None,
        "score": round(finding.score, 4) if finding.kind not in ("copy", "empty-row") else None,
        "conflict": is_pair and label != other_label,
    }


def class_of(split: Split, row: int) -> str | None:
    label = int(split.labels[row])
    return split.classes[label] if label >= 0 else None


def write_findings(audit: Audit, splits: Mapping[str, Split], path: Path) -> None:
    """All of them, in the order of the audit; what does not apply is empty."""
    if path.suffix not in ENDINGS:
        raise InvalidInputError(f"findings are written to {' or '.join(ENDINGS)}, got {path.name!r}")
    records = [record(finding, splits) for finding in audit.findings]
    if path.suffix == ".csv":
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
        write_atomic(path, text.getvalue().encode())
        return
    import pyarrow
    import pyarrow.parquet

    types = {
        **dict.fromkeys(("leak", "conflict"), pyarrow.bool_()),
        **dict.fromkeys(("row", "other_row"), pyarrow.int64()),
        **dict.fromkeys(("similarity", "score"), pyarrow.float64()),
    }
    schema = pyarrow.schema([(name, types.get(name, pyarrow.string())) for name in COLUMNS])
    buffer = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records, schema=schema), buffer)
    write_atomic(path, buffer.getvalue().to_pybytes())


def shared_rows(audit: Audit, split: str, other: str) -> dict[int, list[int]]:
    """Rows of a split -> all rows of the other split that are copies or near copies of it, ascending.

    A finding names only the first of several copies; here all of them count.
    """
    copies, near = (
        [((finding.split, finding.row), (finding.other_split, finding.other_row)) for finding in audit.of_kind(kind)]
        for kind in ("copy", "near-copy")
    )
    groups = _groups(copies, {place for pair in [*copies, *near] for place in pair})
    shared: dict[int, set[int]] = {}
    linked = [(group, group) for group in {id(group): group for group in groups.values()}.values()]
    linked += [(groups[place], groups[twin]) for pair in near for place, twin in (pair, pair[::-1])]
    for here, there in linked:
        twins = {row for name, row in there if name == other}
        for name, row in here:
            if name == split and twins:
                shared.setdefault(row, set()).update(twins)
    return {row: sorted(shared[row]) for row in sorted(shared)}


def _groups(copies: list[tuple[_Place, _Place]], places: set[_Place]) -> dict[_Place, list[_Place]]:
    """Every place -> all that are copies of one another, itself among them; the same list for each of these."""
    groups = {place: [place] for place in places}
    for pair in copies:
        less, more = sorted((groups[place] for place in pair), key=len)
        if less is not more:
            more += less
            groups.update(dict.fromkeys(less, more))
    return groups


FILE, BLOCKS = "audit.safetensors", "blocks"
VERSION = 1  # of what is computed and kept: another one's audit is made again
_KIND = "audit"
_KEYS = tuple(field.name for field in fields(Finding))
_FIGURES = ("similarity", "score")


def folder_of(store: Place) -> Path:
    return store.side_folder("audit")


def key_of(contents: Mapping[str, str], settings: Mapping[str, Json]) -> str:
    """Names the rows and settings that an audit, or a part of it, is of."""
    text = json.dumps([VERSION, dict(contents), dict(settings)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def save_audit(folder: Path, audit: Audit) -> None:
    names = [*audit.contents, ""]
    codes: dict[str, Callable[[Any], float]] = {"kind": KINDS.index, "split": names.index, "other_split": names.index}
    tensors = {f"label_score.{name}": torch.from_numpy(scores) for name, scores in audit.label_scores.items()}
    for key in _KEYS:
        values = [codes.get(key, float)(getattr(finding, key)) for finding in audit.findings]
        tensors[key] = torch.tensor(values, dtype=torch.float64 if key in _FIGURES else torch.int64)
    about = {key: getattr(audit, key) for key in ("contents", "settings", "measured", "notes")}
    write_tensors(folder / FILE, _KIND, tensors, {"version": VERSION, **about})


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
        meanings = {"kind": KINDS.__getitem__, "split": names.__getitem__, "other_split": names.__getitem__}
        columns = {key: [*map(meanings.get(key, lambda value: value), tensors[key].tolist())] for key in _KEYS}
        findings = [Finding(*values) for values in zip(*columns.values(), strict=True)]
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


SIDE = 112  # pixels of a thumbnail
MOST = 60  # findings of a section
_SECTIONS = (
    ("Leaks", "Images of one split that another split holds too. A test on them says nothing."),
    ("Copies", "The same image twice in one split. Where the labels differ, one of them is wrong."),
    ("Suspect labels", "Neither the neighbours nor the class means agree with the label; the most suspect first."),
    ("Outliers", "Far from all other rows, the furthest first: often not what the data set is about."),
    ("Empty rows", "Activations that are all zero: often a blank or broken image."),
)


def make_sheet(audit: Audit, splits: Mapping[str, Split], folder: Path | None = None, most: int = MOST) -> str:
    """folder: where the ids of the rows are paths; None: the images that the splits were built from."""
    images = {
        name: SplitImages(split, folder) for name, split in splits.items() if folder is not None or image_sources(split)
    }
    if not images:
        where = next(iter(splits.values())).store_path
        raise InvalidInputError(
            f"the images of {where} are not known, its rows were imported; name the folder of their ids with --images"
        )
    page = _Page(images, splits, most)
    parts = [page.section(*about, findings) for about, findings in zip(_SECTIONS, _sorted(audit), strict=True)]
    title = f"Audit of {next(iter(splits.values())).store_path.name}"
    facts = ", ".join(f"{len(split):,} rows of {name}" for name, split in splits.items())
    content = "".join(parts) or "<p>Nothing was found that could be shown.</p>"
    return html_page(title, facts, content, files(__package__) / "sheet.css", kind="actstore audit")


def _sorted(audit: Audit) -> Sequence[Sequence[Finding]]:
    """The findings of each section."""
    pairs = [*audit.of_kind("copy"), *audit.of_kind("near-copy")]
    return (
        [finding for finding in pairs if finding.is_leak],
        [finding for finding in pairs if not finding.is_leak],
        audit.of_kind("suspect-label"),
        audit.of_kind("outlier"),
        audit.of_kind("empty-row"),
    )


@dataclass(frozen=True)
class _Page:
    images: Mapping[str, SplitImages]
    splits: Mapping[str, Split]
    most: int

    def section(self, title: str, about: str, findings: Sequence[Finding]) -> str:
        if not findings:
            return ""
        cards = "\n".join(self._card(finding) for finding in findings[: self.most])
        shown = f"{len(findings):,}" + (f", {self.most} shown" if len(findings) > self.most else "")
        return (
            f"<section><h2>{escape(title)} <small>{shown}</small></h2>\n<p>{escape(about)}</p>\n"
            f'<div class="cards">{cards}</div></section>\n'
        )

    def _card(self, finding: Finding) -> str:
        line = record(finding, self.splits)
        tiles = [self._tile(finding.split, finding.row, line["label"])]
        if finding.kind in ("copy", "near-copy", "suspect-label"):
            other = class_of(self.splits[finding.other_split], finding.other_row)
            tiles.append(self._tile(finding.other_split, finding.other_row, other))
        caption = {
            "copy": "the same",
            "near-copy": f"similarity {finding.similarity:.4f}",
            "suspect-label": f"perhaps {line['other_label']}",
            "outlier": f"{finding.score:.1f} deviations off",
            "empty-row": "all zero",
            "dead-feature": "",
        }[finding.kind]
        if line["conflict"]:
            caption += ", but other labels"
        return (
            f'<article class="{"conflict" if line["conflict"] else ""}">'
            f'<div class="tiles">{"".join(tiles)}</div><p>{escape(caption)}</p></article>'
        )

    def _tile(self, split: str, row: int, label: str | None) -> str:
        name = self.splits[split].ids[row]
        caption = f"<figcaption><b>{escape(label or 'no label')}</b>{escape(split)} {row:,}</figcaption>"
        return f'<figure title="{escape(name)}">{self._picture(split, row)}{caption}</figure>'

    def _picture(self, split: str, row: int) -> str:
        try:
            if split not in self.images:
                raise ActstoreError("not known")
            image = self.images[split].thumbnail(row, SIDE)
        except (ActstoreError, OSError):
            return '<div class="missing">no image</div>'
        address = data_address(jpeg_bytes(image))
        return f'<img alt="" width="{SIDE}" height="{SIDE}" loading="lazy" src="{address}">'
