"""A session at an address of this machine until Ctrl-C: routes in, JSON out.

One thread works on the session, another at what takes longer and only reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from actstore.errors import ActstoreError, InvalidInputError, StorageError
from predictor.teach.actions import Example, RefusalError
from predictor.teach.answers import Network, place_points, review
from predictor.teach.archives import MEDIA_TYPES, ArchiveReader, network_of, write_file
from predictor.teach.security import Limits, RequestBodies, Security, refusal
from predictor.teach.service import TeachService
from predictor.teach.session import ImageFolder, Session

Result = TypeVar("Result")
PAGE_TYPES = {"html": "text/html; charset=utf-8", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}

PORT = 8777
LIMITS = Limits()
LOCAL = ("127.0.0.1", "localhost", "::1")
EVERYWHERE = ("0.0.0.0", "::")


class Server:
    """Routes as methods."""

    def __init__(self, service: TeachService, opened: Callable[[], None] = lambda: None) -> None:
        """opened: called when requests are about to be answered."""
        self.service, self.bodies, self._opened = service, RequestBodies(service.limits), opened
        self._session_thread, self._side_thread = (ThreadPoolExecutor(1, name) for name in ("service", "side"))

    def in_session(self, function: Callable[..., Result], *given: Any) -> Awaitable[Result]:
        """Work on the session: one thing at a time, in the order of arrival."""
        return asyncio.get_running_loop().run_in_executor(self._session_thread, function, *given)

    def aside(self, function: Callable[..., Result], *given: Any) -> Awaitable[Result]:
        """Longer work on a snapshot."""
        return asyncio.get_running_loop().run_in_executor(self._side_thread, function, *given)

    async def state(self, request: Request) -> Response:
        return answer(await self.in_session(self.service.describe, request.query_params.get("asked")))

    async def names(self, _: Request) -> Response:
        return answer(await self.in_session(self.service.names))

    async def act(self, request: Request) -> Response:
        return await self._after(request, self.service.act, await self.bodies.json(request))

    async def add(self, request: Request) -> Response:
        async with self.bodies.turn():
            data = await self.bodies.whole(request, self.service.limits.image_bytes)
            category, name = (request.query_params.get(key, "") for key in ("category", "name"))
            return await self._after(request, self.service.add, category, name, data)

    async def ask(self, request: Request) -> Response:
        async with self.bodies.turn():
            data = await self.bodies.whole(request, self.service.limits.image_bytes)
            return answer(await self.in_session(self.service.ask, request.query_params.get("name", ""), data))

    async def nearest(self, request: Request) -> Response:
        return answer(await self.in_session(self.service.nearest, request.path_params["key"]))

    async def image(self, request: Request) -> Response:
        return picture(await self.aside(self.service.thumbnail, request.path_params["key"]))

    async def base_image(self, request: Request) -> Response:
        return picture(await self.aside(self.service.base_thumbnail, request.path_params["row"]))

    async def check(self, _: Request) -> Response:
        return answer(await self.aside(review, *await self.in_session(self.service.snapshot)))

    async def map(self, request: Request) -> Response:
        way = "neighbours" if request.query_params.get("way") == "neighbours" else "axes"
        return answer(await self.aside(place_points, *await self.in_session(self.service.snapshot), way))

    async def export(self, request: Request) -> Response:
        name, service = request.path_params["name"], self.service
        if name not in MEDIA_TYPES:
            raise RefusalError(404, "there is nothing here")
        snapshot = await self.in_session(service.snapshot)
        scratch = service.session.scratch()
        path = Path(scratch.name) / name
        try:
            await self.aside(write_file, path, *snapshot, service.session.images, service.network.weights)
        except BaseException:
            scratch.cleanup()
            raise
        return FileResponse(path, media_type=MEDIA_TYPES[name], filename=name, headers={"cache-control": "no-store"},
                            background=BackgroundTask(scratch.cleanup))  # fmt: skip

    async def bring(self, request: Request) -> Response:
        """A zip of a session, or of class folders: image by image, so that questions are answered in between. Nothing
        of it is the session's before all of it was read."""
        async with self.bodies.turn():
            with self.service.session.scratch() as scratch:
                path, staged = Path(scratch) / "import.zip", ImageFolder(Path(scratch))
                with path.open("wb") as file:
                    await self.bodies.file(request, self.service.limits.archive_bytes, file)
                network = network_of(self.service.classifier)
                with closing(await self.aside(ArchiveReader, path, self.service.limits, network)) as reader:
                    keys = [await self.aside(reader.key, listed) for listed in reader.examples]
                    planned = [Example(key, listed.name) for key, listed in zip(keys, reader.examples, strict=True)]
                    await self.in_session(
                        self.service.require_mergeable, reader.merge(planned)
                    )  # before the longer work
                    kept: list[Example] = []
                    for listed in reader.examples:
                        content = await self.aside(reader.content, listed)
                        name = listed.name or listed.file or ""
                        kept.append(await self.in_session(self.service.stage, name, content, staged))
                return await self._after(request, self.service.merge, reader.merge(kept), staged)

    async def _after(self, request: Request, function: Callable[..., dict[str, Any]], *given: Any) -> Response:
        """What an action did, and the state it led to."""
        asked = request.query_params.get("asked")
        return answer(await self.in_session(lambda: {**function(*given), "state": self.service.describe(asked)}))

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
        self._session_thread.shutdown()
        self.service.close()


