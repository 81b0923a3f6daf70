"""`actstore.map`: which rows, where they lie, and what the page and the Parquet file hold."""

from __future__ import annotations

import base64
import gzip
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from numpy.typing import NDArray

import actstore
from actstore.analysis.neighbours import Graph
from actstore.errors import InvalidInputError, MissingColumnError, NotAStoreError
from actstore.images.glyphs import write_glyphs
from actstore.maps import making, packing
from actstore.maps.packing import scaled


def clusters(path: Path, count: int = 200, classes: int = 4, **options: Any) -> actstore.Split:
    """Rows around as many centres as there are classes; the last row is of zeros and has no class."""
    random = np.random.default_rng(3)
    labels = np.arange(count) % classes
    values = random.standard_normal((classes, 16))[labels] + 0.2 * random.standard_normal((count, 16))
    labels[-1], values[-1] = -1, 0
    ids = [f"part/{row}.jpg" for row in range(count)]
    store = actstore.create(path, classes=[f"class {name}" for name in "abcdefgh"[:classes]], dim=16, dtype="f4")
    with store.writer("train") as writer:
        writer.append(values.astype("f4"), labels, ids, **options)
    return store["train"]


@pytest.fixture
def split(tmp_path: Path) -> actstore.Split:
    columns = {
        "area": np.append(np.arange(199) / 7, np.nan),
        "constant": np.full(200, 3),
        "kind": ["odd" if row % 2 else "even" for row in range(200)],
        "caption": [f"what row {row} shows" for row in range(200)] + [],
        "day": np.datetime64("2024-05-01") + np.arange(200),
        "big": 2**53 + np.arange(200),
    }
    return clusters(tmp_path / "x.zarr", columns=columns)


