"""The server: routes in, JSON out. One thread works at the desk, another at what takes longer and only reads."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from actstore.errors import ActstoreError, StorageError
from predictor.teach.archive_reading import ArchiveReader
from predictor.teach.bodies import Bodies
from predictor.teach.desk import Desk
from predictor.teach.guard import Guard, refusal
from predictor.teach.images import ImageFolder
from predictor.teach.limits import RefusalError
from predictor.teach.overview import place_points, review
from predictor.teach.state import Example
from predictor.teach.taking_away import MEDIA_TYPES, network_of, write_file

Result = TypeVar("Result")
PAGE_TYPES = {"html": "text/html; charset=utf-8", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


class Server:
    """Routes as methods."""

    def __init__(self, desk: Desk, opened: Callable[[], None] = lambda: None) -> None:
        """opened: called when requests are about to be answered."""
        self.desk, self.bodies, self._opened = desk, Bodies(desk.limits), opened
        self._desk_thread, self._side_thread = (ThreadPoolExecutor(1, name) for name in ("desk", "side"))

    def at_desk(self, function: Callable[..., Result], *given: Any) -> Awaitable[Result]:
        """Work on the session: one thing at a time, in the order of arrival."""
        return asyncio.get_running_loop().run_in_executor(self._desk_thread, function, *given)

    def aside(self, function: Callable[..., Result], *given: Any) -> Awaitable[Result]:
        """Longer work on a snapshot."""
        return asyncio.get_running_loop().run_in_executor(self._side_thread, function, *given)

    async def state(self, request: Request) -> Response:
        return answer(await self.at_desk(self.desk.describe, request.query_params.get("asked")))

    async def names(self, _: Request) -> Response:
        return answer(await self.at_desk(self.desk.names))

    async def act(self, request: Request) -> Response:
        return await self._after(request, self.desk.act, await self.bodies.json(request))

    async def add(self, request: Request) -> Response:
        async with self.bodies.turn():
            data = await self.bodies.whole(request, self.desk.limits.image_bytes)
            category, name = (request.query_params.get(key, "") for key in ("category", "name"))
            return await self._after(request, self.desk.add, category, name, data)

    async def ask(self, request: Request) -> Response:
        async with self.bodies.turn():
            data = await self.bodies.whole(request, self.desk.limits.image_bytes)
            return answer(await self.at_desk(self.desk.ask, request.query_params.get("name", ""), data))

    async def nearest(self, request: Request) -> Response:
        return answer(await self.at_desk(self.desk.nearest, request.path_params["key"]))

    async def image(self, request: Request) -> Response:
        return picture(await self.aside(self.desk.thumbnail, request.path_params["key"]))

    async def base_image(self, request: Request) -> Response:
        return picture(await self.aside(self.desk.base_thumbnail, request.path_params["row"]))

    async def check(self, _: Request) -> Response:
        return answer(await self.aside(review, *await self.at_desk(self.desk.snapshot)))

    async def map(self, request: Request) -> Response:
        way = "neighbours" if request.query_params.get("way") == "neighbours" else "axes"
        return answer(await self.aside(place_points, *await self.at_desk(self.desk.snapshot), way))

    async def export(self, request: Request) -> Response:
        name, desk = request.path_params["name"], self.desk
        if name not in MEDIA_TYPES:
            raise RefusalError(404, "there is nothing here")
        snapshot = await self.at_desk(desk.snapshot)
        scratch = desk.session.scratch()
        path = Path(scratch.name) / name
        try:
            await self.aside(write_file, path, *snapshot, desk.session.images, desk.network.weights)
        except BaseException:
            scratch.cleanup()
            raise
        return FileResponse(path, media_type=MEDIA_TYPES[name], filename=name, headers={"cache-control": "no-store"},
                            background=BackgroundTask(scratch.cleanup))  # fmt: skip

    async def bring(self, request: Request) -> Response:
        """A zip of a session, or of class folders: image by image, so that questions are answered in between. Nothing
        of it is the session's before all of it was read."""
        async with self.bodies.turn():
            with self.desk.session.scratch() as scratch:
                path, staged = Path(scratch) / "import.zip", ImageFolder(Path(scratch))
                with path.open("wb") as file:
                    await self.bodies.file(request, self.desk.limits.archive_bytes, file)
                network = network_of(self.desk.learner.classifier)
                with closing(await self.aside(ArchiveReader, path, self.desk.limits, network)) as reader:
                    keys = [await self.aside(reader.key, listed) for listed in reader.examples]
                    planned = [Example(key, listed.name) for key, listed in zip(keys, reader.examples, strict=True)]
                    await self.at_desk(self.desk.require_mergeable, reader.merge(planned))  # before the longer work
                    kept: list[Example] = []
                    for listed in reader.examples:
                        content = await self.aside(reader.content, listed)
                        name = listed.name or listed.file or ""
                        kept.append(await self.at_desk(self.desk.stage, name, content, staged))
                return await self._after(request, self.desk.merge, reader.merge(kept), staged)

    async def _after(self, request: Request, function: Callable[..., dict[str, Any]], *given: Any) -> Response:
        """What an action did, and the state it led to."""
        asked = request.query_params.get("asked")
        return answer(await self.at_desk(lambda: {**function(*given), "state": self.desk.describe(asked)}))

    def routes(self) -> list[Route]:
        return [
            Route("/", page_file),
            Route("/page/{name}", page_file),
            Route("/api/state", self.state),
            Route("/api/names", self.names),
            Route("/api/actions", self.act, methods=["POST"]),
            Route("/api/examples", self.add, methods=["POST"]),
            Route("/api/ask", self.ask, methods=["POST"]),
            Route("/api/nearest/{key}", self.nearest),
            Route("/api/images/{key}", self.image),
            Route("/api/base/{row:int}", self.base_image),
            Route("/api/check", self.check),
            Route("/api/map", self.map),
            Route("/api/export/{name}", self.export),
            Route("/api/import", self.bring, methods=["POST"]),
        ]

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self._opened()
        yield
        self._side_thread.shutdown(cancel_futures=True)
        self._desk_thread.shutdown()
        self.desk.close()


