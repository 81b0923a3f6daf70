"""`actstore audit`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from actstore.progress import bar
from cli.group import emit, example, json_option, table
from cli.options import FOLDER, PATH, ending
from cli.outputs import claim, claim_folder
from cli.stores import Place, sources_of, store_argument

HEADERS = {
    "copy": ["", "row", "id", "is also", "id", "label"],
    "near-copy": ["", "similarity", "row", "id", "is near", "id", "label"],
    "suspect-label": ["score", "row", "id", "label", "perhaps"],
    "outlier": ["deviations", "row", "id", "label"],
    "empty-row": ["row", "id", "label"],
    "dead-feature": ["split", "feature", "always"],
}


@click.command(
    epilog=example(
        "actstore audit photos.zarr",
        "actstore audit photos.zarr --output findings.csv --sheet findings.html",
        "actstore audit imagenet.zarr --split train --split val --json",
    )
)
@store_argument
@click.option("--split", "names", multiple=True, help="Which split; may be repeated.  [default: all]")
@click.option("-k", type=click.IntRange(1, 1000), default=10, show_default=True, help="Neighbours that are looked at.")
@click.option("--most", type=click.IntRange(0), default=10, show_default=True, help="Findings of each kind to print.")
@click.option("--output", "-o", type=PATH, callback=ending(".csv", ".parquet"),
              help="Also write all findings: .csv or .parquet.")  # fmt: skip
@click.option("--sheet", type=PATH, callback=ending(".html"), help="Also write a page of thumbnails, .html.")
@click.option("--images", type=click.Path(path_type=Path, exists=True, file_okay=False),
              help="Where the ids of imported rows are paths of images, for --sheet.")  # fmt: skip
@click.option(
    "--keep", type=FOLDER, help="Folder for the audit, finished or interrupted.  [default: STORE.audit beside it]"
)
@click.option("--restart", is_flag=True, help="Discard an interrupted or kept audit instead of using it.")
@json_option
def audit(
    store: Place, names: tuple[str, ...], k: int, most: int, output: Path | None, sheet: Path | None,
    images: Path | None, keep: Path | None, restart: bool,
) -> None:  # fmt: skip
    """Name what STORE should not hold: copies and near copies, within a split and across (a test image that is in
    train is a leak), suspect labels, outliers, rows of zeros and dead features.

    By exact nearest neighbours, all splits together. Kept beside STORE: repeated, it is read; interrupted, it goes on;
    of older rows, it is made again. `ppa eval` names the leaks.
    """
    import actstore
    from actstore.audit import FILE, audit_store, make_sheet, write_findings
    from actstore.storage import as_utf8, write_atomic

    opened = actstore.open(store)
    inputs = [path for name in opened.splits for path in sources_of(opened[name])]
    claim(output, sheet, inputs=inputs)
    if keep is not None:
        claim_folder(keep, [FILE], inputs)
    begin = time.perf_counter()
    rows = sum(opened.splits[name].rows for name in set(names or opened.splits) if name in opened.splits)
    with bar("audit", 2 * rows, "rows", True) as done:  # one pass over the rows, and the neighbours of each
        outcome = audit_store(opened, names, k, keep, restart, done.update)
    splits = {name: opened[name] for name in outcome.contents}
    if output is not None:
        write_findings(outcome, splits, output)
    if sheet is not None:
        write_atomic(sheet, as_utf8(make_sheet(outcome, splits, images)))
    result = {"store": str(store), **outcome.to_json(splits), "seconds": time.perf_counter() - begin}
    emit(result, _text(result, most))


def _text(result: dict[str, Any], most: int) -> str:
    from actstore.audit import KIND_LABELS

    splits = result["splits"]
    parts = [f"{result['store']}: {sum(splits.values()):,} rows of {', '.join(splits)}, {result['seconds']:.1f} s", ""]
    parts.append(
        table(["found", "", "what"], [[name, count, KIND_LABELS[name]] for name, count in result["summary"].items()])
    )
    for kind, header in HEADERS.items():
        findings = [finding for finding in result["findings"] if finding["kind"] == kind]
        if findings and most:
            findings.sort(key=lambda finding: not finding["leak"])  # leaks before what is within a split
            more = f", {most} of {len(findings):,} (--most, or --output for all)" if len(findings) > most else ""
            lines = [list(map(str, _cells(finding))) for finding in findings[:most]]
            parts += ["", f"{kind}{more}", table(header, lines)]
    return "\n".join([*parts, *(f"\nnote: {note}" for note in result["notes"])])


def _cells(line: dict[str, Any]) -> list[Any]:
    """What HEADERS names."""
    here, label = [f"{line['split']}/{line['row']}", line["id"]], line["label"] or ""
    there = [f"{line['other_split']}/{line['other_row']}", line["other_id"]]
    if line["kind"] in ("copy", "near-copy"):
        clash = f"labels differ: {line['label']}, {line['other_label']}" if line["conflict"] else label
        similar = [f"{line['similarity']:.4f}"] if line["kind"] == "near-copy" else []
        return ["leak" if line["leak"] else "", *similar, *here, *there, clash]
    if line["kind"] == "suspect-label":
        return [f"{line['score']:.2f}", *here, label, line["other_label"]]
    if line["kind"] == "outlier":
        return [f"{line['score']:.2f}", *here, label]
    return [line["split"], line["row"], f"{line['score']:g}"] if line["kind"] == "dead-feature" else [*here, label]
