"""What a user asked `ppa baseline` for, in the words that the trainings understand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.options import find_store
from cli.ppa.recognition import choose_categories
from cli.progress import TrainingBars

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from actstore import Split
    from predictor.protocol.category_split import CategorySplit
    from predictor.training import RunOptions, Trained


@dataclass(frozen=True)
class Trainer:
    """train: does it. options: names of the parameters it takes beside those that all take."""

    train: Callable[[Request], Trained]
    options: frozenset[str]


@dataclass
class Request:
    """given: the values of all options, None where one was not given. more: to be told with the result."""

    name: str
    folder: Path
    given: Mapping[str, Any]
    bars: TrainingBars
    more: dict[str, Any] = field(default_factory=dict)

    def settings(self, *names: str) -> dict[str, Any]:
        """Those of these options that were given, for a configuration whose defaults are the others."""
        return {name: self.given[name] for name in names if self.given[name] is not None}

    def require(self, name: str) -> Any:
        if self.given[name] is None:
            raise click.UsageError(f"the baseline {self.name} needs --{name.replace('_', '-')}")
        return self.given[name]

    @property
    def device(self) -> torch.device:
        from actstore.compute.device import parse_device

        return parse_device(self.given["device"])

    @property
    def run_options(self) -> RunOptions:
        from predictor.training import RunOptions

        return RunOptions(self.given["checkpoint_seconds"], self.given["restart"])

    def categories(self, names: Sequence[str]) -> CategorySplit:
        return choose_categories(self.given["split_file"], names)

    def open_rows(self) -> tuple[Split, CategorySplit]:
        """The rows to train on, and which of their classes are the base."""
        import actstore

        store = actstore.open(find_store(self.given["store"]))
        return store[self.given["train_split"] or "train"], self.categories(store.classes)
