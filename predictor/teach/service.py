"""What the page can ask for: a session, the classifier that follows it, and answers as JSON. Not thread-safe: one
thread works at it."""

from __future__ import annotations

import copy
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from actstore.errors import ActstoreError
from actstore.images.image_set import printable
from predictor.classifier.classifier import Classifier
from predictor.classifier.classifier_file import save_classifier
from predictor.classifier.presentation import displays
from predictor.teach.actions import ASKABLE, Action, Example, RefusalError, State, parse_action, parse_name
from predictor.teach.answers import BaseImages, Network, bars, find_base_images, nearest_examples, open_image
from predictor.teach.security import Limits
from predictor.teach.session import RESULT, ImageFolder, Session, keep_newest, key_of, parse_key, row_key, thumbnail

DRAWN_SIDE = 64  # networks that read no more pixels than this can be taught with drawings
QUIET_SECONDS = 0.5  # after a change, before the classifier's file follows: of many in a row only the last is written
SEEN = 128  # images that were asked about and are remembered: a camera asks three times a second
Json = dict[str, Any]


class TeachService:
    def __init__(self, session: Session, network: Network, limits: Limits) -> None:
        self.session, self.network, self.limits = session, network, limits
        self.classifier = session.start  # follows the session's state
        self.milliseconds = 0.0  # of the last change, without the network's pass
        self.base: BaseImages | None = find_base_images(session.start.about, session.start.base)
        self._seen: dict[str, tuple[Tensor, bytes]] = {}  # key -> activation and thumbnail of what was asked about
        self._decoding = threading.Semaphore(limits.decodes)
        self._saving = Saving(session.folder / RESULT)
        self._follow()

    def describe(self, asked: str | None = None) -> Json:
        """All that the page shows of a session; with the answer about an image that was asked before."""
        session, side = self.session, self.network.side
        about = {"name": self.network.backbone.name, "side": side, "draw": side <= DRAWN_SIDE}
        shown: Json = {
            "network": about, "known": len(self.classifier.base), "categories": session.state.to_json(),
            "undo": session.history.next_undo, "redo": session.history.next_redo,
            "milliseconds": self.milliseconds, "session": session.folder.absolute().name,
        }  # fmt: skip
        if asked and (activation := self._find(parse_key(asked))) is not None:
            shown["answer"] = self._answer(asked, activation)
        return shown

    def names(self) -> dict[str, str]:
        """Of known categories that are shown otherwise than they are called: n01440764 as tench."""
        return displays(self.classifier)

    def add(self, category: str, name: str, data: bytes) -> Json:
        """An image as an example; returns what became of it: added, moved from another category, or there already."""
        category = parse_name(category, self.session.state.categories)
        key = key_of(data)
        before = self.session.state.places.get(key)
        self._require_room(category, key)
        if before != category:
            self._act(Action("add", category, examples=(self._keep(key, name, data, self.session.images),)))
        return {"key": key, "outcome": "added" if before is None else "there" if before == category else "moved",
                "before": before}  # fmt: skip

    def act(self, data: Any) -> Json:
        """An action that brings no image; returns what it did."""
        kind = data.get("do") if isinstance(data, dict) else None
        if kind in ("undo", "redo"):
            history = self.session.history
            said = history.next_undo if kind == "undo" else history.next_redo
            self.session.undo() if kind == "undo" else self.session.redo()
            self._follow()
            return {"said": f"{kind}: {said}"}
        name = partial(parse_name, known=self.session.state.categories)
        action = parse_action(data, (*ASKABLE, "undo", "redo"), name)
        if action.do in ("create", "move"):
            self._require_room(action.category)
        elif action.do == "rename":
            self._refuse_known(action.to)
        self._act(action)
        return {"said": action.said}

    def ask(self, name: str, data: bytes) -> Json:
        key = key_of(data)
        return self._answer(key, *self._see(key, name, data))

    def nearest(self, key: str) -> Json:
        activation = self._find(parse_key(key))
        if activation is None:
            raise RefusalError(404, "this image was not asked about")
        base = [] if self.base is None else self.base.nearest(activation)
        return {"examples": nearest_examples(activation, self.session.state, key, self._activation), "base": base}

    def thumbnail(self, key: str) -> bytes:
        """Of an example. This and `base_thumbnail` may be called by another thread."""
        return self.session.images.thumbnail(key, self._decoding)

    def base_thumbnail(self, row: int) -> bytes:
        if self.base is None:
            raise RefusalError(404, "there are no base images at hand")
        with self._decoding:
            return self.base.thumbnail(row)

    def snapshot(self) -> tuple[Classifier, State]:
        """As they are now; another thread may read them while this one goes on."""
        taken = copy.copy(self.classifier)
        taken.support = dict(taken.support)
        return taken, self.session.state

    def stage(self, name: str, content: bytes | Tensor, staged: ImageFolder) -> Example:
        """What an archive holds of an example, an image or the activation (dim,) of one, seen and put into a folder
        beside the session's: `merge` takes all of it over, or nothing of it stays."""
        if isinstance(content, bytes):
            return self._keep(key_of(content), name, content, staged)
        key = row_key(content)
        staged.put_activation(key, content, is_only_copy=True)
        return Example(key, shown_name(name), has_image=False)

    def require_mergeable(self, action: Action) -> None:
        """Refuses what an archive brings where there is no room for it, or the network knows a category itself."""
        for add in action.categories:
            self._require_room(add.category)
        after = self.session.history.act(action).state
        if len(after.places) > self.limits.examples or len(after.categories) > self.limits.categories:
            raise RefusalError(409, f"with this zip the session would have more than {self.limits.examples:,} examples "
                                    f"or {self.limits.categories:,} categories")  # fmt: skip

    def merge(self, action: Action, staged: ImageFolder) -> Json:
        """What an archive brought, in one action. staged: what `stage` put there."""
        self.require_mergeable(action)  # once more: others went on with the session in between
        self.session.images.take_over(staged)
        self._act(action)
        return {"said": action.said}

    def close(self) -> None:
        self._saving.write()
        self.session.close()

    def _answer(self, key: str, activation: Tensor, milliseconds: float = 0.0) -> Json:
        began = time.perf_counter()
        answer = bars(self.classifier, activation)
        took = 1e3 * (time.perf_counter() - began)
        return {"key": key, **answer, "milliseconds": {"network": milliseconds, "classifier": took}}

    def _see(self, key: str, name: str, data: bytes) -> tuple[Tensor, float]:
        """(dim,) and the milliseconds that decoding and the network took; none where the image was seen before."""
        known = self._find(key)
        if known is not None:
            return known, 0.0
        began = time.perf_counter()
        with self._decoding:
            image = open_image(data, shown_name(name), self.limits.pixels)
            activation, small = self.network.activation(image), thumbnail(image)
            del image  # large, and no more than a few may be in memory
        took = 1e3 * (time.perf_counter() - began)
        keep_newest(self._seen, key, (activation, small), SEEN)
        return activation, took

    def _keep(self, key: str, name: str, data: bytes, files: ImageFolder) -> Example:
        """An image on disk, as an example needs it."""
        self._see(key, name, data)
        if key in self._seen:
            activation, small = self._seen.pop(key)
            files.put_activation(key, activation)
            files.put_thumbnail(key, small)
        files.put(key, data)
        return Example(key, shown_name(name))

    def _find(self, key: str) -> Tensor | None:
        return self._seen[key][0] if key in self._seen else self.session.images.activation(key)

    def _activation(self, key: str) -> Tensor:
        """(dim,) of an example; made again where what was kept was lost."""
        images = self.session.images
        if (known := images.activation(key)) is not None:
            return known
        with self._decoding:
            made = self.network.activation(open_image(images.read(key), "an example", self.limits.pixels))
        images.put_activation(key, made)
        return made

    def _act(self, action: Action) -> None:
        self.session.act(action)
        self._follow()

    def _follow(self) -> None:
        """Learn the categories of the state anew; the constant between base and taught ones follows as in
        `ppa adapt`."""
        categories = self.session.state.categories
        examples = {
            name: torch.stack([self._activation(key) for key in keys]) for name, keys in categories.items() if keys
        }
        began = time.perf_counter()
        self.classifier.support = {}  # what a category is shown as stays
        self.classifier.restore(examples)
        self.classifier.balance()
        _ = self.classifier.rows, self.classifier.threshold  # here, so that the time says what learning costs
        self.milliseconds = 1e3 * (time.perf_counter() - began)
        self._saving.later(self.snapshot()[0])

    def _refuse_known(self, name: str) -> None:
        if name in self.classifier.base:
            raise RefusalError(409, f"the network knows {name!r} by itself; choose another name, such as 'my {name}'")

    def _require_room(self, category: str, key: str | None = None) -> None:
        self._refuse_known(category)
        state, limits = self.session.state, self.limits
        if category not in state.categories and len(state.categories) >= limits.categories:
            raise RefusalError(409, f"a session has at most {limits.categories:,} categories")
        if key is not None and key not in state.places and len(state.places) >= limits.examples:
            raise RefusalError(409, f"a session has at most {limits.examples:,} examples; remove some first")


class Saving:
    """Writes the newest classifier it was given a moment later: the file is large, and the journal has everything."""

    def __init__(self, path: Path) -> None:
        self._path, self._writing = path, threading.Lock()
        self._newest: Classifier | None = None
        self._written: Classifier | None = None
        self._timer: threading.Timer | None = None

    def later(self, classifier: Classifier) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._newest, self._timer = classifier, threading.Timer(QUIET_SECONDS, self.write)
        self._timer.daemon = True
        self._timer.start()

    def write(self) -> None:
        """Now, unless nothing changed since the last time."""
        with self._writing:
            if self._newest is None or self._newest is self._written:
                return
            self._written = self._newest
            try:
                save_classifier(self._path, self._written)
            except ActstoreError as error:  # a full disk: the journal refuses the next action and says so
                print(f"ppa teach: {error}", flush=True)


def shown_name(name: str) -> str:
    """Of a file, as its sender called it: for people to read, never a path."""
    last = printable(name.replace("\\", "/").rsplit("/", 1)[-1]).strip()
    return Path(last).name[:120] or "image"
