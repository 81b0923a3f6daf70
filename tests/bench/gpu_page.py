"""One page about inference on a GPU: the paper's 37.867 against 6.83 ms beside the figures of that machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from actstore.errors import InvalidInputError
from baselines.inference.latency import PAPER_BATCH, paper_figures

if TYPE_CHECKING:
    from tests.bench.gpu_checks import Outcome

SAID = {True: "as it must be", False: "**wrong**", None: "not tried"}
WHOLE, END = "image to category, ", f", batch {PAPER_BATCH}"


def to_page(
    results: Sequence[Mapping[str, Any]], machine: Mapping[str, str], tests: str, outcomes: Sequence[Outcome] = ()
) -> str:
    """Markdown. results: JSON of `ppa bench-inference`; machine: what -> which; tests: how `pytest -m gpu` ended;
    outcomes: of the checks of every path."""
    return "\n".join(
        [
            "# Inference on this machine's GPU",
            "",
            "Written by `make gpu`: nearest neighbours over as many rows as ImageNet has against predicted parameters,",
            f"milliseconds from image to category with the backbone, at batch {PAPER_BATCH} as in the paper.",
            "`make gpu` was written without a card at hand: these are figures of whoever ran it.",
            "",
            *comparison(results),
            "",
            "## Every path on the card",
            "",
            "| | found | |",
            "|---|---|---|",
            *(f"| {one.name} | {one.found.replace('|', '/')} | {SAID[one.passed]} |" for one in outcomes),
            "",
            "## All figures",
            "",
            *all_figures(results),
            "",
            "## Machine",
            "",
            *(f"- {what}: {which}" for what, which in machine.items()),
            f"- tests marked `gpu`: {tests}",
            "",
        ]
    )


def comparison(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for the paper and one for every search of this machine."""
    paper = paper_figures()
    ratio = paper["nn"] / paper["parametric"]
    whole = [one for one in results if one["name"].startswith(WHOLE) and one["name"].endswith(END)]
    parametric = [one for one in whole if one["peer"] != "parametric"]
    searches = [one for one in whole if one["peer"] == "parametric"]
    if len(parametric) != 1 or not searches:
        raise InvalidInputError(
            f"expected figures of a classifier and of a search at batch {PAPER_BATCH}, got {len(parametric)} and "
            f"{len(searches)}; run ppa bench-inference with --batch {PAPER_BATCH}"
        )
    held = {one["name"]: one["bytes"] for one in results if "bytes" in one}
    lines = [
        "| | nearest neighbours, ms | parameters, ms | ratio | rows in memory |",
        "|---|--:|--:|--:|--:|",
        f"| paper, Tesla K40M | {paper['nn']:.3f} | {paper['parametric']:.2f} | {ratio:.2f} "
        f"| {paper['memory'] / 1e9:.0f} GB |",
    ]
    for one in searches:
        name, fast = one["name"].removeprefix(WHOLE), parametric[0]["value"]
        lines.append(
            f"| here, {name.removesuffix(END)} | {one['value']:.3f} | {fast:.3f} | {one['value'] / fast:.2f} "
            f"| {held[name] / 1e9:.2f} GB |"
        )
    return lines


def all_figures(results: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = ["| | ms/image | p95 | runs |", "|---|--:|--:|--:|"]
    for one in results:
        p95 = f"{one['p95']:,.3f}" if "p95" in one else ""
        lines.append(f"| {one['name']} | {one['value']:,.3f} | {p95} | {one.get('runs', '')} |")
    return lines
