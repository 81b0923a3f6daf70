"""Measurements: all-way accuracy, N-way K-shot tasks, and sessions; each returns results that know their warnings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import actstore
from actstore.compute import reuse_freed_memory
from actstore.errors import InvalidInputError
from actstore.progress import bar, note
from predictor.calibrating import calibrate as fit_constants
from predictor.protocol import calibration, episodes, sessions, setting
from predictor.protocol.base_categories import BaseCategories
from predictor.protocol.calibration import NOT_FITTED, Calibration, count_shots, nearest_fit
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.evaluation import AllWayTask, CalibratedMethod, all_way_task, measure, plan_draws
from predictor.protocol.method import Aggregate, EpisodeMethod, MakesMethod, Method
from predictor.protocol.setting import Categories, Source, describe_test, thin_categories
from predictor.report.all_way_table import AllWayResults, all_way_records
from predictor.report.session_table import EpisodeResults, SessionResults, episode_rows, session_rows

MAY_HOLD = (
    "a constant that failed may hold with more held-out images of base categories, more base categories, or more tasks "
    "(tasks=, --tasks)"
)
Calibrate = bool | Literal["saved"]
Run = tuple[episodes.Examples, Sequence[EpisodeMethod]]  # methods that read the same examples


def evaluate(
    methods: Sequence[MakesMethod] | MakesMethod,
    store: Source,
    split: Categories = None,
    *,
    shots: Sequence[int] | int | None = None,
    draws: int = 20,
    calibrate: Calibrate = "saved",
    aggregate: Aggregate | None = None,
    train: str = "train",
    test: str | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> AllWayResults:
    """Measure all-way accuracy on base and novel categories, of every method on the same draws of examples.

    Test rows that a constant was fitted on are left out for all methods. The `warnings` of the result say what else a
    reader must know: that the network saw novel categories, that images are in both splits, or that figures do not
    compare with the paper's.

    Args:
        methods: one method or several, such as a trained phi, `baselines.make(...)` or methods of your own.
        store: a store, or its path.
        split: base and novel categories, or their file; by default those of the phi, else the first 90% of the class
            names are the base.
        shots: numbers of examples of each novel category; by default those of 1, 2, 3 and 5 that there are rows for.
        draws: how often examples are drawn; figures are means over the draws, with 95% intervals.
        calibrate: "saved" adds a calibrated row to methods whose constants were kept, True also fits those that are
            missing, False adds none.
        aggregate: how phi combines several examples, "max" or "mean".
        train: name of the split that examples come from.
        test: name of the split that test images come from, by default test, or val where there is none with rows
            of base and novel categories.
        seed: of the draws.
        progress: None shows a bar on a terminal and in a notebook, False none, True logs a line every 20 seconds.

    Returns:
        A row for every method and number of examples.

    Raises:
        InvalidInputError: every novel category has too few rows, a method belongs to other rows or categories, or
            two have the same key and folder, by which constants are kept.

    Examples:
        >>> results = predictor.evaluate([phi, *baselines.make("class-mean")], store, split, shots=1, draws=2)
        >>> [record["key"] for record in results.records]
        ['phi1', 'class-mean']
    """
    reuse_freed_memory()
    opened = setting.open_store(store)
    rows, categories = opened[train], setting.choose_categories(split, methods, opened)
    tested = setting.require_test_split(opened, train, test, categories)
    counts = setting.choose_shots(shots, rows, categories.novel, shown=progress)
    among, poor = setting.without_poor(rows, tested, categories, max(counts))
    compared = setting.make_methods(methods, rows, among, aggregate)
    fits, said = _calibrations(compared, opened, categories, counts, calibrate, train, test, seed, progress)
    task, left_out = setting.without_fitted_rows(
        all_way_task(rows, tested, among), [fit for of in fits for fit in of if not fit.failed]
    )
    note(describe_test(opened, task), progress)
    if any(method.key not in ("nn", "triplet") for method in compared):  # nearest neighbours alone need no means
        setting.say_means_are_computed(rows, progress)
    total = sum(len(numbers) for method in compared for numbers in plan_draws(method, counts, draws).values())
    measured = []
    with bar("eval", total, "draws", progress) as shown:
        for method, of_method in zip(compared, fits, strict=True):
            shown.set_postfix_str(f"{method.name} {method.share}", refresh=False)
            own = _own_task(method, task, among)
            measured += measure(method, own, counts, draws, seed, of_method, shown.update)
    order = [*map(str, counts), "all"]
    measured.sort(key=lambda row: order.index(row.shots))
    lacking = setting.why_not_comparable_to_paper(rows)
    if lacking or not setting.is_as_large_as_the_paper(among):
        measured = [replace(row, is_beside_paper=False) for row in measured]
    leaked, thin = setting.leaks(opened, task, counts, draws, seed), thin_categories(tested, among)
    for line in sorted({getattr(method, "share_taken", "") for method in compared} - {""}):
        note(line, progress)
    warnings = (setting.contamination(rows, among), poor, leaked, lacking, *thin, left_out, *said)
    return AllWayResults(all_way_records(measured), [text for text in warnings if text])


def run_sessions(
    methods: Sequence[MakesMethod] | MakesMethod,
    store: Source,
    split: Categories = None,
    *,
    way: int = 5,
    shots: int = 5,
    draws: int = 10,
    examples: str | Path | None = None,
    calibrate: Calibrate = "saved",
    train: str = "train",
    test: str | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> SessionResults:
    """Measure few-shot class-incremental learning: novel categories are added in sessions, a few at a time.

    After each session all test images of the categories known by then compete among all of them.

    Args:
        methods: one method or several, as in `evaluate`.
        store: a store, or its path.
        split: base and novel categories, as in `evaluate`.
        way: how many categories a session adds.
        shots: examples of each of them.
        draws: how often examples are drawn.
        examples: a file that lists the images to show, one path a line, in place of drawn examples.
        calibrate: as in `evaluate`.
        train: name of the split that examples come from.
        test: name of the split that test images come from, by default test, or val where there is none with rows
            of base and novel categories.
        seed: of the draws.
        progress: None shows a bar on a terminal and in a notebook, False none, True logs a line every 20 seconds.

    Returns:
        The accuracy after every session.

    Raises:
        InvalidInputError: a method trains when it learns a category, or every novel category has too few rows.

    Examples:
        >>> results = predictor.run_sessions(phi, store, split, way=1, shots=1, draws=2)
    """
    opened = setting.open_store(store)
    rows, categories = opened[train], setting.choose_categories(split, methods, opened)
    tested = setting.require_test_split(opened, train, test, categories)
    if len(counts := setting.choose_shots(shots, rows, categories.novel)) > 1:
        raise InvalidInputError(f"sessions are of one number of shots, got {shots}; run them once for each")
    (shots,) = counts
    among, poor = setting.without_poor(rows, tested, categories, shots)
    added = replace(among, validation=())  # sessions add no validation category: those may be known
    compared = setting.make_methods(methods, rows, among, "mean")
    fits, said = _calibrations(compared, opened, categories, [shots], calibrate, train, test, seed, progress)
    task, left_out = setting.without_fitted_rows(
        all_way_task(rows, tested, among), [fit for of in fits for fit in of if not fit.failed]
    )
    note(describe_test(opened, task), progress)
    setting.say_means_are_computed(rows, progress)
    if examples is not None:
        task, draws = replace(task, fixed=sessions.read_examples(Path(examples), rows, among.novel, shots)), 1
    added_at_once = min(way, len(among.novel))
    ways: list[Method] = []
    for method, of_method in zip(compared, fits, strict=True):
        holds = bool(of_method) and not nearest_fit(of_method, shots).failed
        ways += [method, *([CalibratedMethod(method, of_method, shots)] if holds else [])]
    results = []
    with bar("sessions", len(ways) * draws, "draws", progress) as shown:
        for method in ways:
            own = _own_task(method, task, among)
            results.append(sessions.run_sessions(method, own, added_at_once, shots, draws, seed, shown.update))
    backbone = str(rows.spec.provenance.get("backbone") or "not known")
    few = f"one session adds all {added_at_once} novel categories, fewer than {way}" * (added_at_once < way)
    warnings = (setting.contamination(rows, added), poor, few, *thin_categories(tested, among), left_out, *said)
    return SessionResults(session_rows(results, added_at_once, shots, backbone), [text for text in warnings if text])


def run_episodes(
    methods: Sequence[MakesMethod | EpisodeMethod] | MakesMethod | EpisodeMethod,
    store: Source | None = None,
    split: Categories = None,
    *,
    way: int = 5,
    shots: Sequence[int] | int | None = None,
    tasks: int = 1000,
    queries: int | None = None,
    splits: Sequence[str] | None = None,
    seed: int = 0,
    runs: Sequence[Run] = (),
    progress: bool | None = None,
) -> EpisodeResults:
    """Measure N-way K-shot tasks of the novel categories, every method on the same tasks.

    AUROC compares images of known with images of unknown categories, where half of the categories of a task are
    withheld.

    Args:
        methods: one method or several, as in `evaluate`, or `baselines.make_for_episodes(...)`.
        store: a store, or its path.
        split: base and novel categories, as in `evaluate`.
        way: categories of a task.
        shots: numbers of examples of each category; by default those of 1, 2, 3 and 5 that there are rows for.
        tasks: how many tasks there are.
        queries: of each category in a task, by default all rows that are not examples.
        splits: names of splits whose rows are pooled, by default train, val and test.
        seed: of the tasks.
        runs: further methods with examples of their own, such as what `baselines.read_learners` returns.
        progress: None shows a bar on a terminal and in a notebook, False none, True logs a line every 20 seconds.

    Returns:
        The accuracy of every method and number of examples.

    Raises:
        InvalidInputError: there are fewer novel categories than a task needs, or nothing to measure.

    Examples:
        >>> halves = predictor.CategorySplit(("ant", "bee"), ("cat", "dog"))
        >>> methods = baselines.make_for_episodes("class-mean")
        >>> results = predictor.run_episodes(methods, store, halves, way=2, shots=1, tasks=5)
    """
    opened = None if store is None else setting.open_store(store)
    warnings: list[str | None] = []
    backbone, beside_paper, counts, all_runs = "", True, setting.choose_shots(shots), list[Run]()
    if opened is not None:
        names = list(splits) if splits else [name for name in episodes.POOLED if name in opened.splits]
        if not names:
            raise InvalidInputError(f"choose splits to pool: {', '.join(opened.splits) or 'there are none yet'}")
        pooled = [opened[name] for name in names]
        categories = setting.choose_categories(split, methods, opened)
        if not categories.novel:
            raise InvalidInputError("the split names no novel category to make tasks of")
        compared = [_episode_method(one, pooled[0], categories) for one in setting.listed(methods)]
        backbone = str(pooled[0].spec.provenance.get("backbone"))
        lacking = setting.why_not_comparable_to_paper(pooled[0])
        beside_paper = lacking is None and setting.are_of_imagenet(categories)
        warnings = [setting.contamination(pooled[0], replace(categories, validation=())), lacking]
        counts = setting.choose_shots(shots, pooled[0], categories.novel, spare=1, shown=progress)
        if compared:
            gathered = episodes.gather_classes(pooled, categories.novel)
            examples, poor = episodes.without_poor(gathered, max(counts) + (queries or 1), way)
            warnings.append(poor)
            all_runs.append((examples, compared))
    all_runs += runs
    if not all_runs:
        raise InvalidInputError("nothing to measure: give methods and a store, or learners with their images")
    sizes = [episodes.TaskSize(way, count, queries) for count in counts]
    with bar("episodes", len(all_runs) * len(sizes) * tasks, "tasks", progress) as shown:
        results = [
            result
            for examples, of_examples in all_runs
            for size in sizes
            for result in episodes.run_episodes(of_examples, examples, size, tasks, seed, shown.update)
        ]
    rows = episode_rows(results, sizes, backbone, beside_paper)
    return EpisodeResults(rows, [text for text in warnings if text])


def _calibrations(
    methods: Sequence[Method],
    store: actstore.ActivationStore,
    categories: CategorySplit,
    shots: Sequence[int],
    calibrate: Calibrate,
    train: str,
    test: str | None,
    seed: int,
    progress: bool | None,
) -> tuple[list[list[Calibration]], list[str]]:
    """For each method the constants that were fitted for it at these shots, and what is wrong with those that fail or
    are missing."""
    rows, fits = store[train], [list[Calibration]() for _ in methods]
    if calibrate not in (True, False, "saved"):
        raise InvalidInputError(f'calibrate must be True, False or "saved", got {calibrate!r}')
    if calibrate is False:
        return fits, []
    wanted = [calibration.is_calibrated(method) and not getattr(method, "novel_bias", 0.0) for method in methods]
    calibration.require_keys([method for place, method in enumerate(methods) if wanted[place]])
    for place, method in enumerate(methods):
        if wanted[place]:
            kept = calibration.load_calibrations(method.folder) if method.folder is not None else []
            given = [*method.calibrations, *kept]
            fits[place] = [fit for fit in given if fit.is_of(method, rows, categories)]
    missing = [place for place, of in enumerate(fits) if wanted[place] and not set(shots) <= {fit.shots for fit in of}]
    if calibrate is True and missing:
        fitted = fit_constants(
            [methods[place] for place in missing], store, categories, shots=shots, train=train, test=test, seed=seed,
            progress=progress,
        )  # fmt: skip
        for number, place in enumerate(missing):
            fits[place] = fitted[number * len(shots) :][: len(shots)]
    asked = [[_of_shots(of, count) for count in shots] if of else [] for of in fits]
    said = []
    for method, of in zip(methods, asked, strict=True):
        lacking = [fit.shots for fit in of if fit.failed.startswith(NOT_FITTED)]
        tried = [fit for fit in of if fit.failed and fit.shots not in lacking]
        if failed := [f"{count_shots(fit.shots)}: {fit.failed}" for fit in tried]:
            said.append(f"calibration failed: {method.name}, {method.share}, {'; '.join(failed)}")
        if lacking:
            told, how = " and ".join(map(count_shots, lacking)), "calibrate=True"
            if method.named_by and method.folder is not None:
                how += f", or `ppa calibrate {method.named_by} --shots {','.join(map(str, lacking))}`,"
            said.append(f"{NOT_FITTED} for {told}: {method.name}, {method.share}; {how} fits it")
    if any(fit.failed for of in fits for fit in of if fit.shots in shots):
        said.append(MAY_HOLD)
    return asked, said


def _of_shots(fits: Sequence[Calibration], shots: int) -> Calibration:
    """A constant that was fitted for another number of examples is none for this one; one given by hand is for all."""
    fit = nearest_fit(fits, shots)
    if fit.shots == shots or not fit.content:
        return fit
    return replace(fit, shots=shots, failed=f"{NOT_FITTED} for {count_shots(shots)}")


def _own_task(method: Method, task: AllWayTask, categories: CategorySplit) -> AllWayTask:
    """The same task on the store whose activations a method reads. Examples may be the other network's, if it has none
    and the method does not look at them; what is tested must be its own."""
    if method.store is None:
        return task
    other = actstore.open(method.store)
    train = other[task.train.name] if task.train.name in other.splits else task.train
    return replace(all_way_task(train, other[task.test.name], categories), without=task.without, fixed=task.fixed)


def _episode_method(
    one: MakesMethod | EpisodeMethod, split: actstore.Split, categories: CategorySplit
) -> EpisodeMethod:
    """Of a task's categories alone, so that nothing but a method's own training can know them."""
    if hasattr(one, "episode_scores") and not hasattr(one, "as_method"):
        return one
    trained = getattr(one, "categories", None)
    if trained is not None:
        setting.refuse_trained_on(Path(getattr(one, "path", "phi")).parent, trained.base, categories.novel)
    method = setting.as_method(one, "mean")
    method.check(split, trained or categories)
    method.prepare_for(BaseCategories.of_split(split, categories.base))
    return method
