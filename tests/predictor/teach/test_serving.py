"""A server and its session: from the first image to the same answers elsewhere, who reaches it, and its limits."""

from __future__ import annotations

import io
import json
import socket
import stat
from pathlib import Path

import pytest
from PIL import Image

from predictor.classifier.classifier_file import load_classifier
from predictor.teach.session import key_of
from tests.predictor.teach.answers import asked, assert_same, names, predicted
from tests.teach_server import TeachServer


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


def test_the_folder_is_its_owners_alone(server: TeachServer) -> None:
    assert stat.S_IMODE(server.session.stat().st_mode) == 0o700
    assert stat.S_IMODE((server.session / "token").stat().st_mode) == 0o600


def test_a_second_server_on_the_same_session_is_refused(server: TeachServer) -> None:
    with pytest.raises(RuntimeError, match=r"another `ppa teach` serves .*; use its page, end it"):
        TeachServer(server.session).start()
    assert server.state()["known"] == 8


def test_a_server_for_other_machines_knows_its_own_names_alone(tmp_path: Path, start_file: Path) -> None:
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
