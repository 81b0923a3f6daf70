"""curves.png of a training."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from predictor.training.backbones.trainee import PANELS
from predictor.training.phi import PhiTraining
from predictor.training.trainee import Curves, draw_curves

PHI = {"step": 1.0, "loss": 2.0, "seconds": 3.0}
MEASURED = PHI | {"base_top1": 50.0, "novel_top1": 5.0, "harmonic": 9.0}
EPOCH = {"epoch": 1.0, "lr": 0.1, "train_loss": 2.0, "train_top1": 0.2, "val_top1": 0.3, "val_top5": 0.5}


@pytest.mark.parametrize(
    ("line", "curves", "panels"),
    [(PHI, PhiTraining.curves, 1), (MEASURED, PhiTraining.curves, 2), (EPOCH, Curves(PANELS, "epoch", "small"), 3)],
)
def test_a_panel_for_what_the_log_has(line: dict[str, float], curves: Curves, panels: int, tmp_path: Path) -> None:
    draw_curves(tmp_path / "curves.png", [line, {key: 2 * value for key, value in line.items()}], curves)
    with Image.open(tmp_path / "curves.png") as image:
        assert image.width == pytest.approx(panels * 5 / 4 * image.height, abs=2)


def test_nothing_is_drawn_of_no_line(tmp_path: Path) -> None:
    draw_curves(tmp_path / "curves.png", [], PhiTraining.curves)
    assert not (tmp_path / "curves.png").exists()
