"""The classifier's file follows the session a moment later: it is large, and the journal has everything already."""

from __future__ import annotations

import threading
from pathlib import Path

from actstore.errors import ActstoreError
from predictor.classifier.classifier import Classifier
from predictor.classifier.classifier_file import save_classifier

QUIET_SECONDS = 0.5  # after a change: of many in a row only the last is written


class Saving:
    """Writes the newest classifier it was given from a thread of its own, and the last one before `close` returns."""

    def __init__(self, path: Path) -> None:
        self._path, self._newest = path, None  # type: tuple[Path, Classifier | None]
        self._changed, self._ended = threading.Condition(), False
        self._thread = threading.Thread(target=self._work, name="save classifier", daemon=True)
        self._thread.start()

    def later(self, classifier: Classifier) -> None:
        with self._changed:
            self._newest = classifier
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                while self._newest is None and not self._ended:
                    self._changed.wait()
                if self._newest is None:
                    return
                while not self._ended and self._changed.wait(QUIET_SECONDS):
                    pass
                taken, self._newest = self._newest, None
            try:
                save_classifier(self._path, taken)
            except ActstoreError as error:  # a full disk: the journal refuses the next action and says so
                print(f"ppa teach: {error}", flush=True)
