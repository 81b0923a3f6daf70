"""The names of methods, one for each wherever one is asked for; other names for them are answered with it."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from actstore.errors import InvalidInputError

if TYPE_CHECKING:
    from predictor.protocol.method import Method

# what a method is called elsewhere -> its name here
OTHER_NAMES = {
    "nearest-neighbour": "nn",
    "nearest-neighbor": "nn",
    "knn": "nn",
    "imprinting": "imprint",
    "fine-tuned": "finetune",
    "fine-tune": "finetune",
    "prototype": "class-mean",
    "ncm": "class-mean",
    "protonet": "prototypical",
    "ridge-regression": "ridge",
    "r2d2": "ridge",
    "tip": "tip-adapter",
    "dynamic-few-shot": "attention",
}


NAMES = (
    "nn", "triplet", "finetune", "child", "imprint", "class-mean", "simple-shot", "ridge", "tip-adapter", "attention",
    "oracle", "triplet-images", "finetune-images",
)  # fmt: skip
"""The names that `make` knows, in the order of tables; a class of your own is named as module:Class."""
EPISODE_NAMES = ("nn", "class-mean", "simple-shot", "ridge", "tip-adapter", "imprint", "finetune")
"""The names that `make_for_episodes` knows."""
CALIBRATED = ("nn", "triplet", "child", "imprint", "class-mean", "simple-shot", "ridge", "tip-adapter")
"""The names that "all" stands for in `ppa calibrate`."""


def require_names(names: Collection[str], known: Collection[str] = NAMES, groups: Collection[str] = ("all",)) -> None:
    """Refuse what is not the name of a method, with the name that was probably meant.

    Args:
        names: the names.
        known: the names that there are.
        groups: names that stand for several methods.

    Raises:
        InvalidInputError: a name is not known.

    Examples:
        >>> baselines.require_names(["knn"])
        Traceback (most recent call last):
        ...
        actstore.errors.InvalidInputError: no method 'knn'; did you mean nn? ...
    """
    for name in names:
        if not isinstance(name, str):
            raise InvalidInputError(f"a method's name is a text, got {name!r}; give names one by one")
        if name == "none":
            raise InvalidInputError(f"none stands for no method at all, got {', '.join(names)}; leave it out")
        if name not in known and name not in groups and ":" not in name:
            raise InvalidInputError(
                f"no method {name!r}; {_meant(name, known)}known: {', '.join([*groups, *known])}; a class of your own "
                "is named as module:Class"
            )


def load_class(name: str) -> Method:
    """module:Class -> one of that class, which takes no arguments. The module may lie in the current folder."""
    module, _, attribute = name.partition(":")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        made = getattr(importlib.import_module(module), attribute)()
    except (ImportError, AttributeError, TypeError) as error:
        raise InvalidInputError(
            f"{name} must name a class as module:Class, of a module in {here} or of an installed package: {error}"
        ) from error
    finally:
        sys.path.remove(here)
    if not hasattr(made, "as_method"):
        raise InvalidInputError(f"{name} must be a predictor.Method, got {type(made).__name__}")
    method: Method = made
    return method


def _meant(name: str, known: Collection[str]) -> str:
    other = OTHER_NAMES.get(name.lower())
    close = [other] if other in known else difflib.get_close_matches(name.lower(), known, n=1)
    return f"did you mean {close[0]}? " if close else ""
