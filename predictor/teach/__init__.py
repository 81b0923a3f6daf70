"""Teaching by showing: a session folder, the network behind it, and the local page on which a person works with both.

Imports `classifier` and what stands above it; starlette and uvicorn are imported only here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actstore.lazy import lazily

if TYPE_CHECKING:
    from predictor.teach.serving import serve
    from predictor.teach.session import OtherStartError, begin_session, write_opening

__getattr__, __dir__ = lazily(__name__)
