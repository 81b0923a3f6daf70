"""Images of base categories beside an answer, and that no more images are decoded at once than the limits say."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import actstore
from actstore.images.decode import decode
from actstore.images.glyphs import write_glyphs
from cli.actstore import main
from predictor.classifier.classifier_file import load_classifier
from predictor.teach.actions import RefusalError
from predictor.teach.answers import Network, find_base_images
from predictor.teach.security import Limits
from predictor.teach.service import TeachService
from predictor.teach.session import Session, create_session


def run(*words: object) -> None:
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == 0, done.output


def test_base_images_of_a_store_that_was_selected(tmp_path: Path) -> None:
    write_glyphs(tmp_path / "glyphs", 4, 3, 0, 5)
    run("build", tmp_path / "glyphs", tmp_path / "x.zarr", "--backbone", "small", "--random-weights", "--workers", 0)
    run("select", tmp_path / "x.zarr", tmp_path / "y.zarr", "--where", "row != 0")
    for name, count in (("x.zarr", 12), ("y.zarr", 11)):
        rows = actstore.open(tmp_path / name)["train"]
        assert len(rows) == count
        about = {"store": str(tmp_path / name), "content": rows.content}
        found = find_base_images(about, rows.classes)
        assert found is not None
        (first, *_) = found.nearest(torch.from_numpy(np.asarray(rows[5], np.float32)))
        assert found.thumbnail(first["row"])[8:12] == b"WEBP"
        with pytest.raises(RefusalError, match="no such image"):
            found.thumbnail(count)
    (tmp_path / "glyphs" / "train").rename(tmp_path / "glyphs" / "test")  # the split's name is not there any more
    assert find_base_images(about, rows.classes) is None


def test_one_image_is_decoded_at_a_time(
    tmp_path: Path, start_file: Path, glyphs: list[list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    create_session(tmp_path / "s", load_classifier(start_file), {"asked": {}})
    session = Session(tmp_path / "s")
    desk = TeachService(session, Network(session.start.about["network"], device="cpu"), Limits())
    key = desk.add("one", "a.png", glyphs[0][0].read_bytes())["key"]
    (tmp_path / "s" / "thumbnails" / f"{key}.webp").unlink()
    both, together = threading.Barrier(2, timeout=0.5), []

    def meeting(*given: Any) -> Any:
        with suppress(threading.BrokenBarrierError):  # nobody else came
            together.append(both.wait())
        return decode(*given)

    for module in ("session", "answers"):
        monkeypatch.setattr(f"predictor.teach.{module}.decode", meeting)
    other = threading.Thread(target=desk.thumbnail, args=[key])
    other.start()
    assert desk.ask("b.png", glyphs[1][0].read_bytes())["bars"]
    other.join()
    desk.close()
    assert (tmp_path / "s" / "thumbnails" / f"{key}.webp").exists()
    assert together == []
