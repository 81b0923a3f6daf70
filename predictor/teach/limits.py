"""How much a page may ask of this machine, and how it is refused what is more."""

from __future__ import annotations

from dataclasses import dataclass

from actstore.errors import InvalidInputError

MB = 1 << 20
NAME_LENGTH = 80  # of a category, in characters


@dataclass(frozen=True)
class Limits:
    """Bytes, pixels, counts and seconds. decodes: images decoded at once, each of up to `pixels` (4 bytes of memory
    each, three times over where there is transparency). waiting: requests with a body that may wait for their turn."""

    image_bytes: int = 40 * MB
    json_bytes: int = 1 * MB
    archive_bytes: int = 1024 * MB
    unpacked_bytes: int = 2048 * MB
    pixels: int = 50_000_000
    examples: int = 5_000
    categories: int = 1_000
    decodes: int = 1
    bodies: int = 4
    waiting: int = 32
    body_seconds: float = 60.0
    connections: int = 64


class RefusalError(InvalidInputError):
    """A request that is not granted: one sentence for the person; status: of HTTP, 4xx, for the browser."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
