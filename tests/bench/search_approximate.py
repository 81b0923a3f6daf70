"""Approximate indexes beside the exact search: their recall on held-out queries, and their time."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from actstore.compute.process import Result
from actstore.search import ExactSearch
from actstore.search.indexing import build_index, measure_recall
from tests.bench.common import alternate, report
from tests.bench.search_common import BATCH, DIM, held_out, per_query, synthetic_store
from tests.conftest import REAL_DATA


def approximate(rows: int, rounds: int) -> None:
    results, notes = [], []
    with np.load(REAL_DATA / "miniimagenet-activations.npz") as data:
        values, val = torch.from_numpy(data["train"]), torch.from_numpy(data["val"]).float()
    # the effort is chosen on some of the held-out queries, the recall stated is that of others
    chosen_on, tested_on = val[::38][:256], val[1::10]  # even rows, odd rows
    _approximate(
        "mini-ImageNet", values, chosen_on, tested_on, {"ivf": {}, "hnsw": {}, "pq": {}}, rounds, results, notes
    )
    split = synthetic_store(rows)["train"]
    fresh = torch.from_numpy(held_out(rows, 1256))
    kinds = {"pq": {"dims": 256, "refine": 512}}
    _approximate(f"{rows:,} x {DIM}", split, fresh[:256], fresh[256:], kinds, rounds, results, notes)
    report("search-approximate", results, ["20x at recall@1 >= 0.95", *notes])


def _approximate(
    what: str, rows: Any, chosen_on: Tensor, tested_on: Tensor, kinds: dict[str, Any], rounds: int,
    results: list[Result], notes: list[str],
) -> None:  # fmt: skip
    exact_engine = ExactSearch(rows)
    truth = exact_engine.search(tested_on, 1)[1][:, 0]
    for kind, settings in kinds.items():
        engine = build_index(rows, kind, queries=chosen_on, recall=0.96, **settings)
        recall = measure_recall(engine, tested_on, truth, engine.settings.effort)
        queries = tested_on[:BATCH]
        actions = {"approximate": lambda: engine.search(queries, 1), "exact": lambda: exact_engine.search(queries, 1)}  # noqa: B023
        times = alternate(actions, rounds)
        results.append(per_query(f"{kind}, {what}: recall@1 {recall:.3f}", times, "approximate", "exact", BATCH))
        made = engine.settings
        notes.append(
            f"{kind}, {what}: dims {made.dims}, lists {made.lists}, effort {made.effort}, refine {made.refine}, "
            f"{engine.nbytes / 1e6:,.0f} MB; recall@1 {recall:.3f} on {len(tested_on)} held-out queries"
        )
