"""How well a session tells its own examples apart: what `ppa check` finds, with the images behind every cell."""

from __future__ import annotations

from typing import Any

from predictor.classifier.checking import check_support
from predictor.classifier.classifier import Classifier
from predictor.teach.state import State

ALIKE = 0.10  # the mean probability for the other category, from which on a pair is named without a mistake
PAIRS = 5


def review(classifier: Classifier, state: State) -> dict[str, Any]:
    """Cells of the confusion matrix with the examples in them, categories with a single example, and pairs alike.

    said: the columns, the taught categories and those base categories that an example was taken for.
    """
    counts = {name: len(rows) for name, rows in classifier.support.items()}
    single = [name for name, count in counts.items() if count == 1]
    if len(classifier.categories) < 2 or max(counts.values(), default=0) < 2:
        return {"categories": [], "said": [], "right": 0, "total": 0, "cells": [], "single": single, "alike": []}
    found = check_support(classifier, top=1)
    cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in found.examples:
        example = state.names[one.category].examples[one.example]
        cells.setdefault((one.category, one.guesses[0].category), []).append(example.to_json())
    others = sorted({said for _, said in cells} - set(found.names))
    named = [pair for pair in found.alike if pair.mistaken or pair.share >= ALIKE][:PAIRS]
    return {
        "categories": list(found.names), "said": [*found.names, *others], "single": single,
        "right": sum(one.is_right for one in found.examples), "total": len(found.examples),
        "cells": [{"truth": truth, "said": said, "examples": one} for (truth, said), one in cells.items()],
        "alike": [{"pair": [pair.one, pair.other], "share": pair.share} for pair in named],
    }  # fmt: skip
