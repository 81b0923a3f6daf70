"""What only reads the session and takes longer: the check, the map, files to take away; and zips that come back."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from actstore.backbones.loading import Backbone
from actstore.errors import InvalidInputError
from actstore.extraction.recorded_network import load_recorded
from predictor.classifier.classifier import Classifier
from predictor.classifier.classifier_file import load_classifier, save_classifier
from predictor.classifier.export import export_onnx
from predictor.classifier.export_images import export_with_backbone
from predictor.teach.actions import Merge
from predictor.teach.archive import network_of, write_archive
from predictor.teach.archive_reading import ArchiveReader, Listed
from predictor.teach.images import key_of, row_key
from predictor.teach.plane import place_points
from predictor.teach.refusal import RefusalError
from predictor.teach.responses import answer
from predictor.teach.review import review
from predictor.teach.session import AWAY
from predictor.teach.state import Category, Example

if TYPE_CHECKING:
    from predictor.teach.bodies import Bodies
    from predictor.teach.desk import Desk

BYTES = "application/octet-stream"
KINDS = {
    "classifier.safetensors": BYTES,
    "classifier.onnx": BYTES,
    "model.onnx": BYTES,
    "session.zip": "application/zip",
}


Work = Callable[..., Awaitable[Any]]


class TakingAway:
    def __init__(self, desk: Desk, at_desk: Work, aside: Work) -> None:
        self._desk, self._at_desk, self._aside = desk, at_desk, aside

    async def check(self, _: Request) -> Response:
        return answer(await self._aside(review, *await self._at_desk(self._desk.snapshot)))

    async def plane(self, request: Request) -> Response:
        way = "neighbours" if request.query_params.get("way") == "neighbours" else "axes"
        return answer(await self._aside(place_points, *await self._at_desk(self._desk.snapshot), way))

    async def export(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in KINDS:
            raise RefusalError(404, "there is nothing here")
        classifier, state = await self._at_desk(self._desk.snapshot)
        path = self._scratch(name)
        try:
            if name == "session.zip":
                await self._aside(write_archive, path, classifier, state, self._desk.session.images)
            elif name.endswith(".onnx"):
                record, weights = classifier.about.get("network", {}), self._desk.network.weights
                network = None if name == "classifier.onnx" else partial(load_recorded, record, weights)
                await self._aside(_write_onnx, classifier, path, network)
            else:
                await self._aside(save_classifier, path, classifier)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return FileResponse(path, media_type=KINDS[name], filename=name, headers={"cache-control": "no-store"},
                            background=BackgroundTask(path.unlink, missing_ok=True))  # fmt: skip

    async def bring(self, request: Request, bodies: Bodies) -> Response:
        """A zip of a session, or of class folders: image by image, so that questions are answered in between."""
        async with bodies.turn():
            path = self._scratch("import.zip")
            try:
                with path.open("wb") as file:
                    await bodies.file(request, self._desk.limits.archive_bytes, file)
                reader = await self._aside(ArchiveReader, path, self._desk.limits)
                try:
                    action = await self._read(reader)
                finally:
                    reader.close()
                asked = request.query_params.get("asked")
                done = await self._at_desk(lambda: {**self._desk.merge(action), "state": self._desk.describe(asked)})
                return answer(done)
            finally:
                path.unlink(missing_ok=True)

    async def _read(self, reader: ArchiveReader) -> Merge:
        rows = await self._aside(self._rows, reader) if any(one.row is not None for one in reader.examples) else {}
        keys = [await self._aside(_key, reader, rows, one) for one in reader.examples]
        planned = [Example(key, one.name) for key, one in zip(keys, reader.examples, strict=True)]
        await self._at_desk(self._desk.require_mergeable, _merge(reader, planned))  # before any image is kept
        found: list[Example] = []
        for listed in reader.examples:
            if listed.file is not None:
                data = await self._aside(reader.image, listed)
                found.append(await self._at_desk(self._desk.bring, listed.name or listed.file, data))
            else:
                found.append(await self._at_desk(self._desk.bring_row, listed.name, _row(rows, listed)))
        return _merge(reader, found)

    def _rows(self, reader: ArchiveReader) -> dict[str, Any]:
        """Examples without an image are of one network alone: that of the classifier beside them."""
        path = self._scratch("import.safetensors")
        try:
            if not reader.classifier(path):
                raise RefusalError(422, "the zip names examples without an image, but holds no classifier with them")
            theirs: Classifier = load_classifier(path)
        finally:
            path.unlink(missing_ok=True)
        if network_of(theirs) != network_of(self._desk.learner.classifier):
            raise RefusalError(409, "the zip has examples without an image, of another network than this session's")
        return dict(theirs.support)

    def _scratch(self, name: str) -> Path:
        """A new file in the session's folder, so that a large one does not fill /tmp."""
        descriptor, path = tempfile.mkstemp(f"-{name}", AWAY, self._desk.session.folder)
        os.close(descriptor)
        return Path(path)


def _merge(reader: ArchiveReader, examples: list[Example]) -> Merge:
    """examples: one for each that the zip names, in its order."""
    found: dict[str, list[Example]] = {}
    for listed, example in zip(reader.examples, examples, strict=True):
        found.setdefault(listed.category, []).append(example)
    return Merge(tuple(Category(name, tuple(some)) for name, some in found.items()))


def _key(reader: ArchiveReader, rows: dict[str, Any], listed: Listed) -> str:
    """Of an example that a zip names, as it will be kept."""
    if listed.file is None:
        return row_key(_row(rows, listed))
    return listed.key or key_of(reader.image(listed))


def _row(rows: dict[str, Any], listed: Listed) -> Any:
    known = rows.get(listed.theirs, ())
    if listed.row is None or not 0 <= listed.row < len(known):
        raise RefusalError(422, f"the zip names an example of {listed.category!r} that its classifier does not hold")
    return known[listed.row].clone()


def _write_onnx(classifier: Classifier, path: Path, network: Callable[[], Backbone] | None) -> None:
    """network: loads one for the graph alone, as the desk goes on with its own; without it activations come in. The
    names go into the graph itself; those that are written beside it are not sent."""
    if not classifier.categories:
        raise RefusalError(409, "there is no category yet to take away")
    try:
        if network is None:
            export_onnx(classifier, path)
        else:
            export_with_backbone(classifier, network(), path)
    except InvalidInputError as error:
        raise RefusalError(409, str(error)) from None  # such as a package that is not installed
    finally:
        path.with_suffix(".json").unlink(missing_ok=True)
