"""Requests that nobody should send, and the status each is refused with."""

from __future__ import annotations

import hashlib
import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

LIMITS: dict[str, float] = {
    "image_bytes": 2 << 20, "archive_bytes": 4 << 20, "unpacked_bytes": 32 << 20, "json_bytes": 1 << 16, "examples": 30,
    "body_seconds": 1.0,
}  # fmt: skip
JSON = {"Content-Type": "application/json"}
ASK, ADD, ACT, BRING = "/api/ask", "/api/examples?category=cat", "/api/actions", "/api/import"


@dataclass(frozen=True)
class Hostile:
    """body: made when it is sent. headers: None takes one away. HOST and TOKEN stand for the server's own."""

    name: str
    status: int
    path: str = "/api/state"
    method: str = "GET"
    body: Callable[[], bytes] = bytes
    headers: dict[str, Any] = field(default_factory=dict)


def post(name: str, status: int, path: str, body: bytes | Callable[[], bytes], headers: Any = None) -> Hostile:
    return Hostile(name, status, path, "POST", body if callable(body) else lambda: body, headers or {})


def act(name: str, status: int, **action: Any) -> Hostile:
    return post(name, status, ACT, json.dumps(action).encode(), JSON)


def png(width: int, height: int, data: bytes = b"") -> bytes:
    """A PNG that says it is so large, whatever data it has."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def picture(kind: str = "PNG", side: int = 40) -> bytes:
    out = io.BytesIO()
    Image.effect_noise((side, side), 60).convert("RGB").save(out, kind)
    return out.getvalue()


def bomb() -> bytes:
    """150 MB of pixels in 150 KB."""
    return png(7_100, 7_100, zlib.compress(bytes(7_100 * (3 * 7_100 + 1)), 9))


def archive(*files: tuple[str, bytes], labels: Any = None, **options: Any) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        for name, data in files:
            made.writestr(name, data)
        if labels is not None:
            made.writestr("labels.json", labels if isinstance(labels, bytes) else json.dumps(labels))
    return out.getvalue()


def labelled(file: str, key: str = "0" * 64, **more: Any) -> dict[str, Any]:
    return {"version": 1, "categories": [{"name": "cat", "examples": [{"file": file, "key": key, **more}]}]}


def encrypted() -> bytes:
    data = bytearray(archive(("cat/a.png", picture())))
    data[6] |= 1  # the flag in the local header, and in the directory
    data[data.rindex(b"PK\x01\x02") + 8] |= 1
    return bytes(data)


def lying() -> bytes:
    """An entry that unpacks to more than the directory says."""
    data = bytearray(archive(("cat/a.png", bytes(1 << 20))))
    place = data.rindex(b"PK\x01\x02")
    data[place + 24 : place + 28] = struct.pack("<I", 100)
    return bytes(data)


def named_twice() -> bytes:
    data = picture()
    example = {"file": "cat/a.png", "key": hashlib.sha256(data).hexdigest()}
    return archive(("cat/a.png", data), labels={"categories": [{"name": "cat", "examples": [example] * 2}]})


def damaged() -> bytes:
    """Data that no deflate makes, in a zip whose names and sizes are in order."""
    data = bytearray(archive(("cat/a.png", picture())))
    data[30 + len("cat/a.png")] = 0xFF
    return bytes(data)


REQUESTS = [
    Hostile("no token", 401, headers={"Authorization": None}),
    Hostile("a wrong token", 401, headers={"Authorization": "Bearer " + "x" * 32}),
    Hostile("an empty token", 401, headers={"Authorization": "Bearer "}),
    Hostile("a token that is no text", 401, headers={"Authorization": "Bearer \xff\xfe"}),
    Hostile("the token in the address of the API", 401, "/api/state?token=TOKEN", headers={"Authorization": None}),
    Hostile("a cookie of another name", 401, headers={"Authorization": None, "Cookie": "token=TOKEN"}),
    Hostile("a broken cookie", 401, headers={"Authorization": None, "Cookie": "=;;;\x01=a"}),
    Hostile("the page without a token", 401, "/", headers={"Authorization": None}),
    Hostile("the page's code without a token", 401, "/page/main.js", headers={"Authorization": None}),
    Hostile("another host", 421, headers={"Host": "evil.example"}),
    Hostile("another host that leads here", 421, headers={"Host": "evil.example:PORT"}),
    Hostile("another port", 421, headers={"Host": "127.0.0.1:1"}),
    Hostile("no host", 400, headers={"Host": None}),
    Hostile("another origin", 403, headers={"Origin": "http://evil.example"}),
    Hostile("an origin without a name", 403, headers={"Origin": "null"}),
    Hostile("an origin of another port", 403, headers={"Origin": "http://127.0.0.1:1"}),
    Hostile("another scheme", 403, headers={"Origin": "https://HOST"}),
    Hostile("another origin, with the printed address", 403, "/?token=TOKEN", headers={"Origin": "http://evil.example"}),
    Hostile("an image of another page", 403, headers={"Sec-Fetch-Site": "cross-site"}),
    Hostile("a preflight", 403, ACT, "OPTIONS", headers={"Origin": "http://evil.example"}),
    Hostile("a method that is not there", 405, "/api/state", "DELETE"),
    Hostile("reading an action", 405, ACT),
    Hostile("a path out of the page", 404, "/page/../session.py"),
    Hostile("a quoted path out of the page", 404, "/page/%2e%2e%2fsession.py"),
    Hostile("a doubly quoted path", 404, "/page/%252e%252e%252fsession.py"),
    Hostile("Python instead of the page", 404, "/page/__init__.py"),
    Hostile("a path instead of an image", 404, "/api/images/..%2f..%2ftoken"),
    Hostile("the token's file as an image", 404, "/api/images/token"),
    Hostile("an image that is not there", 404, "/api/images/" + "0" * 64),
    Hostile("a path instead of a file to take away", 404, "/api/export/..%2ftoken"),
    Hostile("a row that is not there", 404, "/api/base/99999999999999999999"),
    Hostile("the neighbours of nothing", 404, "/api/nearest/" + "f" * 64),
    post("a length of ten gigabytes", 413, ASK, b"x", {"Content-Length": str(10**10)}),
    post("a length below zero", 400, ASK, b"", {"Content-Length": "-5"}),
    post("a length that is no number", 400, ASK, b"", {"Content-Length": "ten"}),
    post("an image that is too large", 413, ASK, lambda: bytes((2 << 20) + 1)),
    post("chunks that never end", 413, ASK, lambda: (b"10000\r\n" + bytes(1 << 16) + b"\r\n") * 40,
         {"Transfer-Encoding": "chunked"}),
    post("a body that does not come", 408, ASK, b"abc", {"Content-Length": "1000"}),
    post("chunks that do not come", 408, ADD, b"3\r\nabc\r\n", {"Transfer-Encoding": "chunked"}),
    post("JSON that is too large", 413, ACT, lambda: b" " * ((1 << 16) + 1), JSON),
    post("an empty image", 415, ASK, b""),
    post("text for an image", 415, ASK, b"hello" * 100),
    post("a page for an image", 415, ADD, b"<!doctype html><script>alert(1)</script>"),
    post("a drawing with code for an image", 415, ADD, b'<svg xmlns="http://www.w3.org/2000/svg"><script>1</script></svg>'),
    post("half a PNG", 415, ADD, lambda: picture()[:-400]),
    post("half a JPEG", 415, ADD, lambda: picture("JPEG", 200)[:2000]),
    post("noise after a PNG's beginning", 415, ADD, b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8),
    post("pixels without end", 413, ASK, lambda: png(200_000, 200_000)),
    post("more pixels than Pillow likes", 413, ASK, lambda: png(12_000, 12_000)),
    post("a decompression bomb", 413, ADD, bomb),
    post("a category without a name", 422, "/api/examples", picture),
    post("a name of spaces", 422, "/api/examples?category=%20%20", picture),
    post("a name of a thousand letters", 422, "/api/examples?category=" + "x" * 1000, picture),
    post("a name with a control character", 422, "/api/examples?category=a%00b", picture),
    post("the name that is not given", 409, "/api/examples?category=unknown", picture),
    post("no JSON", 400, ACT, b"{", JSON),
    post("JSON that is no text", 400, ACT, b'{"do": "\xff"}', JSON),
    post("JSON without a bottom", 400, ACT, b"[" * 30_000, JSON),
    post("JSON of another type", 415, ACT, b'{"do": "undo"}', {"Content-Type": "text/plain"}),
    post("a form", 415, ACT, b"do=undo", {"Content-Type": "application/x-www-form-urlencoded"}),
    post("a list for an action", 422, ACT, b"[]", JSON),
    act("an action that is not there", 422, do="format the disk"),
    act("an image by JSON", 422, do="add", category="cat", examples=[]),
    act("a field of another kind", 422, do="create", category={"a": 1}),
    act("a field that is missing", 422, do="rename", category="cat"),
    act("an example that is not there", 404, do="remove", keys=["../../token"]),
    act("a category that is not there", 404, do="delete", category="../.."),
    act("nothing to redo", 409, do="redo"),
    post("no zip", 415, BRING, b"PK\x03\x04 nothing of the kind"),
    post("half a zip", 415, BRING, lambda: archive(("cat/a.png", picture()))[:-30]),
    post("a zip that leads out", 422, BRING, lambda: archive(("../../../tmp/evil.png", picture()))),
    post("a zip with an absolute path", 422, BRING, lambda: archive(("/tmp/evil.png", picture()))),
    post("a zip with another system's path", 422, BRING, lambda: archive(("cat\\..\\..\\evil.png", picture()))),
    post("a zip that leads out by its labels", 422, BRING,
         lambda: archive(("cat/a.png", picture()), labels=labelled("../../token"))),
    post("a zip bomb", 413, BRING, lambda: archive(*((f"cat/{one}.png", bytes(8 << 20)) for one in range(5)))),
    post("an image in a zip that is too large", 413, BRING, lambda: archive(("cat/a.png", bytes(3 << 20)))),
    post("a decompression bomb in a zip", 413, BRING, lambda: archive(("cat/a.png", bomb()))),
    post("a zip that lies about sizes", 415, BRING, lying),
    post("a zip of very many files", 413, BRING, lambda: archive(*((f"cat/{one}.png", b"x") for one in range(40)))),
    post("a zip whose labels name very many examples", 413, BRING, lambda: archive(labels={
        "categories": [{"name": "cat", "examples": [{"row": 0}] * 40}]})),
    post("a zip whose labels name a file twice", 422, BRING, named_twice),
    post("a zip of more examples than there is room for", 409, BRING,
         lambda: archive(*((f"cat/{one}.png", picture()) for one in range(31)))),
    post("a zip of a category that the network knows", 409, BRING,
         lambda: archive(("cat/a.png", picture()), ("U+00F1/a.png", picture()))),
    post("a zip with damaged data", 415, BRING, damaged),
    post("a zip with a dot for a name", 422, BRING, lambda: archive((".", b"hello"))),
    post("an encrypted zip", 422, BRING, encrypted),
    post("a zip of nothing", 422, BRING, lambda: archive(("readme.txt", b"hello"))),
    post("a zip whose labels are no JSON", 422, BRING, lambda: archive(labels=b"{")),
    post("a zip whose labels are a list", 422, BRING, lambda: archive(labels=[1, 2])),
    post("a zip with another image than its labels say", 422, BRING,
         lambda: archive(("cat/a.png", picture()), labels=labelled("cat/a.png"))),
    post("a zip that names rows of no classifier", 422, BRING, lambda: archive(labels={
        "categories": [{"name": "cat", "examples": [{"row": 0}]}]})),
    post("a zip with text for an image", 415, BRING, lambda: archive(("cat/a.png", b"hello"))),
    post("a zip that is too large", 413, BRING, lambda: bytes((4 << 20) + 1)),
    Hostile("a header of a hundred kilobytes", 431, headers={"X-Long": "x" * 100_000}),
]  # fmt: skip
