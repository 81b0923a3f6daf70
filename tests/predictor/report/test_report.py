"""The HTML page: self-contained, escaped, and alive in a browser where there is one."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pytest
from PIL import Image

import actstore
from actstore.storage.place import parse_place
from actstore.upkeep.copies import select
from predictor.figures.class_map import make_class_map
from predictor.protocol.category_split import CategorySplit
from predictor.report.page import make_page, store_facts, write_report
from predictor.report.run_folder import find_run
from predictor.training.phi import TrainConfig, run_phi_training
from predictor.training.trained_phi import note_store

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync")  # fmt: skip
NASTY = '</script><b onclick="x()">'


KEYS = {"NN+Cosine": "nn", "Triplet": "triplet", "Nearest class mean": "class-mean", "Oracle linear": "oracle-linear"}


def record(method: str, shots: str, few: float) -> dict[str, Any]:
    keys = ("top1_large", "top5_large", "top1_few", "top5_few", "harmonic_mean", "best_harmonic_mean", "joint", "delta",
            "ausuc")  # fmt: skip
    name, _, variant = method.partition(", ")
    return {"method": method, "key": KEYS.get(name, name), "variant": variant,
            "d_large": "100%", "shots": shots, "finetuned": "N", "draws": 3,
            **dict.fromkeys(keys, few), **{f"{key}_ci95": 0.5 for key in keys}, "paper_top1_large": None,
            "paper_top1_few": None}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, make_rows: Any, categories: CategorySplit) -> Path:
    names = [f"c{number}" for number in range(10)]
    splits = {"train": make_rows(6, 0), "val": make_rows(2, 1)}
    store = actstore.from_arrays(tmp_path / "x.zarr", splits, classes=names)
    run_phi_training(
        store["train"], None, categories, TrainConfig(phi="phi2", epochs=1, batches=2), tmp_path / "runs" / "phi2"
    )
    rows = [record("phi2", "1", 9), record(f"NN {NASTY}", "1", 10), record("Triplet", "1", 8), record("phi2", "2", 30)]
    (tmp_path / "table.json").write_text(json.dumps(rows))
    paper = {"paper_one_shot": 54.53, "paper_one_shot_ci95": 0.4}
    episodes = [{"method": "phi2", "one_shot": 50.5, "one_shot_ci95": 1.0, **paper}]
    (tmp_path / "episodes.json").write_text(json.dumps(episodes))
    (tmp_path / "bench-inference.json").write_text(json.dumps(
        [{"name": "NN", "value": 20.0, "unit": "ms", "peer": "phi", "peer_value": 0.1, "ratio": 200.0}]
    ))  # fmt: skip
    found = make_class_map(
        [*names[:9], NASTY], 7, np.random.default_rng(0).random((10, 8)), range(7),
        np.random.default_rng(1).random((7, 8)), "w", 250,
    )  # fmt: skip
    (tmp_path / "figures").mkdir()
    found.save(tmp_path / "figures" / "class-map.json")
    Image.new("RGB", (40, 20), "white").save(tmp_path / "figures" / "methods.png")
    return tmp_path


class Links(HTMLParser):
    """Everything that a browser would load."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in ("src", "href", "action", "data", "poster")]
        if tag not in ("meta", "link", "img", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_nothing_is_loaded_from_elsewhere_and_tags_are_closed(folder: Path) -> None:
    page = make_page(find_run(folder), "A & B")
    links = Links()
    links.feed(page)
    assert links.open == []
    assert links.found
    assert all(link.startswith("data:") for link in links.found)
    assert not re.search(r"url\(|@import|https?://", page)
    assert NASTY not in page
    assert "<title>A &amp; B</title>" in page


def test_page_holds_what_the_folder_does(folder: Path) -> None:
    page = make_page(find_run(folder), "x")
    for text in ("54.53 ± 0.40", "37.87", "data:image/png;base64", "ppa train --phi phi2 --epochs 1 --batches 2",
                 "behind NN", "content</dt>", "10 categories"):  # fmt: skip
        assert text in page, text
    assert 'role="alert"' not in page


def test_commands_are_those_that_were_run(folder: Path) -> None:
    step = {
        "name": "a",
        "title": "train",
        "command": "ppa train --phi phi2",
        "inputs": {},
        "done": True,
        "seconds": 2.0,
    }
    steps = [step, {**step, "done": False, "command": "no"}]
    (folder / "steps.json").write_text(json.dumps({"version": "1", "steps": steps}))
    page = make_page(find_run(folder), "x")
    assert "<pre><code>ppa train --phi phi2</code></pre>" in page
    assert "2.0 s" in page


def test_tables_that_commands_kept_are_found_and_the_newer_wins(folder: Path) -> None:
    (folder / "results").mkdir()
    for name in ("table.json", "episodes.json"):
        (folder / name).replace(folder / "results" / name)
    found = find_run(folder)
    assert (found.table, found.episodes) == (folder / "results" / "table.json", folder / "results" / "episodes.json")
    for age, place in enumerate((folder / "table.json", folder / "results" / "table.json")):
        place.write_text("[]")
        os.utime(place, (1000 - age, 1000 - age))
    assert find_run(folder).table == folder / "table.json"


def test_of_several_stores_the_one_of_phi_is_shown(folder: Path) -> None:
    (folder / "y.zarr").mkdir()
    assert find_run(folder).store is None
    note_store(folder / "runs" / "phi2", parse_place(folder / "x.zarr"), "ppa train")
    store = find_run(folder).store
    assert store is not None
    assert store.name == "x.zarr"


def test_warnings_are_on_top_once(folder: Path) -> None:
    seen, note = "WARNING: the backbone saw c9", "calibration failed: phi2"
    rows = [{**record("phi2", "1", 9), "warning": f"{seen}\n{note}"}] * 2
    (folder / "table.json").write_text(json.dumps(rows))
    page = make_page(find_run(folder), "x", seen)
    assert page.count('role="alert"') == page.count(seen) == 1
    assert page.count(note) == 1
    assert page.index("<details") < page.index(note)  # folded: only what spoils all figures stands out


def test_calibrated_rows_say_what_their_constants_were_fitted_on(tmp_path: Path) -> None:
    rows = [{**record(name, shots, 9), "fitted_on": "stand-ins"} for name in ("phi2", "NN") for shots in ("1", "2")]
    (tmp_path / "table.json").write_text(json.dumps([*rows, record("Triplet", "1", 8)]))
    assert make_page(find_run(tmp_path), "x").count("phi2, NN: constant fitted on stand-ins.") == 1


def test_the_table_shows_the_best_harmonic_mean_and_what_failed(tmp_path: Path) -> None:
    rows = [{**record("phi2", "1", 9), "best_harmonic_mean": 48.88, "calibration_failed": "1.5 points below"}]
    (tmp_path / "table.json").write_text(json.dumps(rows))
    page = make_page(find_run(tmp_path), "x")
    assert "<td>phi2 (no constant: calibration failed)</td>" in page
    assert ">best</button>" in page
    assert ">48.88</td>" in page


def test_a_folder_with_one_table_is_enough(tmp_path: Path) -> None:
    (tmp_path / "table.json").write_text(json.dumps([record("NN", "1", 10)]))
    write_report(find_run(tmp_path), tmp_path / "report.html", "x")
    assert "All-way accuracy" in (tmp_path / "report.html").read_text()
    assert "Figures</h2>" not in (tmp_path / "report.html").read_text()


def test_cells_are_sorted_by_number_and_escaped() -> None:
    cells = [[("1.50 ± 2", 1.5)], ["<i>"], [None], [2.5], [3]]
    shown = {"name": "t", "header": ["a"], "rows": cells, "marks": [{}] * len(cells)}
    environment = jinja2.Environment(loader=jinja2.PackageLoader("predictor", "report"), autoescape=True)
    pieces: Any = environment.get_template("macros.html").module
    made = pieces.table(shown)
    assert '<td class="number" data-sort="1.5">1.50 ± 2</td>' in made
    assert "&lt;i&gt;" in made
    assert "<td></td>" in made
    assert '<td class="number" data-sort="2.5">2.50</td>' in made
    assert '<td class="number" data-sort="3">3</td>' in made


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium")
def test_in_a_browser_tables_sort_rows_filter_and_the_map_is_drawn(folder: Path, tmp_path: Path) -> None:
    assert CHROMIUM is not None
    clicks = """<script>
    const novel = [...document.querySelectorAll("#all-way th button")].find((one) => one.textContent === "novel top-1");
    novel.click();
    document.querySelector('[data-show="1"]').click();
    document.querySelector('[data-zoom="in"]').click();
    document.querySelector('.map input').value = "c3";
    document.querySelector('.map input').dispatchEvent(new Event("input"));
    </script></body>"""
    page = tmp_path / "clicked.html"
    page.write_text(make_page(find_run(folder), "x").replace("</body>", clicks), "utf-8")
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", page.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    body = dom[dom.index('id="all-way"') :]
    body = body[: body.index("</table>")]
    methods = re.findall(r"<tr[^>]*><td>(.*?)</td>", body)
    assert [one.split(" ")[0] for one in methods] == ["phi2", "NN", "phi2", "Triplet"]  # 30, 10, 9, 8
    assert 'aria-sort="descending"' in body
    assert len(re.findall(r"<tr[^>]*hidden", body)) == 1  # the row of 2 shots
    assert re.search(r'viewBox="(?!0 0 1000 1000)', dom)
    assert "c3, base. Nearest by mean activation" in dom or "c3, novel. Nearest by mean activation" in dom


def test_a_store_of_chosen_rows_names_the_network_they_come_from(tmp_path: Path) -> None:
    store = actstore.create(tmp_path / "x.zarr", classes=["a"], dim=4)
    with store.writer("train", source={"kind": "images", "path": "photos", "backbone": "resnet-of-mine"}) as writer:
        writer.append(np.ones((6, 4), np.float32), np.zeros(6, np.int64))
    chosen = select(store.path, tmp_path / "y.zarr", rows="0:3")
    for one in (store, chosen):
        assert ("backbone", "resnet-of-mine") in store_facts(one)
