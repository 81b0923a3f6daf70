"""What `ppa demo` does: a plan of commands, each with what it reads and what it leaves."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

PHIS = ("phi1", "phi2", "phi2star")


@dataclass(frozen=True)
class Size:
    """How large a demo is. epochs and batch_size: of the backbone. phi_epochs: of 250 steps. draws: of the support.

    Chosen by what a user can wait for, the backbone's accuracy on held-out images of its own classes, and where phi's
    training loss is nearly level; no novel category had a say. phi has the settings of the authors' code: on 8 stand-in
    tasks of base categories their p_mean of 0.3 gave a harmonic mean of 79.4, the paper's 0.9 gave 79.1.
    """

    classes: int
    per_class: int
    val_per_class: int
    epochs: int
    batch_size: int
    phi_epochs: int
    triplet_steps: int
    calibration_tasks: int
    draws: int
    tasks: int
    way: int = 5
    shots: str = "1,2,3"
    batches: int = 250  # per epoch of phi, as in the paper
    bench_seconds: float | None = 1.0  # None: without the inference benchmark
    workers: int | None = None  # that draw; starting one takes seconds, which few images do not repay


FULL = Size(1000, 30, 10, epochs=4, batch_size=128, phi_epochs=3, triplet_steps=500, calibration_tasks=5, draws=5,
            tasks=600)  # fmt: skip
QUICK = Size(200, 20, 5, epochs=6, batch_size=32, phi_epochs=2, triplet_steps=300, calibration_tasks=5, draws=3,
             tasks=200, bench_seconds=0.3, workers=0)  # fmt: skip


@dataclass(frozen=True)
class Step:
    """command: as one would type it. inputs, outputs: files; without outputs it resumes by itself. printed:
    where its output goes, else it is shown. optional: the demo goes on without it."""

    name: str
    title: str
    command: str
    inputs: tuple[Path, ...] = ()
    outputs: tuple[Path, ...] = ()
    printed: Path | None = None
    optional: bool = False

    def is_up_to_date(self) -> bool:
        """What it makes is there, and newer than what it is made of."""
        if not self.outputs or not all(path.exists() for path in (*self.inputs, *self.outputs)):
            return False
        made, read = ([path.stat().st_mtime_ns for path in paths] for paths in (self.outputs, self.inputs))
        return min(made) >= max(read, default=0)


def plan_demo(folder: Path, size: Size) -> list[Step]:
    at = shlex.quote(str(folder))
    images = f"glyphs:{size.classes}x{size.per_class}x{size.val_per_class}"
    workers = "" if size.workers is None else f"--workers {size.workers}"
    weights, store = folder / "backbone/best.safetensors", folder / "glyphs.zarr/val/zarr.json"
    rows, of_store = (store, folder / "split.json"), f"--store {at}/glyphs.zarr --split-file {at}/split.json"
    phis = " ".join(f"--phi {at}/runs/{phi}" for phi in PHIS)
    models = {name: folder / "runs" / name / "model.safetensors" for name in (*PHIS, "triplet", "oracle")}
    phi_models = [models[phi] for phi in PHIS]
    fits = tuple(path.with_name("calibration.json") for path in phi_models)
    table, episodes, bench = (folder / f"{name}.json" for name in ("table", "episodes", "bench-inference"))
    steps = [
        Step("pretrain", f"train a backbone on the base categories of {images}",
             f"ppa pretrain {images} --preset quick --epochs {size.epochs} --batch-size {size.batch_size} "
             f"--out {at}/backbone {workers}"),
        Step("build", "run it over all images and keep the activations",
             f"actstore build {images} {at}/glyphs.zarr --backbone small --weights {at}/backbone/best.safetensors "
             f"--batch-size 128 {workers}", (weights,)),
        Step("means", "mean activation of every category", f"actstore means {at}/glyphs.zarr", (store,),
             (folder / "glyphs.zarr/train/class_mean/zarr.json",)),
        Step("split", "which categories are base, which novel",
             f"ppa split --store {at}/glyphs.zarr --out {at}/split.json --force", (store,), rows[1:]),
        *(Step(phi, f"train {phi} for {size.phi_epochs * size.batches:,} steps",
               f"ppa train --phi {phi} --preset code {of_store} --epochs {size.phi_epochs} --batches {size.batches} "
               f"--out {at}/runs/{phi}", rows, (models[phi],)) for phi in PHIS),
        *(Step(f"calibrate-{phi}", f"fit the constant on {phi}'s novel scores, on base categories alone",
               f"ppa calibrate --phi {at}/runs/{phi} --store {at}/glyphs.zarr --head {at}/backbone/best.safetensors "
               f"--shots {size.shots} --tasks {size.calibration_tasks} --force",
               (store, weights, models[phi]), (fit,)) for phi, fit in zip(PHIS, fits, strict=True)),
        Step("triplet", "train the baseline Triplet on the stored activations",
             f"ppa baseline triplet {of_store} --steps {size.triplet_steps} --out {at}/runs/triplet", rows,
             (models["triplet"],)),
        Step("oracle", "train the linear oracle, which sees all images of novel categories",
             f"ppa baseline oracle {of_store} --epochs 6 --out {at}/runs/oracle", rows, (models["oracle"],)),
        Step("eval", "all-way table of every method",
             f"ppa eval {of_store} {phis} --methods nn,triplet,finetune,child,imprint,class-mean,oracle "
             f"--head {at}/backbone/best.safetensors --runs {at}/runs --shots {size.shots} --draws {size.draws} "
             f"--out {at}/table.json --force", (*rows, weights, *models.values(), *fits), (table,)),
        Step("episodes", f"{size.way}-way tasks of novel categories",
             f"ppa episodes {of_store} {phis} --way {size.way} --tasks {size.tasks} --out {at}/episodes.json --force",
             (*rows, *phi_models), (episodes,)),
    ]  # fmt: skip
    seen: tuple[Path, ...] = (store, weights, table, *phi_models, *fits)
    if size.bench_seconds is not None:
        steps.append(Step("bench-inference", "how long an image takes: phi beside nearest neighbours",
             f"ppa bench-inference --store {at}/glyphs.zarr --backbone small --categories {size.classes} "
             f"--seconds {size.bench_seconds} --json", (store,), (bench,), printed=bench, optional=True))  # fmt: skip
    drawn = folder / "figures/training.png"
    return [
        *steps,
        Step("figures", "draw the figures", f"ppa figures --run-folder {at}", seen, (drawn,)),
        Step("report", "write the report", f"ppa report --folder {at} --out {at}/report.html --force --title "
             f"'{size.classes:,} glyph categories: new ones from a few examples'",
             (*seen, episodes, drawn), (folder / "report.html",)),
    ]  # fmt: skip
