"""What the metadata of a store and of a split says: parse, validate, write back; which names mean nothing. No I/O."""

from __future__ import annotations

import math
import mmap
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Self, get_args

from actstore.errors import InvalidInputError, NotAStoreError

FORMAT_VERSION = 1
CHUNK_BYTES = 32 << 20  # 8192 x 2048 fp16: large enough to stream, small enough to lose in a crash
KEY = "actstore"  # the one attribute that holds all of our metadata
# what new stores declare, as the Zarr conventions have it: whoever knows this uuid knows what KEY holds
CONVENTIONS = "zarr_conventions"
CONVENTION = {
    "uuid": "719e5cba-2555-40b0-8922-f0147ba43f0c",
    "name": KEY,
    "description": "Activations of a network: classes, provenance and splits, as docs/format.md of actstore says",
}
# what a column cannot be called: arrays and axes of a split, what filters know by themselves, and their words
RESERVED = frozenset(
    {
        "activations", "labels", "label", "class", "class_name", "id", "ids", "row", "feature", "path_bytes",
        "path_offsets", "classes", "columns", "class_count", "class_mean", "class_var", "and", "or", "in",
        "not", "none",
    }
)  # fmt: skip

Dtype = Literal["f2", "f4"]
Codec = Literal["raw", "blosc"]
ColumnKind = Literal["bool", "int", "float", "date", "text"]
IndexKind = Literal["ivf", "ivf-sq", "hnsw", "pq"]  # of approximate search
INDEX_KINDS: tuple[IndexKind, ...] = get_args(IndexKind)
SEARCHES = ("auto", "exact", "bounded", "faiss")  # which all give the same answer
SEARCH_METHODS = (*SEARCHES, "approximate", *INDEX_KINDS)
Json = Any  # what json.loads returns
LAYOUT = ("dim", "dtype", "chunk_rows", "codec", "shard_inner_rows")


@dataclass(frozen=True)
class StoreSpec:
    """What holds for all splits of a store."""

    classes: tuple[str, ...]
    dim: int
    dtype: Dtype = "f2"
    chunk_rows: int = 0  # 0: chosen from dim and dtype
    codec: Codec = "raw"
    shard_inner_rows: int | None = None  # rows of an inner chunk when chunk files are shards
    provenance: Mapping[str, Json] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(type(self.dim) is int and self.dim > 0, f"dim must be a positive integer, got {self.dim!r}")
        require(self.dtype in ("f2", "f4"), f"dtype must be 'f2' or 'f4', got {self.dtype!r}")
        require(self.codec in ("raw", "blosc"), f"codec must be 'raw' or 'blosc', got {self.codec!r}")
        object.__setattr__(self, "classes", parse_class_names(self.classes))
        if self.chunk_rows == 0:
            object.__setattr__(self, "chunk_rows", default_chunk_rows(self.dim, self.dtype))
        whole = type(self.chunk_rows) is int and 0 < self.chunk_bytes < 1 << 40
        require(whole, f"chunk_rows must be a whole number of rows in less than 1 TB, got {self.chunk_rows}")
        require(isinstance(self.provenance, Mapping), f"provenance must be an object, got {self.provenance!r}")
        inner = self.shard_inner_rows
        require(
            inner is None or (inner > 0 and self.chunk_rows % inner == 0),
            f"shard_inner_rows must divide chunk_rows {self.chunk_rows}, got {inner}",
        )

    @property
    def is_raw(self) -> bool:
        """True where a chunk file is its rows followed by four bytes of crc32c."""
        return self.codec == "raw" and self.shard_inner_rows is None

    @property
    def row_bytes(self) -> int:
        return self.dim * int(self.dtype[1])

    @property
    def chunk_bytes(self) -> int:
        return self.chunk_rows * self.row_bytes

    def of_split(self, split: SplitSpec) -> Self:
        """As it holds for one split: another layer of the backbone has a dim of its own."""
        return self if split.dim is None else replace(self, dim=split.dim, chunk_rows=split.chunk_rows)

    def new_split(self, dim: int, chunk_rows: int | None = None) -> SplitSpec:
        """What a split begins with: one whose rows are longer or shorter than the store's has chunks of its own."""
        if dim == self.dim:
            return SplitSpec()
        return SplitSpec(dim=dim, chunk_rows=self.whole_pieces(chunk_rows or default_chunk_rows(dim, self.dtype)))

    def whole_pieces(self, rows: int) -> int:
        """As many rows or a few more, so that they fill inner chunks."""
        inner = self.shard_inner_rows or 1
        return -(-rows // inner) * inner

    def to_json(self) -> dict[str, Json]:
        from actstore import __version__

        return {
            "format_version": FORMAT_VERSION,
            "creator": f"actstore {__version__}",
            **{name: getattr(self, name) for name in LAYOUT},
            "classes": list(self.classes),
            "provenance": dict(self.provenance),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Json], where: str) -> Self:
        version = data.get("format_version") if isinstance(data, dict) else None
        if not isinstance(version, int) or version < 1:
            raise NotAStoreError(f"{where} is no activation store: its format version is {version!r}")
        if version > FORMAT_VERSION:
            raise NotAStoreError(
                f"{where} has format version {version}, this actstore reads up to {FORMAT_VERSION}: upgrade actstore"
            )
        try:
            layout = {name: data[name] for name in LAYOUT}
            return cls(tuple(data["classes"]), **layout, provenance=data.get("provenance", {}))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise NotAStoreError(f"{where} has damaged metadata: {error}") from error


