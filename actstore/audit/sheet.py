"""A page of thumbnails of what an audit found: one HTML file with everything in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path

from actstore.audit.outcome import Audit, Finding, class_of, record
from actstore.errors import ActstoreError, InvalidInputError
from actstore.images.opening import SplitImages, data_address, html_page, image_sources, jpeg_bytes
from actstore.split import Split

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
