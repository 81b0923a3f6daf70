"""Published rows stand beside sessions of the protocol and the data set they belong to, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

from baselines.class_mean import ClassMean
from predictor.protocol.base_categories import BaseCategories
from predictor.protocol.sessions import MEASURES, SessionResult
from predictor.report.session_table import published, session_rows


def result(base: int, names: tuple[str, ...], way: int, sessions: int) -> SessionResult:
    method = ClassMean()
    method.prepare(BaseCategories(names, np.eye(len(names), 3, dtype="f4")))
    figures = {name: np.full((2, sessions), 50.0) for name in MEASURES}
    return SessionResult(method, tuple(range(base, base + way * sessions, way)), figures)


@pytest.mark.parametrize(
    ("base", "name", "way", "sessions", "table"),
    [(60, "a", 5, 9, "sessions"), (100, "002.Laysan_Albatross", 10, 11, "sessions-birds"), (100, "a", 10, 11, ""),
     (100, "002.Laysan_Albatross", 10, 10, ""), (60, "a", 5, 8, "")],
)  # fmt: skip
def test_published_rows_are_of_this_protocol(base: int, name: str, way: int, sessions: int, table: str) -> None:
    rows = session_rows([result(base, (name, "z"), way, sessions)], way, 5, "network")
    others = [row for row in rows if "published" in row]
    assert others == (published(table) if table else [])
    assert all(row["source"] and row["backbone"] for row in others)


def test_published_averages_lie_between_first_and_last() -> None:
    for table in ("sessions", "sessions-birds"):
        for row in published(table):
            if "average_accuracy" in row:
                assert row["last_accuracy"] < row["average_accuracy"] < row["first_accuracy"]
