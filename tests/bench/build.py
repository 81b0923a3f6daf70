"""`actstore build` on real JPEGs: the same activations as a plain loop, and its rate against the bare forward pass.

The images are mini-ImageNet's from $ACTSTORE_DATA (default ../shared/data); weights are random, which costs the same.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tarfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from actstore.backbones.loading import Backbone, load_backbone
from actstore.compute.process import Result
from actstore.extraction.build import BuildOptions, build
from actstore.images.opening import open_images
from tests.bench.common import OUT, ROOT, report

DATA = Path(os.environ.get("ACTSTORE_DATA", ROOT.parent / "shared" / "data"))
IMAGES, BATCH = 512, 32


def unpack(count: int) -> Path:
    """Some of the images as class folders, evenly over the classes."""
    folder = OUT / f"jpegs-{count}"
    if folder.exists():
        return folder
    archive = DATA / "miniimagenet.tar"
    if not archive.exists():
        print(f"skipped: no {archive}; set ACTSTORE_DATA to measure builds")
        raise SystemExit(0)
    with tarfile.open(archive) as tar:
        members = [member for member in tar if member.isfile() and "/val/" in member.name]
        for member in members[:: len(members) // count][:count]:
            target = folder / Path(member.name).parent.name / Path(member.name).name
            target.parent.mkdir(parents=True, exist_ok=True)
            stream = tar.extractfile(member)
            assert stream is not None
            target.write_bytes(stream.read())
    return folder


def plain_loop(folder: Path, backbone: Backbone) -> np.ndarray:
    rows = []
    with torch.no_grad():
        for path in sorted(folder.rglob("*.jpg")):
            with Image.open(path) as image:
                rows.append(backbone.module.features(backbone.transform(image.convert("RGB"))[None])[0].numpy())
    return np.stack(rows)


def largest_difference(name: str, folder: Path) -> float:
    """Over batch sizes and workers, relative to the largest activation."""
    backbone = load_backbone(name, random_weights=True)
    expected, worst = plain_loop(folder, backbone), 0.0
    for batch_size, workers in ((1, 0), (7, 0), (32, 2)):
        store = OUT / "same.zarr"
        shutil.rmtree(store, ignore_errors=True)
        made = build(open_images(str(folder)), str(folder), store, backbone, BuildOptions("cpu", batch_size, workers))
        assert list(made["train"].ids) == sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.jpg"))
        worst = max(worst, float(np.abs(made["train"][:] - expected).max() / expected.max()))
    shutil.rmtree(store)
    return worst


def rates(folder: Path) -> dict[str, float]:
    """Images per second: the forward pass on ready tensors, and builds, in turns."""
    backbone = load_backbone("resnet50", random_weights=True)
    backbone.module.to(memory_format=torch.channels_last)
    ready = torch.randn(BATCH, 3, 224, 224).contiguous(memory_format=torch.channels_last)
    times: dict[str, list[float]] = {"forward": [], "0 workers": [], "1 worker": []}
    for _ in range(2):
        begin = time.perf_counter()
        with torch.inference_mode():
            for _ in range(IMAGES // BATCH):
                backbone.activations(ready)
        times["forward"].append(time.perf_counter() - begin)
        for workers, name in ((0, "0 workers"), (1, "1 worker")):
            store = OUT / "rate.zarr"
            shutil.rmtree(store, ignore_errors=True)
            begin = time.perf_counter()
            build(open_images(str(folder)), str(folder), store, backbone, BuildOptions("cpu", BATCH, workers))
            times[name].append(time.perf_counter() - begin)
    shutil.rmtree(store)
    return {name: IMAGES / statistics.median(taken) for name, taken in times.items()}


def main() -> None:
    found = rates(unpack(IMAGES))
    few = unpack(48)
    forward = found.pop("forward")
    report(
        "build",
        [
            *(
                Result(f"build, resnet50, {name}", rate, "images/s", "bare forward pass", forward, rate / forward)
                for name, rate in found.items()
            ),
            *(
                Result(f"{name}: largest difference to a plain loop", largest_difference(name, few), "of max")
                for name in ("small", "resnet50")
            ),
        ],
        [">= 0.9x the bare forward pass", "equal to a plain loop within fp16, any batch size and workers"],
    )


if __name__ == "__main__":
    main()
