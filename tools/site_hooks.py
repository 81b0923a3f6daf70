"""What mkdocs calls while it builds the documentation site (`hooks` in mkdocs.yml)."""

from __future__ import annotations

from typing import Any


def on_page_content(html: str, **_: Any) -> str:
    """mkdocs-click prints click's mark of a missing default; such a cell of the table is left empty."""
    return html.replace("<code>Sentinel.UNSET</code>", "")