def contents(page: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """What the page's script will read."""
    texts = dict(re.findall(r'<script type="[^"]*" id="([^"]*)">([^<]*)</script>', page))
    about, body = json.loads(texts["about"]), gzip.decompress(base64.b64decode(texts["data"]))
    arrays = {
        name: np.frombuffer(body, each["type"], each["length"], each["start"]) for name, each in about["arrays"].items()
    }
    return about, arrays


def test_rows_of_a_class_lie_together_and_a_seed_gives_one_map(split: actstore.Split) -> None:
    maps = [actstore.map(split, method="pca", seed=seed) for seed in (0, 0, 1)]
    assert maps[0].to_html() == maps[1].to_html() != maps[2].to_html()
    made = maps[0]
    assert (made.method, made.positions.shape) == ("pca", (200, 2))
    middles = np.array([made.positions[:-1][split.labels[:-1] == label].mean(0) for label in range(4)])
    away = np.linalg.norm(made.positions[:-1, None] - middles, axis=2)
    assert (away.argmin(1) == split.labels[:-1]).mean() > 0.9
    graph = actstore.knn(split, 15)
    np.testing.assert_array_equal(made.neighbours, graph.rows)
    assert any("zeros" in note for note in made.notes)
    assert "<iframe" in made._repr_html_()


def test_rows_without_neighbours_lie_beside_the_others(random: np.random.Generator) -> None:
    pytest.importorskip("umap")
    plane = random.standard_normal((60, 2)).astype("f4")
    plane[7] = 1000
    cosines = np.full((60, 3), 0.5, np.float32)
    rows = np.stack([(np.arange(60) + step) % 60 for step in (1, 2, 3)], axis=1)
    rows[7], cosines[7] = -1, -1
    ids = [str(row) for row in range(60)]
    placed = making._umap(plane, Graph(cosines, rows, ids, ids, True), 0)
    side = np.ptp(np.delete(placed, 7, axis=0), axis=0)
    assert (np.ptp(placed, axis=0) <= 1.05 * side).all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what numba says to itself
def test_umap_keeps_neighbours_together(split: actstore.Split) -> None:
    pytest.importorskip("umap")
    made, again = (actstore.map(split, seed=2) for _ in range(2))
    assert made.method == "umap"
    np.testing.assert_array_equal(made.positions, again.positions)
    assert np.isfinite(made.positions).all()
    away = np.linalg.norm(made.positions[:-1, None] - made.positions[None, :-1], axis=2)
    np.fill_diagonal(away, np.inf)
    assert (split.labels[away.argmin(1)] == split.labels[:-1]).mean() > 0.95


def test_what_stands_on_the_page(split: actstore.Split) -> None:
    made = actstore.map(split, method="pca")
    about, arrays = contents(made.to_html(color="kind"))
    rows = arrays["rows"]
    assert sorted(rows.tolist()) == list(range(200))
    scales = {scale["name"]: (scale, arrays[f"scale{place}"]) for place, scale in enumerate(about["scales"])}
    assert [*scales] == ["kind", "class", "area", "constant", "day", "big"]
    assert any("caption" in note for note in about["notes"])
    classes, codes = scales["class"]
    assert [[*classes["names"], None][code] for code in codes] == [
        None if split.labels[row] < 0 else split.classes[split.labels[row]] for row in rows
    ]
    np.testing.assert_array_equal(scales["area"][1], split.columns["area"][rows].astype("f4"))
    np.testing.assert_array_equal(scales["big"][1], split.columns["big"][rows].astype("f8"))
    assert (scales["constant"][0]["low"], scales["constant"][0]["high"]) == (3, 3)
    days = scales["day"][1].astype("f8") / 86_400_000
    np.testing.assert_allclose(days, (split.columns["day"][rows] - np.datetime64(0, "us")) / np.timedelta64(1, "D"))
    offsets, data = arrays["idOffsets"], arrays["idBytes"].tobytes()
    ids = [data[start:stop].decode() for start, stop in pairwise(offsets)]
    assert ids == [split.ids[row] for row in rows]
    np.testing.assert_array_equal(arrays["places"].reshape(-1, 2), scaled(made.positions)[rows])
    near = arrays["neighbours"].reshape(200, 5)
    graph = actstore.knn(split, 5)
    known = near[rows != 199]
    np.testing.assert_array_equal(rows[known], graph.rows[rows[rows != 199]])
    assert (near[rows == 199] == 0xFFFFFFFF).all()


def test_a_page_asks_the_network_for_nothing(split: actstore.Split, tmp_path: Path) -> None:
    actstore.map(split, method="pca").save(tmp_path / "x.html")
    page = (tmp_path / "x.html").read_text()
    assert not re.search(r"https?://|@import|\bfetch\(|XMLHttpRequest", page)
    assert all(address.startswith("data:") for address in re.findall(r'(?:src|href)="([^"]*)"', page))


def test_names_cannot_leave_their_place_on_the_page(tmp_path: Path) -> None:
    name = "</script><img src=x onerror=alert(1)>"
    split = actstore.from_arrays(tmp_path / "x.zarr", {"train": (np.eye(6, dtype="f4"), [0] * 6)}, classes=[name])[
        "train"
    ]
    page = actstore.map(split, method="pca").to_html()
    assert name not in page
    assert contents(page)[0]["scales"][0]["names"] == [name]


@pytest.mark.parametrize("count", [1, 2, 3, 10])
@pytest.mark.parametrize("method", ["pca", "auto"])
@pytest.mark.filterwarnings("ignore")
def test_few_rows(tmp_path: Path, count: int, method: str, random: np.random.Generator) -> None:
    values = random.standard_normal((count, 4)).astype("f4")
    made = actstore.map(actstore.from_arrays(tmp_path / "x.zarr", {"train": (values, None)})["train"], method=method)
    assert made.positions.shape == (count, 2)
    assert np.isfinite(made.positions).all()
    about, arrays = contents(made.to_html())
    assert about["points"] == count
    assert "idBytes" not in arrays
    made.to_parquet(tmp_path / "x.parquet")
    assert len(pyarrow.parquet.read_table(tmp_path / "x.parquet")) == count


@pytest.mark.parametrize("values", [np.ones((30, 1)), np.zeros((30, 8)), np.ones((30, 8))])
@pytest.mark.parametrize("method", ["pca", "auto"])
@pytest.mark.filterwarnings("ignore")
def test_rows_that_do_not_differ(tmp_path: Path, values: NDArray[Any], method: str) -> None:
    split = actstore.from_arrays(tmp_path / "x.zarr", {"train": (values.astype("f4"), np.zeros(30, int))})["train"]
    made = actstore.map(split, method=method)
    assert np.isfinite(made.positions).all()
    assert len(contents(made.to_html())[0]["scales"][0]["names"]) == 1


def test_more_rows_than_points_are_sampled(split: actstore.Split) -> None:
    made = actstore.map(split, 50, method="pca", seed=4)
    assert len(made) == 50
    assert (np.diff(made.rows) > 0).all()
    assert any("50 of 200" in note for note in made.notes)
    np.testing.assert_array_equal(made.rows, actstore.map(split, 50, method="pca", seed=4).rows)
    assert not np.array_equal(made.rows, actstore.map(split, 50, method="pca", seed=5).rows)
    units = split.take(made.rows, "f8") / np.maximum(np.linalg.norm(split.take(made.rows, "f8"), axis=1), 1e-9)[:, None]
    cosines = units @ units.T
    np.fill_diagonal(cosines, -2)
    known = np.flatnonzero(made.rows != 199)
    np.testing.assert_array_equal(made.neighbours[known, 0], cosines[known].argmax(1))  # among those of the map


def test_chosen_rows_alone(split: actstore.Split) -> None:
    rows = split.query(classes=["class b"])
    made = actstore.map(split, rows=rows, method="pca")
    np.testing.assert_array_equal(made.rows, rows)
    assert made.notes == ()


def test_parquet_as_embedding_atlas_reads_it(split: actstore.Split, tmp_path: Path) -> None:
    made = actstore.map(split, method="pca", k=4)
    made.to_parquet(tmp_path / "x.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "x.parquet")
    assert {"x", "y", "row", "id", "class", "label", "neighbors", "area"} <= set(table.column_names)
    assert table["id"].to_pylist() == list(split.ids)
    np.testing.assert_array_equal(np.stack([table["x"], table["y"]], axis=1), made.positions)
    near = table["neighbors"].to_pylist()
    assert near[3] == {"ids": made.neighbours[3].tolist(), "distances": pytest.approx(made.distances[3].tolist())}
    assert near[199] == {"ids": [], "distances": []}


def test_thumbnails_of_the_images_that_a_store_was_built_from(tmp_path: Path) -> None:
    write_glyphs(tmp_path / "glyphs", 5, 6, 0)
    store = actstore.build(tmp_path / "glyphs", tmp_path / "g.zarr", backbone="small", random_weights=True, workers=0)
    made = actstore.map(store["train"], method="pca")
    page = made.to_html(thumbnails=20)
    about, arrays = contents(page)
    assert len(arrays["pictured"]) == 20
    assert any("20 of 30" in note for note in about["notes"])
    assert page.count('id="sheet') == 1
    assert not len(contents(made.to_html(thumbnails=0))[1]["pictured"])
    (tmp_path / "glyphs").rename(tmp_path / "gone")
    about, arrays = contents(made.to_html())
    assert not len(arrays["pictured"])
    assert any("glyphs" in note or "images" in note for note in about["notes"])


def test_thumbnails_of_imported_rows_from_a_folder(tmp_path: Path) -> None:
    write_glyphs(tmp_path / "glyphs", 2, 4, 0)
    ids = sorted(file.relative_to(tmp_path / "glyphs").as_posix() for file in (tmp_path / "glyphs").rglob("*.png"))
    ids[-1] = "gone.png"
    values = np.random.default_rng(0).standard_normal((len(ids), 4)).astype("f4")
    split = actstore.from_arrays(tmp_path / "x.zarr", {"train": (values, None, ids)})["train"]
    notes = actstore.map(split, method="pca").save(tmp_path / "x.html", images=tmp_path / "glyphs")
    assert any(note.startswith("1 ") for note in notes)
    assert len(contents((tmp_path / "x.html").read_text())[1]["pictured"]) == len(ids) - 1


def test_colours_of_a_hundred_classes_differ_and_show_on_both_grounds() -> None:
    labs, texts = packing._palette(100)
    apart = np.linalg.norm(labs[:, None] - labs[None], axis=2)
    assert apart[~np.eye(100, dtype=bool)].min() > 0.03  # OKLab; 0.02 is just noticeable
    assert len({text for pair in texts for text in pair}) >= 190

    def luminance(text: str) -> float:
        parts = np.array([int(text[place : place + 2], 16) / 255 for place in (1, 3, 5)])
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    assert max(luminance(light) for light, _ in texts) < 0.47  # 2:1 and more against the page
    assert min(luminance(dark) for _, dark in texts) > 0.07


def test_neighbouring_classes_do_not_share_a_colour() -> None:
    """With more classes than colours."""
    side = 20
    positions = np.stack(np.meshgrid(np.arange(side), np.arange(side)), axis=-1).reshape(-1, 2).astype("f4")
    chosen = packing.choose_colours(np.arange(side**2), side**2, positions)
    grid = np.array([pair[0] for pair in chosen]).reshape(side, side)
    assert not (grid[:, 1:] == grid[:, :-1]).any()
    assert not (grid[1:] == grid[:-1]).any()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"points": 0}, "0"), ({"points": 10**6}, "1000000"), ({"k": 0}, "0"), ({"method": "tsne"}, "tsne"),
        ({"rows": []}, "rows"), ({"rows": [200]}, "200"),
    ],
)  # fmt: skip
def test_bad_options_are_refused_by_name(split: actstore.Split, options: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidInputError, match=named):
        actstore.map(split, **options)


def test_bad_names_are_refused(split: actstore.Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = actstore.map(split, method="pca")
    with pytest.raises(MissingColumnError, match="size"):
        made.to_html(color="size")
    with pytest.raises(InvalidInputError, match=r"x\.svg"):
        made.save(tmp_path / "x.svg")
    with pytest.raises(InvalidInputError, match=r"x\.csv"):
        made.to_parquet(tmp_path / "x.csv")
    with pytest.raises(NotAStoreError, match="val"):
        actstore.map(tmp_path / "x.zarr" / "val")
    monkeypatch.setattr("actstore.maps.making.find_spec", lambda name: None)
    with pytest.raises(InvalidInputError, match="umap-learn"):
        actstore.map(split, method="umap")
    assert any("PCA" in note for note in actstore.map(split).notes)
