"""Where the parts of a run lie in one folder, so that figures and a report find them by themselves.

FOLDER/*.zarr                 the store              FOLDER/backbone/best.safetensors    its network's weights
FOLDER/runs/phi1, phi2, …     trainings of phi       FOLDER/table.json, episodes.json    `ppa eval`, `ppa episodes`
FOLDER/steps.json             what was run           FOLDER/bench-inference.json         `ppa bench-inference`
FOLDER/figures/               pictures               FOLDER/report.html                  the report

Tables may lie in FOLDER/results too, where the commands keep them by themselves; of two the newer is taken.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from actstore.errors import DamagedError, InvalidInputError, reason_of
from actstore.storage.place import Place, parse_place, stores_in
from predictor.protocol import PHI_KINDS
from predictor.report import BENCH, EPISODES, RESULTS, TABLE
from predictor.training.loop import MODEL
from predictor.training.trained_phi import noted_store

FIGURES, CLASS_MAP = "figures", "class-map.json"
STEPS = "steps.json"


@dataclass(frozen=True)
class RunFolder:
    """What was found, None or empty where it is not there."""

    folder: Path
    store: Place | None = None
    head: Path | None = None
    table: Path | None = None
    episodes: Path | None = None
    bench: Path | None = None
    steps: Path | None = None
    phis: tuple[Path, ...] = field(default=())

    @property
    def figures(self) -> Path:
        return self.folder / FIGURES

    def missing(self) -> dict[str, str]:
        """What a report would say nothing of -> the command that makes it."""
        phis = " ".join(f"--phi {path}" for path in self.phis)
        at = "" if self.folder == Path() else f" --run-folder {self.folder}"
        parts = {
            "a store": (self.store, "actstore build IMAGES/"),
            "a phi": (self.phis, "ppa train --phi phi1"),
            "the table of all methods": (self.table, f"ppa eval {phis}".strip()),
            "N-way tasks": (self.episodes, f"ppa episodes {phis}".strip()),
            "inference times": (self.bench, "ppa bench-inference"),
            "figures": (self.figures.is_dir(), f"ppa figures{at}"),
        }
        return {what: command for what, (found, command) in parts.items() if not found}


def find_run(folder: Path) -> RunFolder:
    """Look for the parts of a run in a folder."""
    if not folder.is_dir():
        raise InvalidInputError(f"no folder {folder}; expected one with runs of `ppa train` and tables of `ppa eval`")
    stores = stores_in(folder)
    runs = {path.parent for pattern in ("phi*", "runs/phi*") for path in folder.glob(f"{pattern}/{MODEL}")}
    order: dict[str, int] = {name: place for place, name in enumerate(PHI_KINDS)}
    phis = tuple(sorted(runs, key=lambda path: (order.get(path.name, len(order)), path.name)))
    return RunFolder(
        folder,
        store=stores[0] if len(stores) == 1 else _store_of(phis),
        head=_existing(folder / "backbone" / "best.safetensors"),
        table=_newest(folder, TABLE),
        episodes=_newest(folder, EPISODES),
        bench=_newest(folder, BENCH),
        steps=_existing(folder / STEPS),
        phis=phis,
    )


def read_json(path: Path, kind: type) -> Any:
    """The content of a JSON file, which must be a list or an object as asked for."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise InvalidInputError(f"no file {path}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedError(f"{path} must be a JSON file: {reason_of(error)}") from error
    if not isinstance(content, kind):
        raise DamagedError(f"{path} must hold a JSON {kind.__name__}, got {type(content).__name__}")
    return content


def read_records(path: Path) -> list[dict[str, Any]]:
    """The rows of a table, or the figures of a benchmark."""
    records: list[Any] = read_json(path, list)
    if wrong := [record for record in records if not isinstance(record, dict)]:
        raise DamagedError(f"{path} must hold a JSON list of objects, got {wrong[0]!r:.80} in it")
    return records


def _store_of(phis: Sequence[Path]) -> Place | None:
    """That of the first phi, where it still lies there."""
    named = noted_store(phis[0]) if phis else None
    place = None if named is None else parse_place(named)
    return place if place is not None and place.exists() else None


def _newest(folder: Path, name: str) -> Path | None:
    found = [path for path in (folder / name, folder / RESULTS / name) if path.is_file()]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def _existing(path: Path) -> Path | None:
    return path if path.is_file() else None
