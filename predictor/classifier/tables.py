"""Results as people see them: columns of text, a table of a notebook, a data frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from actstore.errors import InvalidInputError

if TYPE_CHECKING:
    import pandas


def text_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Columns aligned: numbers right, text left."""
    columns = [_aligned(name, [row[place] for row in rows]) for place, name in enumerate(header)]
    return "\n".join("  ".join(cells).rstrip() for cells in zip(*columns, strict=True))


def html_table(
    header: Sequence[str], rows: Sequence[Sequence[Any]], before: Sequence[str] = (), after: Sequence[str] = ()
) -> str:
    """before, after: paragraphs."""
    heads = "".join(f"<th>{escape(name)}</th>" for name in header)
    lines = ["".join(f"<td>{escape(str(cell))}</td>" for cell in row) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    said = ["".join(f"<p>{escape(text)}</p>" for text in texts) for texts in (before, after)]
    return f"{said[0]}<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>{said[1]}"


def to_pandas(records: Sequence[Mapping[str, Any]]) -> pandas.DataFrame:
    try:
        import pandas
    except ModuleNotFoundError:
        raise InvalidInputError("a data frame needs pandas: pip install 'actstore[analysis]'") from None
    return pandas.DataFrame(list(records))


def _aligned(name: str, values: Sequence[Any]) -> list[str]:
    cells = [name, *map(str, values)]
    width = max(map(len, cells))
    is_numeric = bool(values) and all(isinstance(value, int | float) for value in values)
    return [cell.rjust(width) if is_numeric else cell.ljust(width) for cell in cells]
