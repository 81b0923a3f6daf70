"""What is taken away from a session and brought back: ONNX, zips of sessions and of class folders."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from actstore.errors import LockedError
from predictor.classifier.classifier_file import load_classifier
from predictor.teach.actions import RefusalError, State
from predictor.teach.archives import MODEL, write_file
from predictor.teach.security import Limits
from predictor.teach.serving import Server
from predictor.teach.session import ImageFolder, Session, create_session, key_of
from tests.predictor.teach.answers import names
from tests.predictor.teach.hostile import archive
from tests.teach_server import TeachServer


def test_onnx_gives_the_same_categories(tmp_path: Path, server: TeachServer, glyphs: list[list[Path]]) -> None:
    import onnxruntime

    server.add("onnx", glyphs[5][0].read_bytes())
    session = onnxruntime.InferenceSession(
        server.get("/api/export/classifier.onnx"), providers=["CPUExecutionProvider"]
    )
    names = json.loads(session.get_modelmeta().custom_metadata_map["categories"])
    assert names[-1] == "onnx"
    rows = np.load(server.session / "activations" / f"{key_of(glyphs[5][0].read_bytes())}.npy")[None]
    (found,) = session.run(["probabilities"], {"activations": rows})
    assert names[int(found.argmax())] == "onnx"
    whole = onnxruntime.InferenceSession(server.get("/api/export/model.onnx"), providers=["CPUExecutionProvider"])
    pixels = np.asarray(Image.open(glyphs[5][0]).convert("RGB"))
    (found,) = whole.run(["probabilities"], {"image": pixels})
    assert names[int(found.argmax())] == "onnx"
    server.act(do="delete", category="onnx")
    assert not list(server.session.glob("away-*"))  # nor the names that an export writes beside it


def test_a_zip_is_class_folders_for_any_other_tool(
    tmp_path: Path, server: TeachServer, glyphs: list[list[Path]]
) -> None:
    for name, file in (("a/b: ..", glyphs[0][0]), ("../x", glyphs[1][0]), ("A_b_ __", glyphs[2][0])):
        server.add(name, file.read_bytes())
    with zipfile.ZipFile(io.BytesIO(server.get("/api/export/session.zip"))) as archive:
        labels = json.loads(archive.read("labels.json"))
        listed = [name for name in archive.namelist() if name.startswith("images/")]
        archive.extractall(tmp_path / "unpacked", listed)
    assert [one["name"] for one in labels["categories"]] == ["a/b: ..", "../x", "A_b_ __"]
    assert len({Path(name).parent for name in listed}) == 3
    assert all(".." not in Path(name).parts and len(Path(name).parts) == 3 for name in listed)
    assert len(list((tmp_path / "unpacked" / "images").iterdir())) == 3
    for name in ("a/b: ..", "../x", "A_b_ __"):
        server.act(do="delete", category=name)


def test_a_zip_of_class_folders_is_read(tmp_path: Path, server: TeachServer, glyphs: list[list[Path]]) -> None:
    for place, name in ((3, "drei"), (4, "vier")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for file in glyphs[place]:
            shutil.copy(file, tmp_path / "photos" / name)
    made = shutil.make_archive(str(tmp_path / "photos"), "zip", tmp_path / "photos")
    assert names(server.bring(Path(made).read_bytes())["state"]) == {"drei": 4, "vier": 4}
    assert server.get("/api/check")["total"] == 8
    assert names(server.act(do="undo")) == {}


def test_names_in_a_zip_may_have_dots_and_double_strokes(server: TeachServer, glyphs: list[list[Path]]) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.write(glyphs[3][0], "a.png")
        for name, file in (("./drei/1.png", glyphs[3][0]), ("vier//1.png", glyphs[4][0])):
            archive.writestr(zipfile.ZipInfo(name), file.read_bytes())
    assert names(server.bring(made.getvalue())["state"]) == {"drei": 1, "vier": 1}
    assert names(server.act(do="undo")) == {}


def test_a_zip_waits_for_its_turn_as_images_do() -> None:
    desk = SimpleNamespace(limits=Limits(waiting=0))
    with pytest.raises(RefusalError, match="too many images at once"):
        asyncio.run(Server(desk).bring(None))  # type: ignore[arg-type]


def test_what_a_kill_left_on_its_way_is_removed(tmp_path: Path, start_file: Path) -> None:
    create_session(tmp_path / "s", load_classifier(start_file), {"asked": {}})
    for name in ("away-1-import.zip", "away-2-session.zip.classifier"):
        (tmp_path / "s" / name).write_bytes(b"half")
    (tmp_path / "s" / "away-folder" / "images").mkdir(parents=True)
    session = Session(tmp_path / "s")
    (tmp_path / "s" / "away-3-session.zip").write_bytes(b"of a server at work")
    with pytest.raises(LockedError):
        Session(tmp_path / "s")
    assert [path.name for path in (tmp_path / "s").glob("away-*")] == ["away-3-session.zip"]
    session.close()


def test_a_graph_for_several_views_is_refused(tmp_path: Path, start_file: Path) -> None:
    classifier = load_classifier(start_file)
    classifier.about["network"]["views"] = 10
    (tmp_path / "s").mkdir()
    with pytest.raises(RefusalError, match="averages 10 views") as error:
        write_file(tmp_path / MODEL, classifier, State(), ImageFolder(tmp_path / "s"), None)
    assert error.value.status == 409
    assert not list(tmp_path.glob("*.*"))


def test_a_zip_that_fails_halfway_leaves_nothing(server: TeachServer, glyphs: list[list[Path]]) -> None:
    """Nor takes anything away: an image that was an example before, and can be one again, stays."""
    removed = glyphs[6][0].read_bytes()
    server.add("sechs", removed)
    server.act(do="remove", keys=[key_of(removed)])
    before = kept_files(server)
    whole = [(f"sechs/{place}.png", file.read_bytes()) for place, file in enumerate(glyphs[6])]
    for last in (b"no image", glyphs[7][0].read_bytes()[:-40]):
        status, found, _ = server.request("POST", "/api/import", archive(*whole, ("sieben/x.png", last)))
        assert status == 415, found
        assert kept_files(server) == before
    assert names(server.act(do="undo")) == {"sechs": 1}
    assert names(server.bring(archive(*whole))["state"]) == {"sechs": 4}
    assert {f"images/{key_of(data)}" for _, data in whole} <= kept_files(server)
    server.act(do="delete", category="sechs")


def kept_files(server: TeachServer) -> set[str]:
    """Of images; other files of a session are written from time to time."""
    paths = (path.relative_to(server.session) for path in server.session.rglob("*") if path.is_file())
    return {str(path) for path in paths if path.parts[0] in ("images", "activations", "thumbnails")} | {
        path.name for path in server.session.glob("away-*")
    }
