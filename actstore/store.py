"""A store on disk or in a bucket: its classes, its splits, and a writer for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from actstore.errors import (
    DamagedError,
    IncompleteError,
    InvalidInputError,
    MissingSplitError,
    NoMetadataError,
    NotAStoreError,
    ReplacedError,
)
from actstore.layout.columns import Column, Texts
from actstore.layout.metadata import (
    ACTIVATIONS,
    change_attributes,
    create_group,
    read_attributes,
    require_free,
    require_same_store,
    stores_inside,
)
from actstore.progress import human_bytes
from actstore.reading.mapped_rows import can_map
from actstore.spec import (
    CONVENTION,
    CONVENTIONS,
    KEY,
    Codec,
    Dtype,
    Json,
    SplitSpec,
    StoreSpec,
    default_chunk_rows,
    parse_split_name,
    remote_chunks,
)
from actstore.split import Split
from actstore.storage.atomic_file import storage_errors
from actstore.storage.object_path import DEFAULT_LIMIT, CacheSpec
from actstore.storage.place import AnyPlace, Place, parse_place
from actstore.writing.chunk_writer import Pending

if TYPE_CHECKING:
    from actstore.writing.split_writer import SplitWriter


_MOST_DISTINCT = 10_000  # texts that are counted
_TYPES = {"f2": "float16", "f4": "float32"}


class ActivationStore(Mapping[str, Split]):
    """A store of activations: a mapping from the names of its splits to their rows.

    `store["train"]` opens a split for reading, `store.writer("train")` adds rows to it, and `list(store)` names the
    splits. `actstore.open` opens a store; `build`, `from_arrays` and `create` make one.

    Attributes:
        path: where the store lies, in a folder or in a bucket.
        spec: what the metadata of the store says.
        checked: whether every chunk is compared with its checksum before rows are first taken from it.

    Raises:
        MissingSplitError: `store[name]` was asked for a split that the store does not have.
        IncompleteError: the build of this split has not finished.

    Examples:
        >>> list(store)
        ['train', 'val']
        >>> store["train"].shape
        (40, 8)
    """

    def __init__(self, path: Place, spec: StoreSpec, checked: bool = False) -> None:
        self.path = path
        self.spec = spec
        self.checked = checked

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes; label i stands for `classes[i]`."""
        return self.spec.classes

    @property
    def dim(self) -> int:
        """The number of values in a row, unless a split has a `dim` of its own."""
        return self.spec.dim

    @property
    def splits(self) -> dict[str, SplitSpec]:
        """What is committed of every split, by its name; splits that are not complete are in it too."""
        splits = {}
        for entry in self.entries():
            if (entry / "zarr.json").exists():
                attributes = read_attributes(entry)
                if KEY in attributes:
                    splits[entry.name] = SplitSpec.from_json(attributes[KEY], str(entry))
        return splits

    def entries(self) -> list[Place]:
        """The folders inside of the store, those of splits and any others."""
        try:
            return [*self.path.children()]
        except FileNotFoundError:
            raise ReplacedError(f"{self.path} was replaced or removed since it was opened; open it again") from None

    def __getitem__(self, name: str) -> Split:
        splits = self.splits
        if name not in splits:
            have = ", ".join(splits) or "none yet"
            raise MissingSplitError(f"{self.path} has no split {name!r}; it has: {have}")
        if not splits[name].complete:
            raise IncompleteError(
                f"split {name!r} of {self.path} is not complete; repeat the command that builds it, it resumes"
            )
        return Split(self.path, name, self.spec.of_split(splits[name]), splits[name], checked=self.checked)

    def __contains__(self, name: object) -> bool:
        return name in self.splits

    def __iter__(self) -> Iterator[str]:
        return iter(self.splits)

    def __len__(self) -> int:
        return len(self.splits)

    def __bool__(self) -> bool:
        return True  # also one that has no split yet

    __eq__, __hash__ = object.__eq__, object.__hash__  # two stores are equal where they are one object

    def writer(
        self,
        split: str,
        *,
        source: Mapping[str, Json] | None = None,
        resume: bool = False,
        restart: bool = False,
        dim: int | None = None,
    ) -> SplitWriter:
        """Open a split for adding rows: a new split, an interrupted one or a finished one.

        Use the writer in a `with` block, which commits at its end. `append` takes activations (n, dim), and with them
        labels (n,), ids (n,) and columns, a dictionary of arrays (n,).

        Args:
            split: name of the split.
            source: what identifies the origin of the rows; an interrupted build resumes when it is given the same
                source.
            resume: without a source, say that the rows to come follow those at `writer.position`.
            restart: drop the rows of an interrupted build instead of resuming it.
            dim: length of the rows of a new split, where it differs from the store's, such as that of another layer.

        Returns:
            A writer that holds the lock of the split until it is closed.

        Raises:
            LockedError: another process is writing to the split.
            IncompleteError: the split is an interrupted build of another source, and neither resume nor restart was
                given.

        Examples:
            >>> with store.writer("test") as writer:
            ...     writer.append(val[:5], labels=val.labels[:5])
            >>> len(store["test"])
            5
        """
        from actstore.writing.split_writer import SplitWriter  # brings torch: a reader must not wait for it

        new = self.spec.new_split(self.dim if dim is None else dim)
        return SplitWriter(self.path, self.spec, parse_split_name(split), source, resume, restart, new)

    def unfinished_rows(self, split: str) -> int:
        """Count the rows of an interrupted or running build that are safe on disk but not committed.

        Args:
            split: name of the split.
        """
        return Pending(self.path.with_cache(None) / split / ACTIVATIONS).count_rows(self.spec, self.splits[split])

    def remove_leftovers(self, split: str) -> None:
        """Finish cleaning up after a build that was killed just after its commit.

        Args:
            split: name of the split.
        """
        Pending(self.path.with_cache(None) / split / ACTIVATIONS).remove_left_over(lambda: self.splits[split])

    def add_classes(self, names: Sequence[str]) -> None:
        """Append names of classes; those that the store has already are passed over.

        The labels of existing rows keep their meaning, also while other processes add classes.

        Args:
            names: names to append, in the order of their labels.

        Examples:
            >>> store.add_classes(["eel"])
            >>> store.classes
            ('ant', 'bee', 'cat', 'dog', 'eel')
        """

        def extended(spec: StoreSpec) -> StoreSpec:
            known = set(spec.classes)
            return replace(spec, classes=(*spec.classes, *(name for name in names if name not in known)))

        self._change(extended)

    def add_provenance(self, **facts: Json) -> None:
        """Record facts about where the rows come from, such as the network and its weights.

        Args:
            **facts: values that JSON can hold; a fact of the same name is replaced.
        """
        self._change(lambda spec: replace(spec, provenance={**spec.provenance, **facts}))

    def _change(self, change: Callable[[StoreSpec], StoreSpec]) -> None:
        """Read, change and write the store's metadata while no other process does."""

        def changed(attributes: dict[str, Json]) -> dict[str, Json]:
            before = StoreSpec.from_json(attributes[KEY], str(self.path))
            require_same_store(self.path, self.spec, before)
            self.spec = change(before)
            return attributes if self.spec == before else {**attributes, KEY: self.spec.to_json()}

        with self.path.changing():
            change_attributes(self.path, changed)

    def unlabelled_rows(self) -> dict[str, int]:
        """Count the rows without a label in every finished split.

        Returns:
            The number of such rows by the name of the split.
        """
        complete = [name for name, split in self.splits.items() if split.complete]
        return {name: len(self[name]) - int(self[name].class_index.counts.sum()) for name in complete}

    def classes_train_lacks(self) -> dict[str, list[str]]:
        """Find classes that other splits have rows of, but `train` has none of.

        Returns:
            The names of these classes by split; empty where there is no `train`.
        """
        from actstore.images.image_set import classes_train_lacks

        complete = [name for name, split in self.splits.items() if split.complete]
        counts = {name: self[name].class_index.counts for name in complete}
        return classes_train_lacks({name: [self.classes[label] for label in count.nonzero()[0]]
                                    for name, count in counts.items()})  # fmt: skip

    def describe(self, classes: bool = False) -> dict[str, Any]:
        """Collect the size, layout, provenance and splits of the store, as `actstore info --json` prints them.

        Args:
            classes: also count the rows of every class.

        Returns:
            A dictionary that JSON can hold.

        Examples:
            >>> store.describe()["splits"][0]["rows"]
            40
        """
        spec, splits = self.spec, self.splits
        layout = {"chunk_rows": spec.chunk_rows, "chunk_bytes": spec.chunk_bytes, "codec": spec.codec}
        if spec.shard_inner_rows:
            layout["shard_inner_rows"] = spec.shard_inner_rows
        facts = {
            "store": str(self.path),
            "dim": spec.dim,
            "dtype": spec.dtype,
            "classes": len(spec.classes),
            "layout": layout,
            "splits": [_describe_split(self, name, split) for name, split in splits.items()],
            "provenance": dict(spec.provenance),
            "conventions": read_attributes(self.path).get(CONVENTIONS, []),
        }
        if classes:
            complete = [name for name, split in splits.items() if split.complete]
            counts = {name: self[name].class_index.counts.tolist() for name in complete}
            facts["class_rows"] = {name: dict(zip(self.classes, counts[name], strict=True)) for name in complete}
        return facts

    def __repr__(self) -> str:
        return f"<ActivationStore {brief_line(self.path, self.spec, self.splits)}>"

    def _repr_html_(self) -> str:
        return brief_table(self.path, self.spec, self.splits)