def build_app(service: TeachService, hosts: list[str], opened: Callable[[], None]) -> Security:
    """hosts: what a Host header may say, with the port. opened: see `Server`."""
    server = Server(service, opened)
    handlers: dict[Any, Callable[[Request, Any], Awaitable[Response]]] = {
        RefusalError: refused, HTTPException: unrouted, ActstoreError: failed, Exception: failed,
    }  # fmt: skip
    app = Starlette(routes=server.routes(), exception_handlers=handlers, lifespan=server.lifespan)
    return Security(app, hosts, service.session.token)


async def page_file(request: Request) -> Response:
    """Of the page: only names that lie in its folder, compared, never joined to a path."""
    name = request.path_params.get("name", "index.html")
    file = next((file for file in files("predictor.teach").joinpath("page").iterdir() if file.name == name), None)
    kind = PAGE_TYPES.get(name.rpartition(".")[2])
    if file is None or kind is None:
        raise RefusalError(404, "there is nothing here")
    return Response(file.read_bytes(), media_type=kind, headers={"cache-control": "no-cache"})


def answer(value: Any, status: int = 200) -> Response:
    return JSONResponse(value, status, {"cache-control": "no-store"})


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


def serve(
    folder: Path, host: str, port: int | None, weights: Path | None, device: str,
    opened: Callable[[str, TeachService], None], limits: Limits = LIMITS,
) -> None:  # fmt: skip
    """opened: called with the address when requests will be answered. port: None takes PORT, or any where that
    is taken."""
    session = Session(folder)  # first: a second server on it is refused before the network is loaded
    try:
        service = TeachService(session, Network(session.start.about.get("network", {}), weights, device), limits)
    except BaseException:
        session.close()
        raise
    try:
        listening = _listen(host, port)
    except BaseException:
        service.close()
        raise
    number = listening.getsockname()[1]
    shown = socket.gethostname() if host in EVERYWHERE else host
    address = f"http://{_bracketed(shown)}:{number}/?token={session.token}"
    app = build_app(service, _hosts(host, number), lambda: opened(address, service))
    config = uvicorn.Config(
        app, http="h11", ws="none", lifespan="on", access_log=False, log_level="error", server_header=False,
        proxy_headers=False, limit_concurrency=limits.connections, timeout_keep_alive=30, timeout_graceful_shutdown=5,
    )  # fmt: skip
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is how it ends
        uvicorn.Server(config).run(sockets=[listening])


def _listen(host: str, port: int | None) -> socket.socket:
    is_v6 = ":" in host
    family, is_dual = socket.AF_INET6 if is_v6 else socket.AF_INET, is_v6 and socket.has_dualstack_ipv6()
    tries = (PORT, 0) if port is None else (port,)
    for number in tries:
        try:
            return socket.create_server((host, number), family=family, dualstack_ipv6=is_dual)
        except OSError as error:
            refusal = error
    raise InvalidInputError(
        f"cannot listen at {host}, port {tries[-1]}: {refusal.strerror or refusal}; choose another --port"
    )


def _hosts(host: str, port: int) -> list[str]:
    """What a browser may send as Host: the names of this machine, or the one address that was asked for."""
    if host in EVERYWHERE:
        own, addresses = socket.gethostname(), list[str]()
        with contextlib.suppress(OSError):
            addresses = [str(info[4][0]).partition("%")[0] for info in socket.getaddrinfo(own, None)]
        names: tuple[str, ...] = (*LOCAL, own, own.lower(), f"{own.lower()}.local", *addresses)
    else:
        names = (*LOCAL, host) if host.lower() in LOCAL else (host,)
    return [f"{_bracketed(name)}:{port}" for name in dict.fromkeys(names)]


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
