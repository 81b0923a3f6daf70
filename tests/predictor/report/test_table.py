from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from actstore.errors import InvalidInputError
from predictor.protocol.evaluation import Row
from predictor.protocol.method import Method
from predictor.protocol.outcome import METRICS
from predictor.protocol.results import all_way_figures, read_table
from predictor.report.all_way_table import AllWayResults, all_way_records


def row(method: str = "phi2", shots: str = "1", share: str = "100%", width: float = 0.126, **others: Any) -> Row:
    """Of two draws whose interval is so wide, or of one, which has none."""
    apart = width / 12.7062  # Student's t
    values = {
        name: [10.004 + place] if width != width else [10.004 + place - apart, 10.004 + place + apart]
        for place, name in enumerate(METRICS)
    }
    return Row(Named(method, share, **others), shots, values)


class Named(Method):
    def __init__(self, name: str, share: str, **others: Any) -> None:
        self.name, self.share = name, share
        for key, value in others.items():
            setattr(self, key, value)

    def novel_scores(self, queries: Tensor, support: Tensor) -> Tensor:
        raise AssertionError("a table asks for no scores")


def results(rows: list[Row], *warnings: str) -> AllWayResults:
    return AllWayResults(all_way_records(rows), warnings)


WARNING = "WARNING: the backbone was trained on novel class 'tench'; these are no few-shot results"


def test_a_record_has_the_papers_columns_and_figures() -> None:
    (found,) = all_way_records([row()])
    columns = [name for name in read_table("tables")[0] if name != "table"]
    assert list(found)[: len(columns)] == columns
    assert (found["method"], found["d_large"], found["shots"], found["finetuned"]) == ("phi2", "100%", "1", "N")
    assert (found["top1_large"], found["top1_large_ci95"]) == (10.0, 0.13)
    assert (found["paper_top1_large"], found["paper_top5_large"]) == (74.17, 91.79)
    assert (found["paper_top1_few"], found["paper_top5_few"]) == (21.58, 45.82)
    assert {"harmonic_mean", "joint", "delta", "ausuc", "draws"} <= set(found)
    assert "warning" not in found


@pytest.mark.parametrize(
    ("method", "share", "shots", "top1_few"),
    [
        ("phi1", "100%", "1", 19.88),
        ("phi2*", "100%", "3", 22.32),
        ("NN+Cosine", "1%", "2", 15.14),
        ("NN", "100%", "all", 52.46),
        ("Linear", "100%", "all", 60.50),
        ("phi2", "100%", "5", None),
        ("phi2", "10%", "1", None),
        ("phi2, calibrated", "100%", "1", None),
    ],
)
def test_the_paper_beside_it(method: str, share: str, shots: str, top1_few: float | None) -> None:
    assert all_way_records([row(method, shots, share)])[0]["paper_top1_few"] == top1_few
    found = all_way_figures(method, share, shots)
    assert (None if found is None else found["top1_few"]) == top1_few


def test_a_method_may_answer_to_a_row_of_another_name() -> None:
    (found,) = all_way_records([row("NN of mine", paper_name="NN+Cosine", finetuned=True)])
    assert (found["method"], found["paper_top1_few"], found["finetuned"]) == ("NN of mine", 1.72, "Y")


def test_markdown() -> None:
    text = results([row(), row("mine", width=float("nan"))]).to_markdown()
    header, rule, first, second = text.partition("\n\n")[0].splitlines()
    assert header.count("|") == rule.count("|") == first.count("|") == second.count("|") == 14
    cells = [cell.strip() for cell in first.split("|")[1:-1]]
    assert cells[:5] == ["phi2", "100%", "1", "10.00 ± 0.13 / 11.00", "12.00 ± 0.13 / 13.00"]
    assert cells[5:] == ["14.0", "19.0", "15.0", "16.0", "17.0", "18.0", "74.17 / 91.79", "21.58 / 45.82"]
    assert "±" not in second  # a single draw has no interval
    assert second.endswith("|  |  |")


def test_csv_reads_back() -> None:
    text = results([row(), row("mine", width=float("nan"))]).to_csv()
    found = list(csv.DictReader(io.StringIO(text)))
    assert [line["method"] for line in found] == ["phi2", "mine"]
    assert (float(found[0]["top1_few"]), found[0]["paper_top1_few"]) == (12.0, "21.58")
    assert (found[1]["top1_few_ci95"], found[1]["paper_top1_few"]) == ("", "")
    assert text.count("\n") == 3


def test_the_warning_is_in_every_form() -> None:
    found = results([row(), row()], WARNING, WARNING)
    assert found.warnings == [WARNING]
    assert [line["warning"] for line in found.records] == [WARNING] * 2
    assert [line["warning"] for line in json.loads(found.to_json())] == [WARNING] * 2
    assert {line["warning"] for line in csv.DictReader(io.StringIO(found.to_csv()))} == {WARNING}
    assert found.to_markdown().splitlines()[-1] == repr(found).splitlines()[-1] == WARNING
    assert WARNING.replace("'", "&#x27;") in found._repr_html_()
    assert found.to_pandas().attrs["warnings"] == [WARNING]
    sound = results([row()])
    assert "WARNING" not in sound.to_markdown() + sound.to_csv() + sound.to_text() + sound.to_html()


def test_results_are_written_by_their_ending(tmp_path: Path) -> None:
    found = results([row(), row("mine")])
    for ending, text in ((".md", found.to_markdown()), (".csv", found.to_csv()), (".json", found.to_json())):
        found.save(tmp_path / f"t{ending}")
        assert (tmp_path / f"t{ending}").read_text().strip() == text.strip()
    with pytest.raises(InvalidInputError, match=r"t\.xlsx"):
        found.save(tmp_path / "t.xlsx")
    found.save_plot(tmp_path / "t.png")
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")
    assert max(map(len, found.to_text().splitlines())) <= 100


def test_the_papers_table_is_whole() -> None:
    assert len(read_table("tables")) == 35
    assert len({(line["method"], line["d_large"], line["shots"]) for line in read_table("tables")}) == 35


def test_rows_tell_their_method_by_a_key() -> None:
    (found,) = all_way_records([row("phi2, calibrated", key="phi2", variant="calibrated")])
    assert (found["key"], found["variant"]) == ("phi2", "calibrated")