def open(  # noqa: A001
    path: AnyPlace,
    cache: str | Path | None = None,
    cache_bytes: int = DEFAULT_LIMIT,
    checked: bool = False,
) -> ActivationStore:
    """Open an existing store.

    Args:
        path: a folder, or an address such as `s3://BUCKET/NAME`.
        cache: a folder that keeps chunks of a remote store, so that they can be memory-mapped.
        cache_bytes: the most that the cache holds.
        checked: compare every chunk with its checksum before rows are first taken from it. Passes over all rows, such
            as means, exports and the building of indexes, always do so; for `take` it costs reading whole chunks.

    Returns:
        The store. No row is read yet.

    Raises:
        InvalidInputError: what is given is no path.
        NotAStoreError: there is nothing at this path, or it is not an activation store.
        DamagedError: its metadata cannot be read.

    Examples:
        >>> actstore.open("animals.zarr").dim
        8
    """
    if not isinstance(path, AnyPlace):
        raise InvalidInputError(f"expected a store or the path of one, got {type(path).__name__}")
    place = parse_place(path, None if cache is None else CacheSpec(Path(cache), cache_bytes))
    if place.local_path is not None and not place.exists():
        raise NotAStoreError(f"{place} does not exist; make one with `actstore import` or `actstore build`")
    try:
        attributes = read_attributes(place)
    except NoMetadataError as error:
        inside = [] if place.local_path is None else stores_inside(place.local_path)
        more = f"; in it are the stores {', '.join(map(str, inside))}" if inside else ""
        raise NoMetadataError(f"{error}{more}") from None
    if KEY not in attributes:
        raise NotAStoreError(f"{place / 'zarr.json'} is Zarr, but not an activation store (no '{KEY}' attribute)")
    return ActivationStore(place, StoreSpec.from_json(attributes[KEY], str(place)), checked)


