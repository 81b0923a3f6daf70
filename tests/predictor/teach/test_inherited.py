"""Sessions that begin with a classifier that was taught before: examples without images, names that follow no rule."""

from __future__ import annotations

from pathlib import Path

import torch

from predictor.classifier.classifier_file import load_classifier, save_classifier
from predictor.teach.session import key_of
from tests.predictor.teach.answers import asked, assert_same, names
from tests.teach_server import TeachServer


def test_what_a_classifier_learnt_before_can_be_moved_and_taken_away(
    tmp_path: Path, start_file: Path, glyphs: list[list[Path]]
) -> None:
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


def test_what_a_category_is_shown_as_stays(tmp_path: Path, start_file: Path, glyphs: list[list[Path]]) -> None:
    taught = load_classifier(start_file)
    taught.adapt("old", torch.rand(2, taught.dim, generator=torch.Generator().manual_seed(0)))
    taught.set_display_names({"old": "the old one"})
    save_classifier(tmp_path / "taught.safetensors", taught)
    with TeachServer(tmp_path / "s", "--classifier", tmp_path / "taught.safetensors") as server:
        server.add("new", glyphs[0][0].read_bytes())
    assert load_classifier(tmp_path / "s" / "classifier.safetensors").display_names()["old"] == "the old one"