@dataclass(frozen=True)
class ColumnSpec:
    """A named value of every row: its type, the crc32c of all values, and for text how many bytes they have."""

    name: str
    kind: ColumnKind
    crc: int = 0
    text_bytes: int = 0

    def __post_init__(self) -> None:
        parse_column_name(self.name)
        require(self.kind in get_args(ColumnKind), f"column {self.name!r} has no known type, got {self.kind!r}")


@dataclass(frozen=True)
class SplitSpec:
    """What is committed of one split. Arrays may already hold more rows: an append in flight."""

    rows: int = 0
    complete: bool = False
    content: str = ""  # identifies the rows, labels, ids and columns; see ledger.content_hash
    labels_crc: int = 0
    ids_crc: int = 0
    has_ids: bool = False
    id_bytes: int = 0  # committed length of path_bytes
    ledger_bytes: int = 0  # committed length of the ledger
    history: tuple[tuple[int, str], ...] = ()  # (rows, content) after each finished build or append
    sources: tuple[Mapping[str, Json], ...] = ()
    dim: int | None = None  # where it is not the store's, with its own chunk_rows
    chunk_rows: int = 0
    columns: tuple[ColumnSpec, ...] = ()  # in the order in which they came

    def to_json(self) -> dict[str, Json]:
        fields = asdict(self)
        if not self.columns:  # said only where there are some: stores without columns stay as they were, byte for byte
            del fields["columns"]
        return fields

    @classmethod
    def from_json(cls, data: Mapping[str, Json], where: str) -> Self:
        try:
            if type(data["rows"]) is not int or not 0 <= data["rows"] < 1 << 48:
                raise ValueError(f"rows is {data['rows']!r}")
            return cls(
                **{
                    **data,
                    "history": tuple((int(rows), str(content)) for rows, content in data["history"]),
                    "sources": tuple(dict(source) for source in data["sources"]),
                    "columns": tuple(ColumnSpec(**column) for column in data.get("columns", ())),
                }
            )
        except (KeyError, TypeError, ValueError) as error:
            raise NotAStoreError(f"{where} has damaged metadata: {error}") from error