def create(
    path: AnyPlace,
    *,
    classes: Sequence[str],
    dim: int,
    dtype: Dtype = "f2",
    chunk_rows: int | None = None,
    codec: Codec = "raw",
    shard_inner_rows: int | None = None,
    provenance: Mapping[str, Json] | None = None,
    rows: int | None = None,
) -> ActivationStore:
    """Create an empty store at a path where nothing lies yet.

    Args:
        path: where the store goes, a folder or an address such as `s3://BUCKET/NAME`.
        classes: names of the classes; label i stands for `classes[i]`.
        dim: number of values in a row.
        dtype: "f2" (float16) or "f4" (float32).
        chunk_rows: rows in a chunk file, by default about 32 MiB of them.
        codec: "raw" can be memory-mapped; "blosc" saves 8 to 10% of the space and reads single rows far more slowly.
        shard_inner_rows: makes each chunk file a shard of pieces of so many rows, each with a checksum of its own.
            Stores in a bucket do so by default; 0 asks for none.
        provenance: facts about where the rows come from.
        rows: how many rows the longest split will have, where that is known; a small store then has small chunks.

    Returns:
        The store, which has no split yet; `writer` adds them.

    Raises:
        NotAStoreError: something lies at this path already.

    Examples:
        >>> new = actstore.create("new.zarr", classes=["ant", "bee"], dim=8)
        >>> list(new)
        []
    """
    place = parse_place(path)
    require_free(place)
    if rows is not None:
        chunk_rows = chunk_rows or default_chunk_rows(dim, dtype, rows)
    if shard_inner_rows is None and codec == "raw" and place.local_path is None:
        chunk_rows, shard_inner_rows = remote_chunks(dim, dtype, chunk_rows)
    spec = StoreSpec(
        classes=tuple(classes),
        dim=dim,
        dtype=dtype,
        chunk_rows=chunk_rows or 0,
        codec=codec,
        shard_inner_rows=shard_inner_rows or None,
        provenance=dict(provenance or {}),
    )
    if place.local_path is not None:
        with storage_errors(place.local_path):
            place.local_path.mkdir(parents=True, exist_ok=True)
    with place.changing():
        require_free(place)  # of two that make a store here at once, one is refused
        create_group(place, {KEY: spec.to_json(), CONVENTIONS: [CONVENTION]})
    return ActivationStore(place, spec)


