"""What `make gpu` tries on a card beside the CPU: every path once, small enough for minutes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from torch import Tensor

import actstore
from actstore.backbones.loading import load_backbone
from actstore.compute.device import count_devices, has_bfloat16, parse_device
from actstore.extraction.build import BuildOptions, build
from actstore.images.opening import open_images
from actstore.tables.row_source import SyntheticSpec
from baselines.large_sample import train_on_rows
from baselines.triplet import TripletConfig, TripletTrainee
from predictor.protocol.category_split import CategorySplit, alphabetical_split
from predictor.training import RunOptions, Trained
from predictor.training.backbones.config import choose_preset
from predictor.training.backbones.trainee import train_backbone
from predictor.training.loop import MODEL, read_log, read_model
from predictor.training.phi import TrainOptions, choose_config, run_phi_training

STEPS = 20
TWO = "two processes"


@dataclass(frozen=True)
class Size:
    """Of generated rows and images."""

    rows: int = 200_000
    dim: int = 2048
    classes: int = 1000
    images: str = "glyphs:100x20x5"
    backbone: str = "resnet50"


QUICK = Size(2_000, 32, 20, "glyphs:6x5x2", "small")


@dataclass(frozen=True)
class Outcome:
    """Of one check: how, in words, and whether it is as it must be; None: not tried here."""

    name: str
    found: str
    passed: bool | None


class Bench:
    """folder: for all that is written. device: as --device takes it."""

    def __init__(self, folder: Path, device: str, size: Size) -> None:
        self.folder, self.device, self.size = folder, device, size
        self.tolerance = 0.05 if has_bfloat16(parse_device(device)) else 1e-3  # of a loss, relative
        folder.mkdir(parents=True, exist_ok=True)

    def checks(self) -> dict[str, Callable[[], tuple[str, bool | None]]]:
        return {
            f"{STEPS} steps of phi, against the CPU": self.phi,
            "phi, streamed against resident": self.resident,
            "phi, stopped and resumed": self.resumption,
            f"phi by {TWO}, against one": self.two_processes,
            f"{STEPS} steps of Triplet, against the CPU": self.triplet,
            "build, against the CPU": self.build,
            "one epoch of pretrain, against the CPU": self.pretrain,
            "faiss on the card, against exact search": self.search,
            "eval by nearest neighbours and Triplet, against the CPU": self.evaluate,
        }

    def run(self) -> Iterator[Outcome]:
        for name, check in self.checks().items():
            try:
                yield Outcome(name, *check())
            except Exception as error:  # noqa: BLE001 - the page says which paths fail, and the others are still tried
                yield Outcome(name, f"{type(error).__name__}: {error}".splitlines()[0], False)

    def store(self) -> actstore.ActivationStore:
        path, size = self.folder / "rows.zarr", self.size
        if not path.exists():
            table = SyntheticSpec(size.rows, size.dim, size.classes).table()
            rows = np.concatenate([block.astype(np.float16) for block in table.activations.blocks(0, size.rows)])
            tested = np.arange(0, size.rows, 10)
            actstore.from_arrays(path, {"train": (rows, table.labels), "val": (rows[tested], table.labels[tested])})
        return actstore.open(path)

    def split(self) -> CategorySplit:
        return alphabetical_split(self.store()["train"].classes, 0.9)

    def train_phi(self, name: str, device: str, resident: bool = False, report: Any = None) -> Trained:
        """A line of the log for every step; where someone is told of the steps, a checkpoint as well."""
        config = choose_config("code", "phi2", epochs=STEPS, batches=1, learning_rate=0.05, seed=1)
        options = TrainOptions(device, resident, RunOptions(15 if report is None else 0))
        return run_phi_training(self.store()["train"], None, self.split(), config, self.folder / name, options, report)

    def phi(self) -> tuple[str, bool]:
        one, other = self.train_phi("phi", self.device), self.train_phi("phi-cpu", "cpu")
        return self._compared(one, other)

    def resident(self) -> tuple[str, bool]:
        one, other = self.train_phi("phi", self.device), self.train_phi("phi-resident", self.device, resident=True)
        return self._compared(one, other, 1e-5)

    def resumption(self) -> tuple[str, bool]:
        whole = self.train_phi("phi", self.device)

        def stop(done: int, total: int, figures: object) -> None:
            if done >= STEPS // 2:
                raise KeyboardInterrupt

        with suppress(KeyboardInterrupt):
            self.train_phi("phi-resumed", self.device, report=stop)
        resumed = self.train_phi("phi-resumed", self.device)
        off = max(float((resumed.tensors[key] - whole.tensors[key]).abs().max()) for key in whole.tensors)
        return f"weights differ by {off:.3g} at most", off <= 1e-6

    def two_processes(self) -> tuple[str, bool | None]:
        kind = parse_device(self.device).type
        if kind != "cpu" and count_devices(kind) < 2:
            return f"left out: {count_devices(kind)} card here", None
        one = self.train_phi("phi", self.device)
        command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "tests.bench.gpu"]
        asked = ["--child", str(self.folder), "--device", self.device, *(["--quick"] if self.size == QUICK else [])]
        threads = {"OMP_NUM_THREADS": "1"} if kind == "cpu" else {}
        done = subprocess.run(
            [sys.executable, *command, *asked], capture_output=True, text=True, check=False, env=os.environ | threads
        )
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if "Error" in line or "Signal" in line]
            return " / ".join(said or done.stderr.splitlines()[-3:]), False  # torchrun's last line says nothing
        return self._compared(one, read_model(self.folder / "phi-two" / MODEL))

    def triplet(self) -> tuple[str, bool]:
        train, base, config = self.store()["train"], self.split().base, TripletConfig(steps=STEPS)
        one, other = (
            train_on_rows(
                TripletTrainee, "triplet", train, base, self.folder / place / "triplet", config, torch.device(device)
            )
            for place, device in (("card", self.device), ("cpu", "cpu"))
        )
        return self._compared(one, other)

    def build(self) -> tuple[str, bool]:
        sets, rows = open_images(self.size.images), []
        for place, device in (("card", self.device), ("cpu", "cpu")):
            backbone = load_backbone(self.size.backbone, random_weights=True, seed=1)
            path = self.folder / f"images-{place}.zarr"
            options = BuildOptions(device, workers=0)
            rows.append(build(sets, self.size.images, path, backbone, options)["train"].to_torch(dtype=torch.float32))
        off = float((rows[0] - rows[1]).norm() / rows[1].norm())
        return f"{len(rows[0])} rows differ by {off:.2%} of their length", off < 0.02

    def pretrain(self) -> tuple[str, bool]:
        config = replace(choose_preset("quick"), epochs=1)
        sets = open_images(self.size.images)
        split, losses, speeds = alphabetical_split(sets["train"].classes), [], []
        for place, device in (("card", self.device), ("cpu", "cpu")):
            result = train_backbone(sets, split, config, self.folder / f"pretrain-{place}", device)
            losses.append(result.train_loss)
            speeds.append(result.images_per_second)
        off = abs(losses[0] / losses[1] - 1)
        return f"loss off by {off:.2%}, {speeds[0]:,.0f} images/s against {speeds[1]:,.0f}", off < 0.1

    def search(self) -> tuple[str, bool]:
        train, device = self.store()["train"], self.device if parse_device(self.device).type == "cuda" else "cpu"
        queries = train.to_torch(np.arange(0, len(train), len(train) // 100), dtype=torch.float32)
        found, expected = (train.search(queries, 10, method="exact", device=place) for place in (device, "cpu"))
        same = all(np.array_equal(own, other) for own, other in zip(found, expected, strict=True))
        return f"{len(queries)} queries on {device}: {'the same' if same else 'other'} neighbours and scores", same

    def evaluate(self) -> tuple[str, bool | None]:
        from cli.ppa import main as ppa

        command = ppa.get_command(click.Context(ppa), "eval")
        assert command is not None
        takes_device = any(option.name == "device" for option in command.params)
        split = self.folder / "split.json"
        split.write_text(json.dumps(self.split().to_json()))
        tables = []
        for place, device in (("card", self.device), ("cpu", "cpu")):
            out, given = self.folder / f"eval-{place}.json", ["--device", device] if takes_device else []
            asked = ["--store", self.folder / "rows.zarr", "--split-file", split, "--runs", self.folder / "card"]
            asked += ["--methods", "nn,triplet", "--shots", "1", "--draws", "2", "--out", out, *given]
            command.main([str(one) for one in asked], standalone_mode=False)
            tables.append(json.loads(out.read_text()))
        same = "the same table" if tables[0] == tables[1] else "another table"
        return same if takes_device else f"{same}, both by the CPU: eval takes no --device", tables[0] == tables[1]

    def _compared(self, one: Trained, other: Trained, tolerance: float | None = None) -> tuple[str, bool]:
        """By the losses of their logs, relative to the larger, and by their time."""
        losses = [Tensor([line["loss"] for line in read_log(trained.folder)]) for trained in (one, other)]
        off = float(((losses[0] - losses[1]).abs() / losses[1].abs().clamp(min=1e-9)).max())
        each = [f"{1e3 * trained.seconds / trained.steps:.1f} ms a step" for trained in (one, other)]
        return f"losses differ by {off:.2g} at most; {' against '.join(each)}", off <= (tolerance or self.tolerance)
