"""What the page asks for, as plain requests: teaching, asking, checking, taking away and bringing back."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
import stat
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image

from actstore.backbones.loading import load_backbone
from actstore.errors import LockedError
from cli.ppa import main
from predictor.classifier.classifier_file import load_classifier
from predictor.teach.bodies import Bodies
from predictor.teach.images import key_of
from predictor.teach.limits import Limits
from predictor.teach.refusal import RefusalError
from predictor.teach.session import Session, create_session
from predictor.teach.taking_away import TakingAway, _write_onnx
from tests.teach_server import TeachServer


def predicted(classifier: Path, *images: Path) -> list[dict[str, float]]:
    """By `ppa predict`: category -> probability."""
    torch.set_num_threads(1)
    done = CliRunner().invoke(main, ["predict", *map(str, images), "--classifier", str(classifier), "--json"])
    assert done.exit_code == 0, done.output
    return [{one["category"]: one["probability"] for one in image["top"]} for image in json.loads(done.stdout)]


def asked(server: TeachServer, *images: Path) -> list[dict[str, float]]:
    answers = [server.ask(image.read_bytes()) for image in images]
    return [{one["category"]: one["probability"] for one in answer["bars"]} for answer in answers]


def assert_same(found: list[dict[str, float]], expected: list[dict[str, float]]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert list(one) == list(other)
        np.testing.assert_allclose(list(one.values()), list(other.values()), rtol=1e-4)


def names(state: dict[str, object]) -> dict[str, int]:
    return {one["name"]: len(one["examples"]) for one in state["categories"]}  # type: ignore[index,attr-defined]


@pytest.mark.numeric
def test_a_session_from_its_first_image_to_the_same_answers_elsewhere(
    tmp_path: Path, start_file: Path, glyphs: list[list[Path]]
) -> None:
    first, second, third = glyphs[:3]
    with TeachServer(tmp_path / "s", "--classifier", start_file) as server:
        for file in first[:3]:
            done = server.add("one", file.read_bytes(), file.name)
        assert (done["outcome"], names(done["state"])) == ("added", {"one": 3})
        server.add("two", second[0].read_bytes())
        assert server.add("two", second[0].read_bytes())["outcome"] == "there"
        moved = server.add("two", first[2].read_bytes())
        assert (moved["outcome"], moved["before"], names(moved["state"])) == ("moved", "one", {"one": 2, "two": 2})
        assert server.state()["undo"] == "1 example added to two"
        assert names(server.act(do="undo")) == {"one": 3, "two": 1}
        assert names(server.act(do="redo")) == {"one": 2, "two": 2}
        server.act(do="rename", category="two", to="zwei")
        server.act(do="create", category="empty")
        server.act(do="move", keys=[key_of(first[2].read_bytes())], category="one")
        server.add("three", third[0].read_bytes())
        server.act(do="delete", category="three")
        assert names(server.state()) == {"one": 3, "zwei": 1, "empty": 0}
        answers = asked(server, first[3], second[1], third[1])
        nearest = server.get(f"/api/nearest/{key_of(first[3].read_bytes())}")
        assert len(nearest["examples"]) == 4
        checked = server.get("/api/check")
        assert (checked["total"], checked["single"]) == (3, ["zwei"])
        places = server.get("/api/map")
        assert (len(places["examples"]), len(places["base"])) == (4, 8)
        exported = {name: server.get(f"/api/export/{name}") for name in
                    ("classifier.safetensors", "classifier.onnx", "session.zip")}  # fmt: skip
        server.kill()
    with server:
        assert names(server.state()) == {"one": 3, "zwei": 1, "empty": 0}
        assert_same(asked(server, first[3], second[1], third[1]), answers)
        assert names(server.act(do="undo")) == {"one": 3, "zwei": 1, "empty": 0, "three": 1}
        server.act(do="redo")
    file = tmp_path / "taken.safetensors"
    file.write_bytes(exported["classifier.safetensors"])
    for path in (file, tmp_path / "s" / "classifier.safetensors"):  # what was taken, and what the server left
        assert_same(predicted(path, first[3], second[1], third[1]), answers)
    assert load_classifier(file).predict(load_classifier(file).support["zwei"])[0][0][0] == "zwei"
    with TeachServer(tmp_path / "other", "--classifier", start_file) as other:
        done = other.bring(exported["session.zip"])
        assert names(done["state"]) == {"one": 3, "zwei": 1}
        assert_same(asked(other, first[3], second[1], third[1]), answers)
        assert names(other.act(do="undo")) == {}


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
    away = TakingAway(*[None] * 3)  # type: ignore[arg-type]
    with pytest.raises(RefusalError, match="too many images at once"):
        asyncio.run(away.bring(None, Bodies(Limits(waiting=0))))  # type: ignore[arg-type]


def test_thumbnails_are_small_images_of_our_own(server: TeachServer, glyphs: list[list[Path]]) -> None:
    photo = io.BytesIO()
    Image.effect_noise((1200, 800), 90).convert("RGB").save(photo, "JPEG")
    key = server.add("photo", photo.getvalue(), "../../etc/passwd\n.jpg")["key"]
    (example,) = server.state()["categories"][0]["examples"]
    assert example["name"] == "passwd\\n.jpg"  # for people to read; never a path
    _, data, headers = server.request("GET", f"/api/images/{key}")
    assert (headers["content-type"], headers["x-content-type-options"]) == ("image/webp", "nosniff")
    assert Image.open(io.BytesIO(data)).size == (192, 128)
    (server.session / "thumbnails" / f"{key}.webp").unlink()
    assert Image.open(io.BytesIO(server.request("GET", f"/api/images/{key}")[1])).size == (192, 128)
    server.act(do="delete", category="photo")


def test_the_printed_address_opens_the_page_and_gives_it_a_cookie(server: TeachServer) -> None:
    status, page, headers = server.request("GET", f"/?token={server.token}", headers={"Authorization": ""})
    assert (status, page[:15]) == (200, b"<!doctype html>")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(headers["set-cookie"].split("; "))
    cookie = headers["set-cookie"].split(";")[0]
    assert server.request("GET", "/api/state", headers={"Authorization": "", "Cookie": cookie})[0] == 200
    for part in ("'unsafe-inline'", "'unsafe-eval'", "http:", "https:", "*"):
        assert part not in headers["content-security-policy"]


def test_what_a_kill_left_on_its_way_is_removed(tmp_path: Path, start_file: Path) -> None:
    create_session(tmp_path / "s", load_classifier(start_file), {"asked": {}})
    for name in ("away-1-import.zip", "away-2-session.zip.classifier"):
        (tmp_path / "s" / name).write_bytes(b"half")
    session = Session(tmp_path / "s")
    (tmp_path / "s" / "away-3-session.zip").write_bytes(b"of a server at work")
    with pytest.raises(LockedError):
        Session(tmp_path / "s")
    assert [path.name for path in (tmp_path / "s").glob("away-*")] == ["away-3-session.zip"]
    session.close()


def test_a_graph_for_several_views_is_refused(tmp_path: Path, start_file: Path) -> None:
    classifier = load_classifier(start_file)
    classifier.about["network"]["views"] = 10
    network = load_backbone("small", random_weights=True)
    with pytest.raises(RefusalError, match="averages 10 views") as error:
        _write_onnx(classifier, tmp_path / "model.onnx", lambda: network)
    assert error.value.status == 409
    assert not list(tmp_path.iterdir())


def test_the_folder_is_its_owners_alone(server: TeachServer) -> None:
    assert stat.S_IMODE(server.session.stat().st_mode) == 0o700
    assert stat.S_IMODE((server.session / "token").stat().st_mode) == 0o600


def test_a_second_server_on_the_same_session_is_refused(server: TeachServer) -> None:
    with pytest.raises(RuntimeError, match=r"another `ppa teach` serves .*; use its page, end it"):
        TeachServer(server.session).start()
    assert server.state()["known"] == 8


def test_what_a_classifier_learnt_before_can_be_moved_and_taken_away(
    tmp_path: Path, start_file: Path, glyphs: list[list[Path]]
) -> None:
    from predictor.classifier.classifier_file import save_classifier

    taught = load_classifier(start_file)
    rows = torch.rand(3, taught.dim, generator=torch.Generator().manual_seed(0))
    taught.adapt_all({"old": rows[:2], "older": rows[2:]})
    save_classifier(tmp_path / "taught.safetensors", taught)
    with TeachServer(tmp_path / "s", "--classifier", tmp_path / "taught.safetensors") as server:
        old = server.state()["categories"][0]["examples"]
        assert [one["image"] for one in old] == [False, False]
        assert server.request("GET", f"/api/images/{old[0]['key']}")[0] == 404
        assert names(server.act(do="move", keys=[old[0]["key"]], category="older")) == {"old": 1, "older": 2}
        server.add("older", glyphs[0][0].read_bytes())
        taken = server.get("/api/export/session.zip")
        answers = asked(server, glyphs[0][1])
    with TeachServer(tmp_path / "other", "--classifier", start_file) as other:
        assert names(other.bring(taken)["state"]) == {"old": 1, "older": 3}
        assert_same(asked(other, glyphs[0][1]), answers)
        other.kill()
    with other:
        assert_same(asked(other, glyphs[0][1]), answers)


def test_categories_of_a_classifier_can_be_changed_whatever_they_are_called(
    tmp_path: Path, start_file: Path, glyphs: list[list[Path]]
) -> None:
    from predictor.classifier.classifier_file import save_classifier

    taught = load_classifier(start_file)
    rows = torch.rand(4, taught.dim, generator=torch.Generator().manual_seed(0))
    given = ["two  spaces", "cafe\u0301", "x" * 90]
    taught.adapt_all({name: rows[place : place + 1] for place, name in enumerate(given)})
    save_classifier(tmp_path / "taught.safetensors", taught)
    with TeachServer(tmp_path / "s", "--classifier", tmp_path / "taught.safetensors") as server:
        for place, name in enumerate(given):
            server.add(name, glyphs[place][0].read_bytes())
        assert names(server.state()) == dict.fromkeys(given, 2)
        server.act(do="move", keys=[key_of(glyphs[0][0].read_bytes())], category=given[1])
        server.act(do="rename", category=given[2], to="short")
        expected = {given[0]: 1, given[1]: 3, "short": 2}
        assert names(server.state()) == expected
        taken = server.get("/api/export/session.zip")
        server.kill()
    with server:
        assert names(server.state()) == expected
        assert names(server.act(do="delete", category=given[1])) == {given[0]: 1, "short": 2}
    with TeachServer(tmp_path / "other", "--classifier", start_file) as other:
        assert names(other.bring(taken)["state"]) == {"two spaces": 1, "caf\u00e9": 3, "short": 2}


def test_a_server_for_other_machines_knows_its_own_names_alone(tmp_path: Path, start_file: Path) -> None:
    import socket

    with TeachServer(tmp_path / "s", "--classifier", start_file, "--host", "0.0.0.0") as server:
        assert server.host.startswith(socket.gethostname())
        for host in (server.host, f"localhost:{server.port}"):
            assert server.request("GET", "/api/state", headers={"Host": host})[0] == 200
        assert server.request("GET", "/api/state", headers={"Host": f"evil.example:{server.port}"})[0] == 421
        assert server.stop() == ""  # Ctrl-C is no error, and nothing is said
        assert server.process.returncode == 0


def test_limits_of_a_session(tmp_path: Path, start_file: Path, glyphs: list[list[Path]]) -> None:
    with TeachServer(tmp_path / "s", "--classifier", start_file, examples=2, categories=2) as server:
        server.add("a", glyphs[0][0].read_bytes())
        server.add("b", glyphs[1][0].read_bytes())
        status, found, _ = server.request("POST", "/api/examples?category=a", glyphs[2][0].read_bytes())
        assert (status, found["error"]) == (409, "a session has at most 2 examples; remove some first")
        status, found, _ = server.request("POST", "/api/examples?category=c", glyphs[0][0].read_bytes())
        assert (status, found["error"]) == (409, "a session has at most 2 categories")
        known = server.state()["known"] and load_classifier(start_file).base[0]
        status, found, _ = server.request(
            "POST", "/api/actions", json.dumps({"do": "rename", "category": "a", "to": known}).encode(),
            {"Content-Type": "application/json"})  # fmt: skip
        assert status == 409
        assert "the network knows" in found["error"]
        assert names(server.state()) == {"a": 1, "b": 1}
