"""`ppa pretrain`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from actstore.progress import is_main_process
from cli.group import emit, example, json_option
from cli.options import FOLDER, combine, device_option
from cli.outputs import claim_folder
from cli.ppa.options import run_options, split_file_option
from cli.ppa.recognition import choose_categories

PRESETS = ("quick", "few-shot", "paper-resnet50", "paper-simple", "paper-wrn")

# one for each value of a preset; what is not given is the preset's
setting_options = combine(
    click.option("--backbone", help="resnet50, resnet18, simple, wrn28-10, resnet10-narrow, resnet8 or small."),
    click.option("--image-size", type=click.IntRange(8), help="Side of what the network sees, in pixels."),
    click.option("--epochs", type=click.IntRange(1)),
    click.option("--batch-size", type=click.IntRange(1), help="Images per step, over all processes."),
    click.option("--lr", "learning_rate", type=click.FloatRange(0), help="Learning rate after the warm-up."),
    click.option("--schedule", type=click.Choice(["constant", "step", "cosine"]), help="How lr falls."),
    click.option("--warmup-epochs", type=click.FloatRange(0), help="Of lr rising from 0."),
    click.option("--decay-epochs", type=click.IntRange(1), help="Schedule step: a tenth of lr after so many."),
    click.option("--weight-decay", type=click.FloatRange(0)),
    click.option("--momentum", type=float),
    click.option("--label-smoothing", type=float),
    click.option("--augment", type=click.Choice(["crop", "shift", "none"]), help="Random crop, or random shift."),
    click.option("--min-scale", type=float, help="Smallest share of an image that a random crop keeps."),
    click.option("--shift", type=click.IntRange(0), help="Move images by up to this many pixels."),
    click.option("--flip/--no-flip", default=None, help="Mirror half of the images; off in quick, for glyphs."),
    click.option("--mixup", type=click.FloatRange(0),
                 help="Show blends of two images, shares from Beta(MIXUP, MIXUP); 0: none."),
    click.option("--jitter", type=click.FloatRange(0), help="Change of brightness, contrast and saturation."),
    click.option("--lighting", type=click.FloatRange(0), help="Strength of the PCA lighting."),
    click.option("--start-size", type=click.IntRange(0), help="Side of images in the first epochs; 0: the same."),
    click.option("--start-share", type=float, help="Share of the epochs that --start-size is for."),
    click.option("--precision", type=click.Choice(["float32", "bfloat16"]), help="Of convolutions on a CPU."),
    click.option("--evaluations", type=click.IntRange(0), help="Looks at held-out images; 0: after every epoch."),
    click.option("--cosine/--no-cosine", default=None, help="A classifier of cosines, with a learnt scale."),
    click.option("--in-memory/--no-in-memory", default=None, help="Decode every image once, if 2 GB are enough."),
)  # fmt: skip


@click.command(
    epilog=example(
        "ppa pretrain glyphs:1000x40x10 --preset quick --out glyphs-small",
        "ppa pretrain photos/ --preset few-shot --hours 2 --out features",
        "ppa pretrain photos/ --preset few-shot --hours 6 --ensemble 2 --out features",
        "ppa pretrain imagenet/ --preset paper-resnet50 --split-file split.json --out resnet50-900",
        "torchrun --nproc-per-node 4 --no-python ppa pretrain imagenet/ --preset paper-resnet50",
        "actstore build imagenet/ --backbone resnet50 --weights resnet50-900/best.safetensors",
    )
)
@click.argument("images")
@click.option("--preset", type=click.Choice(PRESETS), default="quick", show_default=True)
@click.option("--hours", type=click.FloatRange(0, min_open=True), help="Measure this machine, then plan so long a "
              "training; in place of --epochs.  [default: 2 with few-shot]")  # fmt: skip
@split_file_option
@click.option("--out", type=FOLDER, default=Path("pretrained"), show_default=True)
@setting_options
@device_option()
@click.option("--workers", type=click.IntRange(0), help="Processes that decode.  [default: one per core, at most 8]")
@click.option("--ensemble", type=click.IntRange(1, 8), default=1, show_default=True,
              help="Networks to train one after another, in OUT/1, OUT/2, … with SEED, SEED + 1, …, and to join into "
              "one; --hours are for all of them.")  # fmt: skip
@run_options
@json_option
def pretrain(
    images: str, preset: str, hours: float | None, split_file: Path | None, out: Path, ensemble: int, **options: Any
) -> None:  # fmt: skip
    """Train a backbone and its classifier on the base classes (C_large) of IMAGES, and on no other.

    IMAGES: a folder, tar or list of all classes, or glyphs:CLASSESxTRAINxVAL, the embedded data set (train and
    val images per class). Accuracy is measured on the split val, else on a tenth of train that is held out.
    few-shot gives the best features for categories that it was never taught: it measures how many images per second
    this machine trains on, and plans network, mixup, image size, precision and epochs for --hours; other presets plan
    their epochs. Interrupted, the same command resumes exactly. OUT/best.safetensors is for `actstore build --weights`:
    the best epoch by that tenth of train; with a split val the last one, as its images are tested on later and choose
    nothing. With --ensemble it is the joined network, and OUT/1, … hold the trainings.
    """
    import predictor
    from predictor.training import BACKBONE_FILES

    if is_main_process():
        for folder in {out, *(out / str(number + 1) for number in range(ensemble if ensemble > 1 else 0))}:
            claim_folder(folder, BACKBONE_FILES, [split_file])
    if hours is not None and options["epochs"] is not None:
        raise click.UsageError("--hours plans the epochs, so --epochs cannot be given with it; give one of them")
    result = predictor.pretrain(
        images, out, split=lambda names: choose_categories(split_file, names, ["base"]), preset=preset, hours=hours,
        ensemble=ensemble, progress=True, **options,
    )  # fmt: skip
    if result is not None:
        emit({"preset": preset, **result.to_json()}, str(result))
