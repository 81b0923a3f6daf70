"""The paper's comparison of inference times in one call: predicted parameters against nearest neighbours."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import torch

import actstore
from actstore import ActivationStore
from actstore.compute.device import name_device, parse_device
from actstore.errors import InvalidInputError
from actstore.progress import Bar, bar, note
from baselines.inference.comparison import Wanted, compare
from baselines.inference.latency_table import InferenceResults
from baselines.inference.memory import available_memory
from baselines.inference.rows import BenchRows, Progress, Say, fitting_size, generated_rows, stored_rows


def time_inference(
    store: ActivationStore | str | Path | None = None,
    synthetic: str | None = None,
    *,
    split: str = "train",
    batches: Sequence[int] = (1, 32),
    categories: int = 1000,
    backbone: str = "resnet50",
    approximate: str = "pq",
    fp32: bool = True,
    seconds: float = 6.0,
    threads: int | None = None,
    device: str = "cpu",
    progress: bool | None = None,
) -> InferenceResults:
    """Milliseconds from image to category: by predicted parameters, and by nearest neighbours of every kind.

    The paper's 6.83 ms against 37.867 ms and 45 GB, on this machine. store: search its rows; without one rows that
    resemble a ResNet-50's are generated, as many as synthetic says ("1200000x2048" by default, or what fits). batches:
    images at a time. categories: of the classifier. backbone: whose time is added, or "none". approximate: a kind of
    index, or "none". fp32: also what the paper did, and faiss's flat search, over 4 bytes a value. seconds: for each
    figure. What does not fit into memory is left out, and named in the notes.
    """
    place, say = parse_device(device), partial(note, shown=progress)
    torch.set_num_threads(threads or os.cpu_count() or 1)

    def shown(what: str, total: int, unit: str = "rows") -> AbstractContextManager[Bar]:
        return bar(what, total, unit, progress)

    rows = _rows(store, synthetic, split, say, shown)
    wanted = Wanted(batches, categories, backbone, approximate, fp32, seconds, place)
    title = f"{rows.what}; {torch.get_num_threads()} threads, {machine(place)}"
    return InferenceResults(compare(rows, wanted, say, shown), title)


def _rows(
    store: ActivationStore | str | Path | None, synthetic: str | None, split: str, say: Say, shown: Progress
) -> BenchRows:
    if store is not None and synthetic is not None:
        raise InvalidInputError("rows come from a store or are generated (synthetic); give one of both")
    if store is not None:
        return stored_rows(store if isinstance(store, ActivationStore) else actstore.open(store), split)
    if synthetic is None:
        return generated_rows(*fitting_size(available_memory()), say, shown)
    match = re.fullmatch(r"(\d+)x(\d+)", synthetic)
    if match is None:
        raise InvalidInputError(f"generated rows are named as ROWSxDIM, such as 1200000x2048, got {synthetic!r}")
    return generated_rows(int(match[1]), int(match[2]), say, shown)


def machine(device: torch.device) -> str:
    return name_device(device) or f"{platform.machine()} CPU, no GPU used"
