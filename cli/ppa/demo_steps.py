"""What `ppa demo` does: a plan of commands, each with what it reads and what it leaves."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

PHIS = ("phi1", "phi2", "phi2star")


@dataclass(frozen=True)
class Size:
    """How large a demo is. epochs and batch_size: of the backbone. phi_epochs: of 250 steps. draws: of the support.

    Chosen by what a user can wait for and by the backbone's accuracy on held-out images of its own classes, 70 to 80%,
    so that there is something to lose and to gain; no novel category had a say.
    """

    classes: int
    per_class: int
    val_per_class: int
    distortion: float
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


FULL = Size(1000, 30, 10, distortion=2.5, epochs=4, batch_size=128, phi_epochs=3, triplet_steps=500,
            calibration_tasks=5, draws=5, tasks=600)  # fmt: skip
QUICK = Size(200, 20, 5, distortion=2, epochs=6, batch_size=32, phi_epochs=2, triplet_steps=300,
             calibration_tasks=5, draws=3, tasks=200, bench_seconds=0.3, workers=0)  # fmt: skip


@dataclass(frozen=True)
class Step:
    """outputs: files; without them the command resumes by itself."""

    name: str
    title: str
    command: str
    inputs: tuple[Path, ...] = ()
    outputs: tuple[Path, ...] = ()
    optional: bool = False

    def is_up_to_date(self) -> bool:
        """What it makes is there, and newer than what it is made of."""
        if not self.outputs or not all(path.exists() for path in (*self.inputs, *self.outputs)):
            return False
        times = [[path.stat().st_mtime_ns for path in paths] for paths in (self.outputs, self.inputs)]
        return min(times[0]) >= max(times[1], default=0)


def plan_demo(folder: Path, size: Size) -> list[Step]:
    at = shlex.quote(str(folder))
    images = f"glyphs:{size.classes}x{size.per_class}x{size.val_per_class}@{size.distortion:g}"
    workers = "" if size.workers is None else f"--workers {size.workers}"
    weights, store = folder / "backbone/best.safetensors", folder / "glyphs.zarr/val/zarr.json"
    rows, of_store = (store, folder / "split.json"), f"--store {at}/glyphs.zarr --split-file {at}/split.json"
    phis = " ".join(f"--phi {at}/runs/{phi}" for phi in PHIS)
    models = {name: folder / "runs" / name / "model.safetensors" for name in (*PHIS, "triplet", "oracle")}
    phi_models, fits = [models[phi] for phi in PHIS], {phi: folder / f"runs/{phi}/calibration.json" for phi in PHIS}
    files = ("table", "episodes", "bench-inference", "runs/calibration")
    table, episodes, bench, others = (folder / f"{name}.json" for name in files)
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
               f"ppa calibrate --phi {at}/runs/{phi} --store {at}/glyphs.zarr --shots {size.shots} "
               f"--tasks {size.calibration_tasks} --force", (store, models[phi]), (fits[phi],)) for phi in PHIS),
        Step("triplet", "train the baseline Triplet on the stored activations",
             f"ppa baseline triplet {of_store} --steps {size.triplet_steps} --out {at}/runs/triplet", rows,
             (models["triplet"],)),
        Step("oracle", "train the linear oracle, which sees all images of novel categories",
             f"ppa baseline oracle {of_store} --epochs 6 --out {at}/runs/oracle", rows, (models["oracle"],)),
        Step("calibrate-others", "fit the same constant for every other method, by the same tasks",
             f"ppa calibrate --methods nn,triplet,imprint,class-mean,simple-shot --runs {at}/runs {of_store} --head "
             f"{at}/backbone/best.safetensors --shots {size.shots} --tasks {size.calibration_tasks} --force",
             (*rows, weights, models["triplet"]), (others,)),
        Step("eval", "all-way table of every method",
             f"ppa eval {of_store} {phis} --methods nn,triplet,finetune,child,imprint,class-mean,simple-shot,oracle "
             f"--base head --head {at}/backbone/best.safetensors --runs {at}/runs --shots {size.shots} "
             f"--draws {size.draws} --out {at}/table.json --force",
             (*rows, weights, *models.values(), *fits.values(), others), (table,)),
        Step("episodes", f"{size.way}-way tasks of novel categories",
             f"ppa episodes {of_store} {phis} --way {size.way} --tasks {size.tasks} --out {at}/episodes.json --force",
             (*rows, *phi_models), (episodes,)),
    ]  # fmt: skip
    seen = (store, weights, table, *phi_models, *fits.values())
    if size.bench_seconds is not None:
        steps.append(Step("bench-inference", "how long an image takes: phi beside nearest neighbours",
             f"ppa bench-inference --store {at}/glyphs.zarr --backbone small --categories {size.classes} "
             f"--seconds {size.bench_seconds} --out {at}/bench-inference.json --force",
             (store,), (bench,), optional=True))  # fmt: skip
    return [
        *steps,
        Step("figures", "draw the figures", f"ppa figures --run-folder {at}", seen, (folder / "figures/training.png",)),
        Step("report", "write the report", f"ppa report --folder {at} --out {at}/report.html --force --title "
             f"'{size.classes:,} glyph categories: new ones from a few examples'",
             (*seen, episodes, folder / "figures/training.png"), (folder / "report.html",))]  # fmt: skip
