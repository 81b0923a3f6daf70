"""Steps of `ppa pretrain` against the bare network's forward, backward and update on ready tensors; they take turns."""

from __future__ import annotations

from itertools import count

import torch

from actstore.compute.process import Result
from actstore.compute.tensors import reuse_freed_memory
from actstore.images.opening import open_images
from predictor.protocol.category_split import CategorySplit
from predictor.training.backbones.config import FEW_SHOT_SHORTER, TrainingConfig, choose_preset
from predictor.training.backbones.images import select_images
from predictor.training.backbones.pretraining import bare_step
from predictor.training.backbones.trainee import BackboneTrainee
from predictor.training.processes import Processes
from tests.bench.common import alternate, report
from tests.conftest import REAL_DATA

CLASSES, TURNS = 10, 20
SETTINGS = {
    "few-shot, resnet8, 64 pixels, bfloat16": choose_preset("few-shot", start_size=0, precision="bfloat16", epochs=999),
    "few-shot, resnet8, 32 pixels, bfloat16": choose_preset(
        "few-shot", image_size=32, start_size=0, precision="bfloat16", epochs=999
    ),
    "few-shot, resnet8, 64 pixels, float32": choose_preset("few-shot", start_size=0, epochs=999),
    "few-shot for minutes, resnet10-narrow, 64 pixels, bfloat16": choose_preset(
        "few-shot", **FEW_SHOT_SHORTER[0] | {"epochs": 999}, start_size=0, precision="bfloat16"
    ),
    "few-shot for minutes, resnet10-narrow, 32 pixels, bfloat16": choose_preset(
        "few-shot", **FEW_SHOT_SHORTER[2] | {"epochs": 999}, precision="bfloat16"
    ),
    "quick with flips, small, 32 pixels": choose_preset("quick", flip=True, epochs=999),
    "quick at 64 pixels": choose_preset("quick", flip=True, epochs=999, image_size=64),
}


def measure(name: str, config: TrainingConfig, source: str) -> Result:
    sets, cpu = open_images(source), torch.device("cpu")
    classes = tuple(sets["train"].classes[:CLASSES])
    images = select_images(sets, CategorySplit(classes), 0)
    trainee, numbers = BackboneTrainee(images, config, cpu, Processes(), {}, workers=0), count()
    bare = bare_step(config, config.image_size, CLASSES, config.batch_size, cpu)
    actions = {"ours": lambda: float(trainee.step(next(numbers))["train_loss"]), "bare": bare}
    times = alternate(actions, TURNS, warm_up=3)
    ours, peer = (config.batch_size / times[side] for side in ("ours", "bare"))
    return Result(f"training steps, {name}", ours, "images/s", "bare network", peer, ours / peer)


def main() -> None:
    reuse_freed_memory()
    tar = REAL_DATA / "miniimagenet.tar"
    source = str(tar) if tar.exists() else f"glyphs:{CLASSES}x200x20"
    report("pretrain", [measure(name, config, source) for name, config in SETTINGS.items()])


if __name__ == "__main__":
    main()
