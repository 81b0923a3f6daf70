"""An HTML page that holds everything it shows, style, script and images: nothing is loaded from elsewhere."""

from __future__ import annotations

import base64
import io
from html import escape
from importlib.resources.abc import Traversable

from PIL import Image


def html_page(
    title: str, about: str, content: str, style: Traversable, script: Traversable | None = None, kind: str = ""
) -> str:
    """title, about: plain text. content: HTML. kind: by which the file is known later, such as "actstore audit"."""
    generator = f'<meta name="generator" content="{escape(kind)}">\n' if kind else ""
    code = "" if script is None else f"<script>{script.read_text('utf-8')}</script>\n"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
{generator}<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>{style.read_text("utf-8")}</style>
</head>
<body>
<header><h1>{escape(title)}</h1>
<p>{escape(about)}</p></header>
<main>
{content}
</main>
{code}</body>
</html>
"""


def jpeg_bytes(image: Image.Image) -> bytes:
    data = io.BytesIO()
    image.save(data, "JPEG", quality=80)
    return data.getvalue()


def data_address(data: bytes, kind: str = "jpeg") -> str:
    """What stands in `src` for an image inside of the page."""
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"
