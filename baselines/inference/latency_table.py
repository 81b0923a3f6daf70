"""The inference comparison as results, beside the paper's figures."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from actstore.compute.measure import Result
from baselines.inference.parts import Latency
from predictor.protocol.paper import read_table
from predictor.protocol.results import Results, Table, displayed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from baselines.inference.comparison import Comparison

PAPER_BATCH = 32


def paper_figures() -> dict[str, float]:
    """nn and parametric: milliseconds per image. memory: bytes. without_features: hours of an image by nearest
    neighbours where all images go through the network first."""
    values = {row["what"]: float(row["value"]) for row in read_table("efficiency")}
    return {
        "nn": values["NN and Triplet inference per image"],
        "parametric": values["parametric inference per image (batch 32)"],
        "memory": values["NN memory"] * 1e9,
        "without_features": values["NN inference per image without precomputed features"],
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
        extra = {"p95": latency.p95, "bytes": latency.part.bytes, "recall": latency.part.recall, "runs": latency.runs,
                 "ranking": latency.ranking}  # fmt: skip
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


COLUMNS = ("part", "batch", "ms/image", "p95", "of which ranking", "memory GB", "recall@1", "x parametric",
           "with the backbone", "x parametric with it")  # fmt: skip


def table_lines(latencies: Sequence[Latency]) -> list[list[str]]:
    """Of COLUMNS: every part at every batch size, then the paper's."""
    paper, lines = paper_figures(), []
    for batch in dict.fromkeys(latency.batch for latency in latencies):
        whole = {latency.part.name: total for latency, total in totals(latencies, batch)}
        mine = [latency for latency in latencies if latency.batch == batch]
        alone = next(latency.median for latency in mine if latency.part.kind == "head")
        fast = next(iter(whole.values()))
        for latency in mine:
            part, total = latency.part, whole.get(latency.part.name)
            lines.append([
                part.name, str(batch), f"{latency.median:,.3f}", f"{latency.p95:,.3f}",
                "" if latency.ranking is None else f"{latency.ranking:,.3f}", f"{part.bytes / 1e9:,.2f}",
                "" if part.recall is None else f"{part.recall:.3f}",
                "" if total is None else f"{latency.median / alone:,.1f}",
                "" if total is None else f"{total:,.2f}", "" if total is None else f"{total / fast:,.2f}",
            ])  # fmt: skip
    ratio = paper["nn"] / paper["parametric"]
    empty = [str(PAPER_BATCH), "", "", ""]
    return [
        *lines,
        ["paper, parametric (Tesla K40M)", *empty, "", "", "", f"{paper['parametric']:.2f}", "1.00"],
        ["paper, NN (Tesla K40M)", *empty, f"{paper['memory'] / 1e9:.0f}", "", "", f"{paper['nn']:.3f}",
         f"{ratio:.2f}"],
    ]  # fmt: skip


def remarks(comparison: Comparison) -> list[str]:
    """Sentences below a table: what a plain implementation needs here, what was left out, and the memory of the run."""
    paper, (count, dim) = paper_figures(), comparison.shape
    lines = [
        f"Features of {count:,} images in fp32: {4 * count * dim / 1e9:.1f} GB, in fp16 {2 * count * dim / 1e9:.1f} GB "
        f"(paper: {paper['memory'] / 1e9:.0f} GB)."
    ]
    backbones = [latency for latency in comparison.latencies if latency.part.kind == "backbone"]
    if backbones:
        fastest = min(backbones, key=lambda latency: latency.median)
        hours = count * fastest.median / 3.6e6
        lines.append(
            f"Without stored features one image waits for all {count:,} to pass the network: {hours:,.1f} hours, "
            f"an estimate from {fastest.median:,.1f} ms each at batch {fastest.batch} "
            f"(paper: {paper['without_features']:g} hours)."
        )
    lines += [f"Left out: {line}." for line in comparison.left_out]
    peak = comparison.peak
    lines.append(
        f"Peak memory of the run: {peak.total / 1e9:.2f} GB resident, of which {peak.own / 1e9:.2f} GB at most belong "
        "to no file."
    )
    return lines


class InferenceResults(Results):
    """Of `baselines.time_inference`: milliseconds of every part at every batch size, and what the run needed."""

    def __init__(self, compared: Comparison, title: str) -> None:
        super().__init__(to_results(compared.latencies))
        self.compared, self.title = compared, title

    def tables(self, wide: bool = False) -> list[Table]:
        return [Table(["", *COLUMNS[1:]], table_lines(self.compared.latencies), title=self.title)]

    def notes(self, wide: bool = False) -> list[str]:
        return remarks(self.compared)

    def to_csv(self) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([COLUMNS, *table_lines(self.compared.latencies)])
        return text.getvalue()

    def plot(self) -> Figure:
        """Bars: from image to category by predicted parameters, and by each search."""
        from predictor.figures.style import draw_inference

        return displayed(draw_inference(self.records, self.title))
