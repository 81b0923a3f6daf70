"""Fitting the constant on novel scores, for any methods, and keeping it where evaluations find it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from actstore.errors import InvalidInputError
from actstore.progress import bar, note
from predictor.figures.style import draw_trade_off
from predictor.protocol import calibration, setting
from predictor.protocol.calibration import FILE, TASKS, Calibration, Calibrations, count_shots
from predictor.protocol.method import MakesMethod, Method
from predictor.protocol.setting import Categories, Source
from predictor.protocol.stand_ins import HeldOut, StandInSource


def calibrate(
    methods: Sequence[MakesMethod] | MakesMethod,
    store: Source,
    split: Categories = None,
    *,
    shots: Sequence[int] | int | None = None,
    train: str = "train",
    test: str | None = None,
    tasks: int = TASKS,
    seed: int = 0,
    save: bool = True,
    progress: bool | None = None,
) -> Calibrations:
    """Fit the constant on novel scores, which trades base for novel accuracy, without looking at a novel category.

    Base categories stand in for novel ones while it is fitted, or validation categories where the split has some. A
    constant that does not hold on tasks it was not fitted on has `failed` set, and no table shows a row with it.

    Args:
        methods: one method or several, such as a trained phi, `baselines.make(...)` or methods of your own.
        store: a store, or its path.
        split: base and novel categories, or their file; by default those of the phi, else the first 90% of the class
            names are the base.
        shots: numbers of examples; by default those of 1, 2, 3 and 5 that there are rows for.
        train: name of the split that has base rows and examples.
        test: name of a split whose base rows the network was not trained on, by default val or test; "none" for none.
            A fifth of these rows is used, and `evaluate` leaves it out.
        tasks: how many times stand-ins are drawn, by default 20.
        seed: of the draws.
        save: keep the constants in the `folder` of each method, where `evaluate` and `Classifier.from_phi` find them:
            the training of a phi, the folder `runs` of baselines. Those of a method without a folder are in the method
            alone. Whoever changes the code of a method calibrates it again, as constants are kept by its key.
        progress: None shows a bar on a terminal and in a notebook, False none, True logs a line every 20 seconds.

    Returns:
        The constant of every method and number of examples: a list that shows itself as a table.

    Raises:
        InvalidInputError: base scores of all these methods depend on the examples, so that there is nothing to fit; or
            two methods have the same key and folder, by which constants are kept.

    Examples:
        >>> fits = predictor.calibrate(phi, store, split, shots=1, tasks=2)
        >>> [(fit.key, fit.shots) for fit in fits]
        [('phi1', 1)]
    """
    for one in setting.listed(methods):
        if isinstance(one, type):  # a method made of it here would be gone with its constants
            name = one.__name__
            raise InvalidInputError(f"{name} is a class, and constants are kept in a method: give {name}()")
    opened = setting.open_store(store)
    rows = opened[train]
    categories = setting.choose_categories(split, methods, opened)
    made = setting.make_methods(methods, rows, categories, None)
    fitted = [method for method in made if calibration.is_calibrated(method)]
    if not fitted:
        raise InvalidInputError("none of these methods has base scores that do not depend on the examples")
    calibration.require_keys(fitted)
    counts = setting.shots_to_fit(shots, rows, categories, progress)
    setting.say_means_are_computed(rows, progress)
    held_out = None if test == "none" else setting.find_test_split(opened, train, test)
    source = StandInSource(rows, categories, max(counts), None if held_out is None else HeldOut(held_out))
    with bar("calibrate", tasks, "tasks", progress) as shown:
        fits = calibration.fit_calibrations(fitted, source, counts, tasks, seed, shown.update)
    # by place: methods of several folders may have the same key
    own = [fits[place * len(counts) :][: len(counts)] for place in range(len(fitted))]
    for method, ours in zip(fitted, own, strict=True):
        about = counts, rows.content, categories.base
        before = [fit for fit in method.calibrations if not calibration.is_replaced(fit, *about)]
        method.calibrations = [*before, *ours]
    if save:
        _save(fitted, own, progress)
    return Calibrations(fits)


def _save(methods: Sequence[Method], fits: Sequence[Sequence[Calibration]], shown: bool | None) -> None:
    """fits: those of each method."""
    if homeless := [method.name for method in methods if method.folder is None]:
        note(f"kept in the method alone, which has no folder: the constant of {', '.join(homeless)}", shown)
    for folder in dict.fromkeys(method.folder for method in methods if method.folder is not None):
        here = [fit for method, of in zip(methods, fits, strict=True) if method.folder == folder for fit in of]
        ours = list({(fit.key, fit.share, fit.shots): fit for fit in here}.values())  # once of both ways of combining
        gone = sorted({fit.key or ours[0].key for fit in calibration.save_calibrations(folder, ours, shown)})
        note(f"constants kept in {folder / FILE}" + f", in place of those of {', '.join(gone)}" * bool(gone), shown)
        if len({(fit.key, fit.share) for fit in ours}) == 1:
            method = ours[0].key, ours[0].share
            kept = [fit for fit in calibration.load_calibrations(folder) if (fit.key, fit.share) == method]
            _draw(folder / calibration.FIGURE, sorted(kept, key=lambda fit: fit.shots))


def _draw(path: Path, fits: Sequence[Calibration]) -> None:
    """The trade-off of each number of shots, and where the first stands without a constant and with it."""
    curves = {
        f"{count_shots(fit.shots)}, {fit.aggregate}": (fit.curve["novel"], fit.curve["base"])
        for fit in fits
        if fit.curve
    }
    fit, points = fits[0], []
    for name, bias in (("no constant", 0.0), ("calibrated", fit.novel_bias)):
        if fit.curve is not None:
            place = min(range(len(fit.curve["bias"])), key=lambda i: abs(fit.curve["bias"][i] - bias))  # type: ignore[index]
            points.append((f"{name}, {count_shots(fit.shots)}", fit.curve["novel"][place], fit.curve["base"][place]))
    draw_trade_off(path, curves, points)
