"""Constants on the novel scores of baselines, by the procedure that phi's is fitted by.

A baseline is made anew for every task of stand-ins, from activations out of which what the network knows of these was
taken. Only methods whose base scores do not depend on the support have such a constant, on the store at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from actstore.split import Split
from baselines.registry import Setting, make_baselines
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.constant import Constant, fit_constant
from predictor.protocol.method import Method, Separable
from predictor.protocol.outcome import Outcome
from predictor.protocol.stand_ins import HeldOut, describe, stand_in_tasks, usable

# in the registry; "all" stands for them
CALIBRATED = ("nn", "triplet", "child", "imprint", "class-mean", "simple-shot")


def calibrate_baselines(
    names: Sequence[str],
    setting: Setting,
    shots: Sequence[int],
    tasks: int = 20,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
    held_out: HeldOut | None = None,
) -> list[Constant]:
    """For every one of these methods that has base scores of its own, and each number of shots."""
    split, head = setting.split, setting.head
    held_out = usable(held_out, split, max(shots))
    measured: dict[tuple[str, str, int], list[Outcome]] = {}
    weights = None if head is None else head.weight
    for task in stand_in_tasks(setting.train, split, max(shots), weights, held_out, tasks, seed):
        inside = replace(setting, split=CategorySplit(task.base, task.stand_ins), change=task.change, whole=split)
        for entry in make_baselines(names, inside):
            method = entry.method
            if not isinstance(method, Separable) or entry.store is not None:
                continue
            for count, outcome in zip(shots, task.outcomes(method, shots), strict=True):
                measured.setdefault((method.key, method.share, count), []).append(outcome)
        if progress is not None:
            progress(1)
    how = describe(split, head is not None, tasks, held_out)
    where = (0.0, "") if held_out is None else (held_out.share, held_out.split.content)
    constants = []
    for (key, share, count), outcomes in measured.items():
        fit = fit_constant(outcomes)
        figures = (fit.novel_bias, fit.harmonic_mean, fit.uncalibrated)
        constants.append(Constant(key, share, count, *figures, how, setting.train.content, split.base, *where))
    return constants


def fits_these(constant: Constant, train: Split, categories: CategorySplit) -> bool:
    """Whether a constant was fitted on these rows and categories: of others it says nothing here."""
    return constant.content == train.content and set(constant.base) == set(categories.base)


def attach_constants(method: Method, constants: Sequence[Constant], setting: Setting) -> list[Constant]:
    """Give a method those that were fitted for it on these rows and categories; which those were."""
    ours = [
        fit
        for fit in constants
        if (fit.key, fit.share) == (method.key, method.share) and fits_these(fit, setting.train, setting.split)
    ]
    if ours and isinstance(method, Separable):
        method.constants = {fit.shots: fit.novel_bias for fit in ours}
        method.fitted_on = ours[0].fitted_on
        return ours
    return []
