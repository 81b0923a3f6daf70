"""The heat map of similarities."""

from __future__ import annotations

import numpy as np

from predictor.figures.channels import draw_similarities


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
