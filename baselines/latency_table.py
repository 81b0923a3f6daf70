"""The inference comparison as a table, as JSON and as a bar chart, beside the paper's figures."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from actstore.bench.measure import Result
from actstore.files import write_atomic
from actstore.paper import read_table
from baselines.latency import Latency

PAPER_BATCH = 32
PARAMETRIC, NEAREST = "#0072b2", "#d55e00"  # Okabe-Ito


def paper_figures() -> dict[str, float]:
    """nn and parametric: milliseconds per image. memory: bytes."""
    values = {row["what"]: float(row["value"]) for row in read_table("efficiency")}
    return {
        "nn": values["NN and Triplet inference per image"],
        "parametric": values["parametric inference per image (batch 32)"],
        "memory": values["NN memory"] * 1e9,
    }


def totals(latencies: Sequence[Latency], batch: int) -> list[tuple[Latency, float]]:
    """Each head or search at this batch size with the backbone's time added, the parametric one first."""
    mine = [one for one in latencies if one.batch == batch]
    backbone = sum(one.median for one in mine if one.part.kind == "backbone")
    return [(one, backbone + one.median) for kind in ("head", "search") for one in mine if one.part.kind == kind]


def to_results(latencies: Sequence[Latency]) -> list[dict[str, Any]]:
    """{name, value, unit, peer, peer_value, ratio} per figure; peers are the parametric classifier and the paper."""
    paper, found = paper_figures(), []
    for one in latencies:
        name = f"{one.part.name}, batch {one.batch}"
        extra = {"p95": one.p95, "bytes": one.part.bytes, "recall": one.part.recall, "runs": one.runs}
        found.append(Result(name, one.median, "ms/image").to_json() | extra | {"kind": one.part.kind})
    for batch in dict.fromkeys(one.batch for one in latencies):
        (head, fast), *searches = totals(latencies, batch)
        in_paper = batch == PAPER_BATCH
        peer = ("paper, Tesla K40M", paper["parametric"], fast / paper["parametric"]) if in_paper else (None,) * 3
        found.append(Result(f"image to category, {head.part.name}, batch {batch}", fast, "ms/image", *peer).to_json())
        found += [
            Result(f"image to category, {one.part.name}, batch {batch}", slow, "ms/image", "parametric", fast,
                   slow / fast).to_json()
            for one, slow in searches
        ]  # fmt: skip
    return found


def to_markdown(latencies: Sequence[Latency]) -> str:
    paper = paper_figures()
    lines = [
        "| | batch | ms/image | p95 | memory | recall@1 | with the backbone | x parametric |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for batch in dict.fromkeys(one.batch for one in latencies):
        whole = {one.part.name: total for one, total in totals(latencies, batch)}
        fast = next(iter(whole.values()))
        for one in (one for one in latencies if one.batch == batch):
            recall = "" if one.part.recall is None else f"{one.part.recall:.3f}"
            total = whole.get(one.part.name)
            sums = " | " if total is None else f"{total:,.2f} | {total / fast:,.2f}"
            lines.append(
                f"| {one.part.name} | {batch} | {one.median:,.3f} | {one.p95:,.3f} | {one.part.bytes / 1e9:,.2f} GB "
                f"| {recall} | {sums} |"
            )
    ratio = paper["nn"] / paper["parametric"]
    lines += [
        f"| paper, parametric (Tesla K40M) | 32 | | | | | {paper['parametric']:.2f} | 1.00 |",
        f"| paper, NN (Tesla K40M) | 32 | | | {paper['memory'] / 1e9:.0f} GB | | {paper['nn']:.3f} | {ratio:.2f} |",
    ]
    return "\n".join(lines)


def draw(latencies: Sequence[Latency], path: Path, title: str) -> None:
    """Classifier and searches alone, on a log scale; what the backbone takes before them is a line."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter

    batches = list(dict.fromkeys(one.batch for one in latencies))
    alone = [one for one in latencies if one.part.kind != "backbone"]
    figure = Figure(figsize=(12, 1.6 + 0.42 * len(alone) / len(batches)), layout="constrained")
    figure.suptitle(title, fontsize=11)
    lowest = 10 ** np.floor(np.log10(min(one.median for one in alone)))
    for axes, batch in zip(figure.subplots(1, len(batches), squeeze=False, sharey=True)[0], batches, strict=True):
        mine = [one for one in alone if one.batch == batch][::-1]
        colours = [PARAMETRIC if one.part.kind == "head" else NEAREST for one in mine]
        bars = axes.barh([one.part.name for one in mine], [one.median for one in mine], color=colours)
        axes.bar_label(bars, [f"{one.median:,.3g}" for one in mine], padding=3, fontsize=9)
        axes.set_xscale("log")
        axes.set_xlim(lowest, 6 * max(one.median for one in alone))
        axes.xaxis.set_major_locator(LogLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())
        for one in latencies:
            if one.batch == batch and one.part.kind == "backbone":
                axes.axvline(
                    one.median, color="#555555", linestyle="--", linewidth=1, zorder=0, label=f"{one.part.name} alone"
                )
                axes.legend(loc="upper right", frameon=False, fontsize=9)
        axes.set_xlabel("ms per image, without the backbone")
        axes.set_title(f"batch {batch}", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    image = io.BytesIO()
    figure.savefig(image, format=path.suffix.removeprefix("."), dpi=120)
    write_atomic(path, image.getvalue())
