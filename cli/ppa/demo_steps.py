"""What `ppa demo` does: a plan of commands, each with what it reads and what it leaves. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from predictor.protocol.method_key import PHI_KINDS

BATCHES = 250  # per epoch of phi, as in the paper


@dataclass(frozen=True)
class Size:
    """How large a demo is. epochs and batch_size: of the backbone. phi_epochs: of 250 steps. draws: of the support.

    Chosen by what a user can wait for, the backbone's accuracy on held-out images of its own classes, and where phi's
    training loss is nearly level; no novel category had a say. phi has the settings of the authors' code: on stand-in
    tasks of base categories (as `ppa calibrate` makes them, 8 tasks, 1,000 steps) their p_mean of 0.3 gave a harmonic
    mean of 79.4, calibrated 91.0, the paper's 0.9 gave 79.1 and 90.6; learning rates of 0.003 and 0.01 changed less.
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
    batches: int = BATCHES
    bench_seconds: float | None = 1.0  # None: without the inference benchmark
    workers: int | None = None  # that draw; starting one takes seconds, which few images do not repay

    @property
    def worker_words(self) -> tuple[str, ...]:
        return () if self.workers is None else ("--workers", str(self.workers))

    @property
    def images(self) -> str:
        return f"glyphs:{self.classes}x{self.per_class}x{self.val_per_class}"


FULL = Size(1000, 30, 10, epochs=4, batch_size=128, phi_epochs=3, triplet_steps=500, calibration_tasks=5, draws=5,
            tasks=600)  # fmt: skip
QUICK = Size(200, 20, 5, epochs=6, batch_size=32, phi_epochs=2, triplet_steps=300, calibration_tasks=5, draws=3,
             tasks=200, bench_seconds=0.3, workers=0)  # fmt: skip


@dataclass(frozen=True)
class Step:
    """words: the command as one would type it. printed: where its output goes, else it is shown. outputs: what it
    makes, removed before it is run with other words. optional: whether the demo goes on without it."""

    name: str
    title: str
    words: tuple[str, ...]
    inputs: tuple[Path, ...] = ()
    outputs: tuple[Path, ...] = ()
    printed: Path | None = None
    optional: bool = False


def plan_demo(folder: Path, size: Size) -> list[Step]:
    store, split = folder / "glyphs.zarr", folder / "split.json"
    weights = folder / "backbone" / "best.safetensors"
    runs = [folder / "runs" / phi for phi in PHI_KINDS]
    with_store = ("--store", str(store), "--split-file", str(split))
    all_phis = tuple(word for run in runs for word in ("--phi", str(run)))
    models = tuple(run / "model.safetensors" for run in runs)
    fits = tuple(run / "calibration.json" for run in runs)
    table, episodes, bench = (folder / f"{name}.json" for name in ("table", "episodes", "bench-inference"))
    steps = [
        Step("pretrain", f"train a backbone on the base categories of {size.images}", (
            "ppa", "pretrain", size.images, "--preset", "quick", "--epochs", str(size.epochs),
            "--batch-size", str(size.batch_size), "--out", str(weights.parent), *size.worker_words,
        ), (), (weights.parent,)),
        Step("build", "run it over all images and keep the activations", (
            "actstore", "build", size.images, str(store), "--backbone", "small", "--weights", str(weights),
            "--batch-size", "128", *size.worker_words,
        ), (weights,), (store,)),
        Step("means", "mean activation of every category", ("actstore", "means", str(store)), (store,)),
        Step("split", "which categories are base, which novel", (
            "ppa", "split", "--store", str(store), "--out", str(split),
        ), (store,), (split,)),
        *_trainings(size, runs, with_store, (store, split)),
        *_calibrations(size, runs, store, weights),
        *_baselines(size, folder, with_store, (store, split)),
        Step("eval", "all-way table of every method", (
            "ppa", "eval", *with_store, *all_phis, "--methods", "nn,triplet,finetune,child,imprint,class-mean,oracle",
            "--head", str(weights), "--runs", str(folder / "runs"), "--shots", size.shots, "--draws", str(size.draws),
            "--out", str(table),
        ), (store, split, weights, *models, *fits, *_baseline_models(folder)), (table,)),
        Step("episodes", f"{size.way}-way tasks of novel categories", (
            "ppa", "episodes", *with_store, *all_phis, "--way", str(size.way), "--tasks", str(size.tasks),
            "--out", str(episodes),
        ), (store, split, *models), (episodes,)),
    ]  # fmt: skip
    report, drawn = folder / "report.html", folder / "figures"
    seen: tuple[Path, ...] = (store, weights, table, *models, *fits)
    if size.bench_seconds is not None:
        seen = (*seen, bench)
        steps.append(Step("bench-inference", "how long an image takes: phi beside nearest neighbours", (
            "ppa", "bench-inference", "--store", str(store), "--backbone", "small", "--categories", str(size.classes),
            "--seconds", str(size.bench_seconds), "--json",
        ), (store,), (bench,), bench, optional=True))  # fmt: skip
    return [
        *steps,
        Step("figures", "draw the figures", ("ppa", "figures", "--run-folder", str(folder)), seen, (drawn,)),
        Step("report", "write the report", (
            "ppa", "report", "--folder", str(folder), "--out", str(report),
            "--title", f"{size.classes:,} glyph categories: new ones from a few examples",
        ), (*seen, episodes, drawn / "class-map.json"), (report,)),
    ]  # fmt: skip


def _trainings(size: Size, runs: list[Path], with_store: tuple[str, ...], inputs: tuple[Path, ...]) -> list[Step]:
    return [
        Step(run.name, f"train {run.name} for {size.phi_epochs * size.batches:,} steps", (
            "ppa", "train", "--phi", run.name, "--preset", "code", *with_store, "--epochs", str(size.phi_epochs),
            *(("--batches", str(size.batches)) if size.batches != BATCHES else ()), "--out", str(run),
        ), inputs, (run,))
        for run in runs
    ]  # fmt: skip


def _calibrations(size: Size, runs: list[Path], store: Path, weights: Path) -> list[Step]:
    return [
        Step(f"calibrate-{run.name}", f"fit the constant on {run.name}'s novel scores, on base categories alone", (
            "ppa", "calibrate", "--phi", str(run), "--store", str(store), "--head", str(weights),
            "--shots", size.shots, "--tasks", str(size.calibration_tasks), "--force",
        ), (store, weights, run / "model.safetensors"), (run / "calibration.json",))
        for run in runs
    ]  # fmt: skip


def _baselines(size: Size, folder: Path, with_store: tuple[str, ...], inputs: tuple[Path, ...]) -> list[Step]:
    return [
        Step("triplet", "train the baseline Triplet on the stored activations", (
            "ppa", "baseline", "triplet", *with_store, "--steps", str(size.triplet_steps),
            "--out", str(folder / "runs" / "triplet"),
        ), inputs, (folder / "runs" / "triplet",)),
        Step("oracle", "train the linear oracle, which sees all images of novel categories", (
            "ppa", "baseline", "oracle", *with_store, "--epochs", "6", "--out", str(folder / "runs" / "oracle"),
        ), inputs, (folder / "runs" / "oracle",)),
    ]  # fmt: skip


def _baseline_models(folder: Path) -> tuple[Path, ...]:
    return tuple(folder / "runs" / name / "model.safetensors" for name in ("triplet", "oracle"))