def build_app(desk: Desk, hosts: list[str], opened: Callable[[], None]) -> Guard:
    """hosts: what a Host header may say, with the port. opened: see `Server`."""
    server = Server(desk, opened)
    handlers: dict[Any, Callable[[Request, Any], Awaitable[Response]]] = {
        RefusalError: refused, HTTPException: unrouted, ActstoreError: failed, Exception: failed,
    }  # fmt: skip
    app = Starlette(routes=server.routes(), exception_handlers=handlers, lifespan=server.lifespan)
    return Guard(app, hosts, desk.session.token)


async def page_file(request: Request) -> Response:
    """Of the page: only names that lie in its folder, compared, never joined to a path."""
    name = request.path_params.get("name", "index.html")
    file = next((file for file in files("predictor.teach").joinpath("page").iterdir() if file.name == name), None)
    kind = PAGE_TYPES.get(name.rpartition(".")[2])
    if file is None or kind is None:
        raise RefusalError(404, "there is nothing here")
    return Response(file.read_bytes(), media_type=kind, headers={"cache-control": "no-cache"})


def answer(value: Any, status: int = 200) -> Response:
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return Response(body, status, {"cache-control": "no-store"}, "application/json")


def picture(data: bytes) -> Response:
    """Named by its content, so that it never changes."""
    return Response(data, media_type="image/webp", headers={"cache-control": "private, max-age=31536000, immutable"})


async def refused(_: Request, error: Any) -> Response:
    return refusal(error)


async def unrouted(_: Request, error: Any) -> Response:
    said = {404: "there is nothing here", 405: "this cannot be done here"}.get(error.status_code, "this is refused")
    return answer({"error": said}, error.status_code)


async def failed(_: Request, error: Any) -> Response:
    """507 where the disk refused, 500 for what should not happen; the page gets a sentence, the terminal the cause."""
    print(f"ppa teach: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    if isinstance(error, StorageError):
        return answer({"error": str(error)}, 507)
    return answer({"error": "this went wrong; the terminal of `ppa teach` says why"}, 500)
