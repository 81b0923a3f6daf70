"""A request that is not granted: one sentence for the person, one status for the browser."""

from __future__ import annotations

from actstore.errors import InvalidInputError


class RefusalError(InvalidInputError):
    """status: of HTTP, 4xx."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