def default_chunk_rows(dim: int, dtype: Dtype, rows: int | None = None) -> int:
    """Rows per chunk: about 32 MiB, whole memory pages, and no larger than a small data set needs.

    Whole pages let chunk files be mapped side by side; see mapped_rows.py.
    """
    row_bytes = dim * int(dtype[1])
    page_rows = mmap.PAGESIZE // math.gcd(mmap.PAGESIZE, row_bytes)  # fewest rows that fill whole pages
    wanted = max(1, CHUNK_BYTES // row_bytes)
    if rows is not None:
        wanted = min(wanted, max(1, rows))
        return -(-wanted // page_rows) * page_rows
    return max(1, wanted // page_rows) * page_rows


def remote_chunks(dim: int, dtype: Dtype, chunk_rows: int | None = None) -> tuple[int, int]:
    """Rows of a chunk in a bucket, as wanted or a few more, and of an inner chunk.

    An inner chunk has one row, or as many short ones as make half a KiB: a row is then fetched alone and checked; its
    share of crc and index is 20 bytes. Chunks are whole inner ones, and whole memory pages where those are wanted, so
    that a cache can map them.
    """
    inner, page_rows = max(1, 512 // (dim * int(dtype[1]))), default_chunk_rows(dim, dtype, rows=1)
    rows = chunk_rows or default_chunk_rows(dim, dtype)
    unit = inner if rows % page_rows else math.lcm(inner, page_rows)
    return -(-rows // unit) * unit, inner


def parse_class_names(classes: Sequence[str]) -> tuple[str, ...]:
    """Distinct, non-empty, one-line class names."""
    require(not isinstance(classes, str), f"classes must be a sequence of names, got the string {classes!r}")
    names = tuple(classes)
    for name in names:  # every open comes by here: what is wrong is put into words only where something is
        if not isinstance(name, str):
            raise InvalidInputError(f"class names must be strings, got {name!r}; convert with str()")
        if not name or "\n" in name:
            raise InvalidInputError(f"class name {name!r} is empty or has a line break")
        if not is_unicode(name):
            raise InvalidInputError(f"class name {name!r} is not valid Unicode text; rename it")
    if len(set(names)) != len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise InvalidInputError(f"class name {twice!r} appears twice; class names must be distinct")
    return names


def is_unicode(text: str) -> bool:
    """Whether a text can be written as UTF-8; the name of a file need not be."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def parse_split_name(name: str) -> str:
    require(
        isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", name) is not None,
        f"split name {name!r} must be 1-100 letters, digits, '_', '-' or '.', such as 'train'",
    )
    return name


def parse_column_name(name: str) -> str:
    require(
        isinstance(name, str) and re.fullmatch(r"[^\W\d]\w{0,63}", name) is not None,
        f"column name {name!r} must be 1-64 letters, digits or '_' and begin with a letter, such as 'area'; rename it",
    )
    require(name.lower() not in RESERVED, f"column name {name!r} means something else already; rename it")
    return name


def require(condition: bool, message: str) -> None:
    """Refuse an argument that does not meet a condition."""
    if not condition:
        raise InvalidInputError(message)


_LEFT_BY_SYSTEMS = frozenset(
    {"thumbs.db", "desktop.ini", "__macosx", "@eadir", "$recycle.bin", "system volume information", "lost+found"}
)


def is_stray(name: str) -> bool:
    """Whether a file or folder of this name is to be passed over without a word.

    Hidden names (`.DS_Store`, `._x` of macOS, `.x.swp` of vim, `.git`), `x~`, `#x#` and `~$x` of editors, and what
    Windows, macOS and network disks put everywhere.
    """
    if name.startswith((".", "~$")) or name.lower() in _LEFT_BY_SYSTEMS:
        return True
    return len(name) > 1 and (name.endswith("~") or (len(name) > 2 and name.startswith("#") and name.endswith("#")))


def has_stray(parts: Iterable[str]) -> bool:
    """Whether a path leads through something stray, or is stray itself."""
    return any(is_stray(part) for part in parts)
