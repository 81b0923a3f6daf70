"""`ppa teach` killed at random moments of a scripted session: after each restart no acknowledged action is missing.

The script draws actions at random; a model of the session follows every one that was answered. After a kill the session
must be what the model says, or that and the one action that was under way, with every image as it was sent.
"""

from __future__ import annotations

import http.client
import random
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from actstore.compute.process import Result
from predictor.teach.actions import Action, Example, History, RefusalError
from predictor.teach.session import key_of
from tests.bench.common import report
from tests.teach_server import TeachServer, glyph_files, write_glyph_classifier

NAMES = ("one", "two", "three", "four")
_GONE = (ConnectionError, http.client.HTTPException, OSError)


@dataclass
class Script:
    """model: what was answered. under_way: the action that was not, and the model after it."""

    images: list[bytes]
    model: History = field(default_factory=History)
    under_way: Any = None
    answered: int = 0

    def run(self, server: TeachServer, chance: random.Random) -> None:
        """Until the server is gone."""
        while True:
            action = self.draw(chance)
            self.under_way = action
            try:
                self.send(server, action)
            except _GONE:
                return
            self.model = self.perform(action)
            self.under_way, self.answered = None, self.answered + 1

    def draw(self, chance: random.Random) -> Any:
        """One that the model grants."""
        while True:
            state, name = self.model.state, chance.choice(NAMES)
            keys = list(state.places)
            image = chance.choice(self.images)
            key = chance.choice(keys) if keys else "none"
            action = chance.choices(
                [Action("add", name, examples=(Example(key_of(image), "image.png"),)),
                 Action("move", name, keys=(key,)), Action("remove", keys=(key,)), Action("create", name),
                 Action("rename", chance.choice(NAMES), name), Action("delete", name), "undo", "redo"],
                [10, 3, 2, 2, 2, 1, 4, 3],
            )[0]  # fmt: skip
            if is_add(action) and state.places.get(action.examples[0].key) == name:
                continue  # it is there already: nothing would be done
            try:
                _ = self.perform(action).state
            except RefusalError:
                continue
            return action

    def send(self, server: TeachServer, action: Any) -> None:
        if is_add(action):
            wanted = action.examples[0].key
            server.add(action.category, next(one for one in self.images if key_of(one) == wanted))
        else:
            server.act(**({"do": action} if isinstance(action, str) else action.to_json()))

    def perform(self, action: Any) -> History:
        if isinstance(action, str):
            return self.model.undo() if action == "undo" else self.model.redo()
        return self.model.act(action)

    def settle(self, server: TeachServer) -> bool:
        """Compare with the server, and take over what was under way where it was done. Returns whether it was."""
        found = seen(server)
        if found == shown(self.model):
            self.under_way = None
            return False
        assert self.under_way is not None, f"lost: {shown(self.model)} became {found}"
        self.model = self.perform(self.under_way)
        assert found == shown(self.model), f"lost: {shown(self.model)} became {found}"
        self.under_way = None
        return True


def is_add(action: Any) -> bool:
    return isinstance(action, Action) and action.do == "add"


def shown(model: History) -> dict[str, Any]:
    return {"categories": model.state.to_json(), "undo": model.next_undo, "redo": model.next_redo}


def seen(server: TeachServer) -> dict[str, Any]:
    state = server.state()
    for category in state["categories"]:
        for example in category["examples"]:
            assert key_of((server.session / "images" / example["key"]).read_bytes()) == example["key"]
    return {key: state[key] for key in ("categories", "undo", "redo")}


def kill_often(folder: Path, kills: int, seed: int = 0, longest: float = 1.0) -> dict[str, int]:
    """longest: seconds that a server lives after it answered first."""
    start = folder / "classifier.safetensors"
    write_glyph_classifier(start)
    images = [file.read_bytes() for files in glyph_files(folder / "glyphs", 6, 4) for file in files]
    script, chance, finished = Script(images), random.Random(seed), 0
    server = TeachServer(folder / "session", "--classifier", start)
    for _ in range(kills):
        with server:
            finished += script.settle(server)
            client = threading.Thread(target=script.run, args=(server, chance))
            client.start()
            while not script.answered and client.is_alive():
                time.sleep(0.01)  # the first is not killed before it answered: on a busy machine that takes a while
            time.sleep(random.random() * longest)  # not of the seed: the moment is never the same anyway
            server.kill()
            client.join()
    with server:
        finished += script.settle(server)
    return {"kills": kills, "answered": script.answered, "done but not answered": finished}


def main(kills: int = 100) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = kill_often(Path(folder), kills)
    report("teach_kills", [
        Result("kills of a scripted session", found["kills"], "kills"),
        Result("acknowledged actions", found["answered"], "actions"),
        Result("acknowledged actions that were missing", 0, "actions"),
        Result("actions done, but not yet answered", found["done but not answered"], "actions"),
    ], ["no acknowledged action is missing"])  # fmt: skip


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
