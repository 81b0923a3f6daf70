"""The inference comparison as a table and as JSON, beside the paper's figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from actstore.bench.measure import Result
from baselines.inference.latency import Latency
from predictor.protocol.paper import read_table

PAPER_BATCH = 32


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
        whole = [(head, fast, peer), *((one, slow, ("parametric", fast, slow / fast)) for one, slow in searches)]
        for one, total, beside in whole:
            name = f"image to category, {one.part.name}, batch {batch}"
            found.append(Result(name, total, "ms/image", *beside).to_json() | {"kind": one.part.kind})
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
