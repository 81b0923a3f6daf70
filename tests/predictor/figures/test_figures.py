"""Pictures from plain data: they are drawn, say what they must, and labels keep out of each other's way."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from PIL import Image

import actstore
from actstore.backbones.network import imagenet_names
from predictor.figures.accuracies import (
    ENDS,
    draw_methods,
    draw_shots,
    from_logit,
    logit,
    overlaps,
    place_labels,
    set_accuracy_axis,
)
from predictor.figures.class_map import ClassMap, draw_channels, draw_class_maps, draw_similarities
from predictor.figures.style import Bar, draw_bars, draw_inference, draw_runs, known_display, readable, save_both
from predictor.report.drawing import SheetRow, draw_sheet, title_subject

KEYS = {"NN+Cosine": "nn", "Triplet": "triplet", "Nearest class mean": "class-mean", "Oracle linear": "oracle-linear"}


def record(method: str, shots: str, few: float, large: float, share: str = "100%") -> dict[str, Any]:
    both = 2 * few * large / (few + large)
    name, _, variant = method.partition(", ")
    return {"method": method, "key": KEYS.get(name, name), "variant": variant,
            "shots": shots, "d_large": share, "top1_few": few, "top1_large": large,
            "harmonic_mean": both, "top1_few_ci95": 0.5, "top1_large_ci95": 0.1, "harmonic_mean_ci95": 0.4}  # fmt: skip


RECORDS = [
    *(record("NN+Cosine", count, 1 + int(count), 70, share) for count in "123" for share in ("100%", "10%")),
    *(record("phi2", count, 20 + int(count), 74) for count in "123"),
    *(record("phi2, calibrated", count, 40 + int(count), 68) for count in "123"),
    {**record("Oracle linear", "all", 100, 75), "top1_few_ci95": None},
]


def texts(figure: Figure) -> set[str]:
    return {text.get_text() for text in figure.findobj(lambda one: hasattr(one, "get_text"))}


def inside(figure: Figure, folder: Path) -> None:
    """Both files are there, and nothing touches the picture's edge: it would be cut off."""
    path = save_both(figure, folder, "x")
    assert (folder / "x.svg").read_text().startswith("<?xml")
    pixels = np.asarray(Image.open(path).convert("L"))
    assert pixels.min() < 128
    for edge in (pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]):
        assert edge.min() > 200


def test_methods_are_all_named(tmp_path: Path) -> None:
    figure = draw_methods(RECORDS, "1")
    assert {"NN+Cosine 100%", "NN+Cosine 10%", "phi2", "phi2, calibrated", "Oracle linear"} <= texts(figure)
    inside(figure, tmp_path)


def test_shots(tmp_path: Path) -> None:
    figure = draw_shots(RECORDS)
    assert "phi2, calibrated" in texts(figure)
    inside(figure, tmp_path)


def test_channels_with_and_without_a_head(random: np.random.Generator, tmp_path: Path) -> None:
    weight = np.eye(60) + 0.01 * random.standard_normal((60, 60))
    assert len(draw_channels(weight, {}).axes) == 2  # the matrix and its scale
    figure = draw_channels(weight, {"phi1": np.linspace(0, 1, 60)})
    assert "random order (k / dim)" in texts(figure)
    inside(figure, tmp_path)


def test_training_curves_of_several_runs(tmp_path: Path) -> None:
    measured = [{"step": step, "loss": 3.0 - step, "base_top1": 50.0, "novel_top1": 5.0 + step} for step in (1, 2)]
    inside(draw_runs({"phi1": measured, "phi2": measured}), tmp_path)
    inside(draw_runs({"phi1": [{"step": 1.0, "loss": 2.0}]}), tmp_path)


def test_inference_has_a_panel_for_each_batch_and_names_ratios(tmp_path: Path) -> None:
    results = [
        {"name": f"{name}, batch {batch}", "value": value, "unit": "ms", "peer": peer, "peer_value": other,
         "ratio": ratio}
        for batch in (1, 32)
        for name, value, peer, other, ratio in (("phi", 0.1, None, None, None), ("NN", 20.0, "phi", 0.1, 200.0))
    ]  # fmt: skip
    figure = draw_inference(results)
    assert len(figure.axes) == 2
    assert "20   200 × phi" in texts(figure)
    inside(figure, tmp_path)


def test_bars_have_a_panel_for_each_measurement_and_a_scale_of_its_own(tmp_path: Path) -> None:
    panels = {("take", "rows/s"): [Bar("ours", 1e6, "1,000,000"), Bar("numpy", 90.0, "90")],
              ("scan", "rows/s"): [Bar("ours", 3.0, "3"), Bar("numpy", 2.0, "2")]}  # fmt: skip
    figure = draw_bars(panels, "this disk")
    take, scan = figure.axes
    assert [label.get_text() for label in take.get_yticklabels()] == ["ours", "numpy"]
    assert (take.get_xscale(), scan.get_xscale()) == ("log", "linear")
    assert {"this disk", "1,000,000", "take"} <= texts(figure)
    inside(figure, tmp_path)


def test_sheet(tmp_path: Path) -> None:
    picture = np.full((32, 32, 3), 200, np.uint8)
    rows = [SheetRow("U+0042", picture, [(picture, "a very long name of a category", 0.5)] * 3, picture,
                     [("U+0042", 0.7), ("other", 0.2), ("7", 0.1)])] * 2  # fmt: skip
    figure = draw_sheet(rows, "phi2", "Novel categories")
    assert {"✓ B  U+0042   70%", "7   10%"} <= texts(figure)
    assert "Novel categories learnt from one example: phi2. Evenly spaced, not selected" in texts(figure)
    inside(figure, tmp_path)


