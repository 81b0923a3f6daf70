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
    mine = [latency for latency in latencies if latency.batch == batch]
    backbone = sum(latency.median for latency in mine if latency.part.kind == "backbone")
    return [
        (latency, backbone + latency.median)
        for kind in ("head", "search")
        for latency in mine
        if latency.part.kind == kind
    ]


def to_results(latencies: Sequence[Latency]) -> list[dict[str, Any]]:
    """{name, value, unit, peer, peer_value, ratio} per figure; peers are the parametric classifier and the paper."""
    paper, results = paper_figures(), []
    for latency in latencies:
        name = f"{latency.part.name}, batch {latency.batch}"
        extra = {"p95": latency.p95, "bytes": latency.part.bytes, "recall": latency.part.recall, "runs": latency.runs}
        results.append(Result(name, latency.median, "ms/image").to_json() | extra | {"kind": latency.part.kind})
    for batch in dict.fromkeys(latency.batch for latency in latencies):
        (head, fast), *searches = totals(latencies, batch)
        in_paper = batch == PAPER_BATCH
        peer = ("paper, Tesla K40M", paper["parametric"], fast / paper["parametric"]) if in_paper else (None,) * 3
        whole = [
            (head, fast, peer),
            *((latency, slow, ("parametric", fast, slow / fast)) for latency, slow in searches),
        ]
        for latency, total, peer_figures in whole:
            name = f"image to category, {latency.part.name}, batch {batch}"
            results.append(Result(name, total, "ms/image", *peer_figures).to_json() | {"kind": latency.part.kind})
    return results


def to_markdown(latencies: Sequence[Latency]) -> str:
    paper = paper_figures()
    lines = [
        "| | batch | ms/image | p95 | memory | recall@1 | with the backbone | x parametric |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for batch in dict.fromkeys(latency.batch for latency in latencies):
        whole = {latency.part.name: total for latency, total in totals(latencies, batch)}
        fast = next(iter(whole.values()))
        for latency in (latency for latency in latencies if latency.batch == batch):
            recall = "" if latency.part.recall is None else f"{latency.part.recall:.3f}"
            total = whole.get(latency.part.name)
            sums = " | " if total is None else f"{total:,.2f} | {total / fast:,.2f}"
            lines.append(
                f"| {latency.part.name} | {batch} | {latency.median:,.3f} | {latency.p95:,.3f} "
                f"| {latency.part.bytes / 1e9:,.2f} GB "
                f"| {recall} | {sums} |"
            )
    ratio = paper["nn"] / paper["parametric"]
    lines += [
        f"| paper, parametric (Tesla K40M) | 32 | | | | | {paper['parametric']:.2f} | 1.00 |",
        f"| paper, NN (Tesla K40M) | 32 | | | {paper['memory'] / 1e9:.0f} GB | | {paper['nn']:.3f} | {ratio:.2f} |",
    ]
    return "\n".join(lines)
