"""The modules that values pass on five walks through the library, noted by a profiler in one small run of each.

python -m tests.bench.walks [--names]      about ten seconds on 2 cores

A module is passed where one of its functions receives the values as an argument, alone or in a list, tuple, dict or
dataclass. Values are arrays and tensors of numbers with two axes or more (images and rows), and what `take` is asked
for.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from PIL import Image

ROOMS = ("actstore", "predictor", "baselines", "cli")
CLASSES, EACH, SIDE = 4, 8, 64
ASKED = [3, 1]  # rows of `take`
# the network itself, and what decodes: before the way from the decoded batch to the disk
NETWORK = ("actstore.backbones.", "actstore.extraction.forward")
Test = Callable[[Any], bool]


class Walk:
    """Modules in the order in which they were first entered: all, and those that received the values."""

    def __init__(self, is_value: Test) -> None:
        self.called: dict[str, None] = {}
        self.passed: dict[str, None] = {}
        self._is_value = is_value

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        if event != "call" or module.split(".")[0] not in ROOMS or frame.f_code.co_name == "<module>":
            return
        self.called[module] = None
        code = frame.f_code
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4)]
        if module not in self.passed and any(_holds(frame.f_locals.get(name), self._is_value) for name in names):
            self.passed[module] = None


def _holds(argument: Any, is_value: Test, depth: int = 2) -> bool:
    if is_value(argument):
        return True
    if depth and isinstance(argument, dict):
        return any(_holds(part, is_value, depth - 1) for part in argument.values())
    if depth and isinstance(argument, list | tuple):
        return any(_holds(part, is_value, depth - 1) for part in argument[:8])
    if depth and dataclasses.is_dataclass(argument) and not isinstance(argument, type):
        fields = (getattr(argument, field.name, None) for field in dataclasses.fields(argument))
        return any(_holds(part, is_value, depth - 1) for part in fields)
    return False


def is_rows(argument: Any) -> bool:
    """Images (n, 3, height, width), rows (n, dim) or what was made of them."""
    return type(argument).__name__ in ("ndarray", "Tensor") and argument.ndim >= 2 and len(argument) > 0


def is_asked(argument: Any) -> bool:
    return isinstance(argument, list | np.ndarray) and list(argument) == ASKED


@contextmanager
def walking(is_value: Test) -> Iterator[Walk]:
    walk = Walk(is_value)
    threading.setprofile(walk.note)
    sys.setprofile(walk.note)
    try:
        yield walk
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def to_disk(build: Walk) -> list[str]:
    """Modules from the decoded batch to the disk, the network aside."""
    return [module for module in build.passed if not module.startswith(NETWORK)]


def run(tool: str, *arguments: str) -> None:
    with redirect_stdout(StringIO()):
        import_module(f"cli.{tool}").main([*arguments, "--json"], standalone_mode=False)


def draw_images(folder: Path, name: str = "class") -> None:
    random = np.random.default_rng(0)
    for label in range(CLASSES):
        (folder / f"{name}{label}").mkdir(parents=True)
        for number in range(EACH):
            pixels = random.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{name}{label}" / f"{number}.jpg")


def take() -> None:
    import actstore

    actstore.open("x.zarr")["train"].take(ASKED)


def build() -> None:
    run("actstore", "build", "photos", "x.zarr", "--backbone", "small", "--random-weights", "--workers", "0")


def train() -> None:
    run("ppa", "train", "--phi", "phi1", "--store", "x.zarr", "--epochs", "1", "--batches", "3", "--out", "run")


def adapt() -> None:
    run("ppa", "adapt", "--phi", "run", "--store", "x.zarr", "--support", "new", "--out", "c.safetensors")


def bench_inference() -> None:
    run("ppa", "bench-inference", "--synthetic", "2000x64", "--backbone", "small", "--seconds", "0.01")


# in this order: each needs what those before it have made
WALKS: dict[str, tuple[Callable[[], None], Test]] = {
    "build": (build, is_rows),
    "take": (take, is_asked),
    "train": (train, is_rows),
    "adapt": (adapt, is_rows),
    "bench-inference": (bench_inference, is_rows),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", action="store_true", help="also name the modules")
    options = parser.parse_args()
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        draw_images(Path("photos"))
        draw_images(Path("new"), name="new")
        for name, (work, is_value) in WALKS.items():
            with walking(is_value) as walk:
                work()
            lines.append(f"{name}: {len(walk.passed)} receive the values, {len(walk.called)} are called")
            lines += [f"    {module}" for module in walk.passed if options.names]
            if name == "build":
                lines.append(f"build, from the decoded batch to the disk: {len(to_disk(walk))} receive the values")
        os.chdir("/")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
