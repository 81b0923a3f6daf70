"""How far constants that were fitted on stand-ins are from the best ones, and whether `failed` says where they are.

python -m tests.bench.calibration STORE.zarr=SPLIT.json[=HEAD] ... [--categories novel] [--phi runs/phi2] [--json]

The split's validation categories play the novel ones, so that the procedure is chosen on those; --categories novel
looks at the novel ones, once. Nothing is fitted on either. HEAD: the network's classifier. A line per data set, method
and number of shots: harmonic mean as it is, with the constant, with the best one of each draw, and what failed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import actstore
import baselines
import predictor
from cli.group import table
from predictor.phi.rule import PhiMethod
from predictor.protocol.results import CALIBRATED

BAR = 1.5  # points that a constant which did not fail may be below the best


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", help="STORE.zarr=SPLIT.json[=HEAD]")
    parser.add_argument("--categories", choices=("validation", "novel"), default="validation")
    parser.add_argument("--methods", default="nn,class-mean,simple-shot,ridge,tip-adapter")
    parser.add_argument("--phi", action="append", default=[], help="a training on the base of the data; repeatable")
    parser.add_argument("--runs", default="runs", help="trained baselines")
    parser.add_argument("--shots", default="1,3,5")
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    found = [line for data in given.data for line in measure(data, given)]
    if given.json:
        print(json.dumps(found, indent=1))
        return
    header = ["data", "method", "shots", "as it is", "fitted", "best", "gap", "expected", "failed"]
    keys = ["data", "method", "shots", "plain", "fitted", "best", "gap", "expected", "failed"]
    print(table(header, [[_text(line[key]) for key in keys] for line in found]))
    silent = [line for line in found if line["gap"] > BAR and not line["failed"]]
    said = [line for line in found if line["failed"]]
    needless = sum(line["gap"] <= BAR for line in said)
    print(f"{given.categories} categories: of {len(found)} constants {len(said)} failed, {needless} of them within "
          f"{BAR} points of the best; of the others {len(silent)} are farther below")  # fmt: skip


def measure(data: str, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    path, split_file, *head = data.split("=")
    store, split = actstore.open(path), predictor.read_split(Path(split_file))
    split = replace(split, novel=getattr(split, given.categories), validation=())
    made = baselines.make(*given.methods.split(","), train=store["train"], split=split, head=head[0] if head else None,
                          runs=given.runs)  # fmt: skip
    phis = [predictor.load_phi(Path(phi)) for phi in given.phi]
    methods = [*made, *(PhiMethod(phi.phi) for phi in phis if phi.categories.base == split.base)]
    shots = [int(count) for count in given.shots.split(",")]
    fits = predictor.calibrate(methods, store, split, shots=shots, tasks=given.tasks, save=False)
    for method in methods:
        method.folder = None
        method.calibrations = [replace(fit, failed="") for fit in method.calibrations]  # to see what they would give
    rows = predictor.evaluate(methods, store, split, shots=shots, draws=given.draws).records
    as_they_are = {(row["key"], row["d_large"], row["shots"]): row for row in rows if row["variant"] != CALIBRATED}
    by_place = {(fit.key, fit.share, str(fit.shots)): fit for fit in fits}
    for row in rows:
        if row["variant"] != CALIBRATED:
            continue
        place = row["key"], row["d_large"], row["shots"]
        fit = by_place[place]
        yield {
            "data": Path(split_file).stem, "method": row["method"].removesuffix(f", {CALIBRATED}"), "share": place[1],
            "shots": place[2], "plain": as_they_are[place]["harmonic_mean"], "fitted": row["harmonic_mean"],
            "best": row["best_harmonic_mean"], "gap": round(row["best_harmonic_mean"] - row["harmonic_mean"], 2),
            "expected": fit.shortfall, "failed": fit.failed, "split": given.categories, "fitted_on": fit.fitted_on,
        }  # fmt: skip


def _text(value: Any) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