@pytest.mark.parametrize("name", ["W" * 40, "013.Bobolink of the northern meadows", "i" * 90])
def test_captions_of_a_sheet_do_not_run_into_each_other(name: str) -> None:
    picture = np.full((32, 32, 3), 200, np.uint8)
    figure = draw_sheet([SheetRow(name, picture, [(picture, name, 0.51)] * 3, picture, [(name, 1.0)])], "phi2", "x")
    figure.draw_without_rendering()
    captions = [axes.xaxis.label for axes in figure.axes if axes.get_xlabel()]
    assert len(captions) == 5
    assert all(caption.get_text().endswith("0.51") for caption in captions[1:4])
    spans = [caption.get_window_extent() for caption in captions]
    assert all(one.x1 < other.x0 for one, other in pairwise(spans))


@pytest.mark.parametrize(
    ("name", "shown"),
    [("n01440764", "tench"), ("n00000000", "n00000000"), ("U+0041", "A"), ("U+1F600", "😀"), ("U+000A", "U+000A"),
     ("U+FFFFFF", "U+FFFFFF"), ("U+D800", "U+D800"), ("n0144076", "n0144076"), ("okapi", "okapi")],
)  # fmt: skip
def test_known_lists(name: str, shown: str) -> None:
    assert known_display(name) == shown


@pytest.mark.parametrize(
    ("seen", "subject"),
    [
        (None, "Categories that the network may have seen,"),
        (["c", "d"], "Novel categories"),
        (["b", "c"], "Categories some of which the network was trained on too,"),
        (["a", "b", "c"], "Categories that the network was trained on too,"),
    ],
)
def test_only_what_a_network_never_saw_is_called_novel(tmp_path: Path, seen: list[str] | None, subject: str) -> None:
    rows = {"train": (np.ones((2, 4), np.float32), [0, 1])}
    store = actstore.from_arrays(tmp_path / "x.zarr", rows, classes=["a", "b"])
    if seen is not None:
        store.add_provenance(trained_classes=seen)
    assert title_subject(actstore.open(tmp_path / "x.zarr")["train"], ["a", "b"]) == subject


def test_class_maps_of_long_names_fit_their_picture(tmp_path: Path) -> None:
    longest = sorted(imagenet_names(), key=lambda wnid: -len(imagenet_names()[wnid]))[:24]
    places, groups = np.random.default_rng(0).normal(size=(24, 2)).tolist(), [list(range(8)), list(range(8, 16))]
    shown = ClassMap(
        longest, 20, places, list(range(24)), places, "phi2(mean)", groups, nearest=[[0]] * 24, agreement=0.5
    )
    figure = draw_class_maps(shown)
    assert any(text.endswith("…") for text in texts(figure))
    inside(figure, tmp_path)


@pytest.mark.parametrize(("name", "shown"), [("U+0041", "A"), ("n01440764", "tench"), ("U+0024", "U+0024")])
def test_names(name: str, shown: str) -> None:
    assert readable(name) == shown


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.floats(50, 550), st.floats(50, 350)), min_size=1, max_size=10))
def test_labels_do_not_overlap_where_there_is_room(points: list[tuple[float, float]]) -> None:
    frame = np.array([-400, -400, 1000, 800])
    boxes, _ = place_labels(points, [(60.0, 12.0)] * len(points), frame)
    for place, box in enumerate(boxes):
        assert overlaps(box, frame) == pytest.approx(60 * 12)
        assert not overlaps(box, boxes[place + 1 :]).any()


def test_a_label_keeps_off_obstacles() -> None:
    obstacle = np.array([100, 90, 300, 110])
    (box,), _ = place_labels([(100, 100)], [(60, 12)], (0, 0, 400, 200), [obstacle])
    assert overlaps(box, obstacle) == 0


@given(st.floats(0.1, 99.9))
def test_logit_scale_has_an_inverse(percent: float) -> None:
    assert float(from_logit(logit(percent))) == pytest.approx(percent)


def test_axis_is_linear_in_the_middle_and_clipped_at_the_ends() -> None:
    axes = Figure().subplots()
    assert set_accuracy_axis(axes, "x", [20, 80], "a") == [20, 80]
    assert axes.get_xscale() == "linear"
    assert set_accuracy_axis(axes, "y", [0, 50, 100], "b") == [ENDS[0], 50, ENDS[1]]
    assert axes.get_ylabel() == "b, logit scale"


def test_a_panel_for_each_measure_with_a_number_in_each_cell() -> None:
    matrix = np.array([[1, -0.25], [-0.25, 1]])
    undefined = np.array([[1, np.nan], [np.nan, 1]])
    figure = draw_similarities(["a", "b"], {"cka": matrix, "rsa": undefined})
    panels = [axes for axes in figure.axes if axes.get_title()]
    assert [panel.get_title() for panel in panels] == ["cka", "rsa"]
    assert [text.get_text() for text in panels[0].texts] == ["1.00", "-0.25", "-0.25", "1.00"]
    assert [text.get_text() for text in panels[1].texts] == ["1.00", "–", "–", "1.00"]
    assert panels[0].images[0].get_clim() == (-0.25, 1)


def test_many_representations_have_no_numbers() -> None:
    figure = draw_similarities([f"layer{number}" for number in range(20)], {"cka": np.eye(20)})
    assert not figure.axes[0].texts
