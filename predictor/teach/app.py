"""The server: routes in, JSON out. One thread works at the desk, another at what takes longer and only reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from importlib.resources import files
from typing import Any, ParamSpec, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from actstore.errors import ActstoreError
from predictor.teach.bodies import Bodies
from predictor.teach.desk import Desk
from predictor.teach.guard import Guard
from predictor.teach.refusal import RefusalError
from predictor.teach.responses import answer, failed, picture, refused, unrouted
from predictor.teach.taking_away import TakingAway

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
KINDS = {".html": "text/html; charset=utf-8", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class Server:
    """Routes as methods; `app` is what uvicorn runs."""

    def __init__(self, desk: Desk) -> None:
        self.desk, self.bodies = desk, Bodies(desk.limits)
        self._desk_thread, self._side_thread = (ThreadPoolExecutor(1, name) for name in ("desk", "side"))
        self.away = TakingAway(desk, self.at_desk, self.aside)

    async def at_desk(
        self, function: Callable[Arguments, Result], *given: Arguments.args, **named: Arguments.kwargs
    ) -> Result:
        """Work on the session: one thing at a time, in the order of arrival."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._desk_thread, partial(function, *given, **named))

    async def aside(
        self, function: Callable[Arguments, Result], *given: Arguments.args, **named: Arguments.kwargs
    ) -> Result:
        """Longer work on a snapshot."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._side_thread, partial(function, *given, **named))

    async def state(self, request: Request) -> Response:
        return answer(await self.at_desk(self.desk.describe, request.query_params.get("asked")))

    async def names(self, _: Request) -> Response:
        return answer(await self.at_desk(self.desk.names))

    async def act(self, request: Request) -> Response:
        data = await self.bodies.json(request)
        return answer(await self._after(request, self.desk.act, data))

    async def add(self, request: Request) -> Response:
        async with self.bodies.turn():
            data = await self.bodies.whole(request, self.desk.limits.image_bytes)
            category, name = (request.query_params.get(key, "") for key in ("category", "name"))
            return answer(await self._after(request, self.desk.add, category, name, data))

    async def ask(self, request: Request) -> Response:
        async with self.bodies.turn():
            data = await self.bodies.whole(request, self.desk.limits.image_bytes)
            return answer(await self.at_desk(self.desk.ask, request.query_params.get("name", ""), data))

    async def nearest(self, request: Request) -> Response:
        return answer(await self.at_desk(self.desk.nearest, request.path_params["key"]))

    async def image(self, request: Request) -> Response:
        made = await self.aside(self.desk.thumbnail, request.path_params["key"])
        return picture(made)

    async def base_image(self, request: Request) -> Response:
        return picture(await self.aside(self.desk.base_thumbnail, request.path_params["row"]))

    async def _after(self, request: Request, function: Callable[..., Any], *given: Any) -> Any:
        """What an action did, and the state it led to."""
        asked = request.query_params.get("asked")
        return await self.at_desk(lambda: {**function(*given), "state": self.desk.describe(asked)})

    def routes(self) -> list[Route]:
        away = self.away
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
            Route("/api/check", away.check),
            Route("/api/map", away.plane),
            Route("/api/export/{name}", away.export),
            Route("/api/import", partial(away.bring, bodies=self.bodies), methods=["POST"]),
        ]

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        yield
        self._side_thread.shutdown(cancel_futures=True)
        self._desk_thread.shutdown()
        self.desk.close()


def build_app(desk: Desk, hosts: list[str]) -> Guard:
    """hosts: what a Host header may say, with the port."""
    server = Server(desk)
    handlers: dict[Any, Callable[[Request, Any], Awaitable[Response]]] = {
        RefusalError: refused, HTTPException: unrouted, ActstoreError: failed, Exception: failed,
    }  # fmt: skip
    app = Starlette(routes=server.routes(), exception_handlers=handlers, lifespan=server.lifespan)
    return Guard(app, hosts, desk.session.token)


async def page_file(request: Request) -> Response:
    """Of the page: only names that lie in its folder, compared, never joined to a path."""
    name = request.path_params.get("name", "index.html")
    found = next((file for file in files("predictor.teach").joinpath("page").iterdir() if file.name == name), None)
    kind = KINDS.get(f".{name.rpartition('.')[2]}")
    if found is None or kind is None:
        raise RefusalError(404, "there is nothing here")
    return Response(found.read_bytes(), media_type=kind, headers={"cache-control": "no-cache"})