def _describe_split(store: ActivationStore, name: str, split: SplitSpec) -> dict[str, Any]:
    path, spec, columns = store.path, store.spec.of_split(split), []
    opened = store[name] if split.columns and split.complete else None
    for column in split.columns:
        try:
            columns += [] if opened is None else [{"name": column.name, **_summary(opened.columns.stored(column.name))}]
        except DamagedError as error:  # what is sound is shown all the same
            columns.append({"name": column.name, "type": column.kind, "damaged": str(error)})
    chunks = -(-split.rows // spec.chunk_rows)
    return {
        "split": name,
        "rows": split.rows,
        "complete": split.complete,
        "unfinished_rows": store.unfinished_rows(name),
        "bytes": (path / name).tree_size(),
        "dim": spec.dim,
        "chunks": chunks,
        "mapped": path.local_path is not None and spec.is_raw and can_map(spec.chunk_bytes, chunks),
        "ids": split.has_ids,
        "means": (path / name / "class_mean" / "zarr.json").exists(),
        "content": split.content,
        "sources": [dict(source) for source in split.sources],
        "columns": columns,
    }


def brief_line(path: object, spec: StoreSpec, splits: Mapping[str, SplitSpec]) -> str:
    """A repr: of all splits of a store, or of one."""
    rows = ", ".join(f"{name}: {split.rows:,}{'' if split.complete else '+'} rows" for name, split in splits.items())
    return f"{path}: {rows or 'no rows yet'}, dim {spec.dim}, {_TYPES[spec.dtype]}, {len(spec.classes):,} classes"


def brief_table(path: object, spec: StoreSpec, splits: Mapping[str, SplitSpec]) -> str:
    """The same as a table in HTML. Sizes are those of the values, so that no folder is walked."""
    header = ("split", "rows", "dim", "type", "size", "complete")
    lines = [_cells(name, spec.of_split(split), split) for name, split in splits.items()]
    network = spec.provenance.get("backbone")
    made = f"activations of {network}" if network else "imported rows"
    caption = f"<b>{escape(str(path))}</b>: {len(spec.classes):,} classes, {escape(str(made))}"
    head = "".join(f"<th>{name}</th>" for name in header)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in line)}</tr>" for line in lines)
    return f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cells(name: str, spec: StoreSpec, split: SplitSpec) -> Sequence[str]:
    size = human_bytes(split.rows * spec.row_bytes)
    return name, f"{split.rows:,}", f"{spec.dim:,}", _TYPES[spec.dtype], size, "yes" if split.complete else "no"


def _summary(column: Column) -> dict[str, Json]:
    """Type, how many have no value, and the range of numbers and dates or the number of distinct texts."""
    missing = column.missing()
    facts: dict[str, Json] = {"type": column.kind, "missing": int(missing.sum())}
    if isinstance(column.stored, Texts):
        distinct: set[str] = set()
        for text in column.stored:
            distinct.add(text)
            if len(distinct) > _MOST_DISTINCT:
                break
        is_more = len(distinct) > _MOST_DISTINCT
        distinct.discard("")
        return facts | {"distinct": min(len(distinct), _MOST_DISTINCT), "distinct_is_more": is_more}
    present = column.take(np.flatnonzero(~missing)).values()
    if not len(present):
        return facts | {"smallest": None, "largest": None}
    ends = present.min(), present.max()
    plain = [str(end).removesuffix("T00:00:00.000000") if column.kind == "date" else end.item() for end in ends]
    return facts | {"smallest": plain[0], "largest": plain[1]}
