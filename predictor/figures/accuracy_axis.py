"""An axis of accuracies in percent: linear, or where they are near 0 or 100 a logit scale, which widens both ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 50, 70, 80, 90, 95, 98, 99, 99.5, 99.8)
ENDS = (0.05, 99.95)  # where a logit scale ends; what lies beyond is drawn there
MIDDLE = (10, 90)  # accuracies inside are drawn to a linear scale


def set_accuracy_axis(axes: Any, which: str, values: Sequence[float], name: str) -> list[float]:
    """Set scale, limits, ticks and label of the axis "x" or "y"; the values as they can be drawn on it."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axis = getattr(axes, f"{which}axis")
    set_limits = getattr(axes, f"set_{which}lim")
    if min(values) >= MIDDLE[0] and max(values) <= MIDDLE[1]:
        spread = max(max(values) - min(values), 1.0)
        set_limits(min(values) - 0.15 * spread, max(values) + 0.2 * spread)
        axis.set_label_text(name)
        return list(values)
    drawn = np.clip(values, *ENDS)
    getattr(axes, f"set_{which}scale")("function", functions=(logit, from_logit))
    places = logit(drawn)
    margin = 0.12 * max(float(np.ptp(places)), 0.5)
    set_limits(*from_logit(np.array([places.min() - margin, places.max() + margin])).tolist())
    axis.set_major_locator(FixedLocator(TICKS))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_label_text(f"{name}, logit scale")
    return [float(value) for value in drawn]


def logit(percent: Any) -> Any:
    share = np.clip(np.asarray(percent, float) / 100, 1e-5, 1 - 1e-5)
    return np.log(share / (1 - share))


def from_logit(value: Any) -> Any:
    return 100 / (1 + np.exp(-np.asarray(value, float)))
