"""A store on disk or in a bucket: its classes, its splits, and a writer for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from math import lcm
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actstore.errors import IncompleteError, LockedError, MissingSplitError, NotAStoreError, ReplacedError
from actstore.layout.ledger import has_writer, open_ledger, read_ledger
from actstore.layout.metadata import ACTIVATIONS, change_attributes, create_group, read_attributes, require_same_store
from actstore.layout.own_files import remove_own
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
    remote_inner_rows,
)
from actstore.split import Split
from actstore.storage.atomic_file import storage_errors
from actstore.storage.chunk_cache import DEFAULT_LIMIT, CacheSpec
from actstore.storage.place import AnyPlace, Place, parse_place
from actstore.writing.pending_rows import Pending

if TYPE_CHECKING:
    from actstore.writing.split_writer import SplitWriter


class ActivationStore(Mapping[str, Split]):
    """`store["train"]` reads a split, `store.writer("train")` adds rows to it; `list(store)` names the splits."""

    def __init__(self, path: Place, spec: StoreSpec, checked: bool = False) -> None:
        self.path = path
        self.spec = spec
        self.checked = checked

    @property
    def classes(self) -> tuple[str, ...]:
        return self.spec.classes

    @property
    def dim(self) -> int:
        return self.spec.dim

    @property
    def splits(self) -> dict[str, SplitSpec]:
        """What is committed of every split, by name."""
        splits = {}
        for entry in self.entries():
            if (entry / "zarr.json").exists():
                attributes = read_attributes(entry)
                if KEY in attributes:
                    splits[entry.name] = SplitSpec.from_json(attributes[KEY], str(entry))
        return splits

    def entries(self) -> list[Place]:
        """The folders in it, of splits and of others."""
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
        """Add rows to a split, a new one, an interrupted one or a finished one.

        source: what identifies the origin of the rows; an interrupted build is resumed by naming the same one.
        resume: without a source, say that the rows to come follow those at `writer.position`.
        restart: drop the rows of an interrupted build instead of resuming it.
        dim: of a new split whose rows are longer or shorter than the store's, such as another layer.
        """
        from actstore.writing.split_writer import SplitWriter  # brings torch: a reader must not wait for it

        new = self.spec.new_split(self.dim if dim is None else dim)
        return SplitWriter(self.path, self.spec, parse_split_name(split), source, resume, restart, new)

    def unfinished_rows(self, split: str) -> int:
        """Rows of a build or append that was interrupted, or is under way: durable, but not committed."""
        array, committed = self.path.uncached() / split / ACTIVATIONS, self.splits[split]
        spec, durable = self.spec.of_split(committed), sum(entry.rows for entry in read_ledger(array)[0])
        kept = sum(len(piece.values) for piece in Pending(array).kept(durable, spec.dim, spec.dtype))
        return max(0, durable + kept - committed.rows)

    def remove_leftovers(self, split: str) -> None:
        """Finish the cleaning up of a build that was killed just after its commit."""
        array = self.path.uncached() / split / ACTIVATIONS
        pending = Pending(array)
        if not pending.path.has_entries() or (has_writer(array) and not pending.was_of(self.splits[split].sources[-1])):
            return  # in a bucket: an append may be under way
        # LockedError: it is no leftover, somebody is writing
        with suppress(LockedError), closing(open_ledger(array)) as ledger:
            if pending.is_left_over(self.splits[split], ledger.size()):
                pending.remove()

    def add_classes(self, names: Sequence[str]) -> None:
        """Append class names; labels of existing rows keep their meaning, also beside other processes that add some."""

        def extended(spec: StoreSpec) -> StoreSpec:
            known = set(spec.classes)
            return replace(spec, classes=(*spec.classes, *(name for name in names if name not in known)))

        self._change(extended)

    def add_provenance(self, **facts: Json) -> None:
        """Record facts about where the rows come from, such as the backbone and its weights."""
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
        """How many rows of every finished split have no label."""
        complete = [name for name, split in self.splits.items() if split.complete]
        return {name: len(self[name]) - int(self[name].class_index.counts.sum()) for name in complete}

    def classes_train_lacks(self) -> dict[str, list[str]]:
        """By split the classes of its rows that no row of train has; empty where there is no train."""
        from actstore.images.image_set import classes_train_lacks

        complete = [name for name, split in self.splits.items() if split.complete]
        counts = {name: self[name].class_index.counts for name in complete}
        return classes_train_lacks({name: [self.classes[label] for label in count.nonzero()[0]]
                                    for name, count in counts.items()})  # fmt: skip

    def describe(self, classes: bool = False) -> dict[str, Any]:
        """Size, layout, provenance and splits, as `actstore info --json` prints them; classes: with rows of each."""
        from actstore.description import describe

        return describe(self, classes)

    def __repr__(self) -> str:
        from actstore.description import brief_line

        return f"<ActivationStore {brief_line(self.path, self.spec, self.splits)}>"

    def _repr_html_(self) -> str:
        from actstore.description import brief_table

        return brief_table(self.path, self.spec, self.splits)


def open(  # noqa: A001
    path: AnyPlace,
    cache: str | Path | None = None,
    cache_bytes: int = DEFAULT_LIMIT,
    checked: bool = False,
) -> ActivationStore:
    """Open an existing store: a folder, or s3://BUCKET/NAME and the like.

    cache: a folder where chunks of a remote store are kept, at most cache_bytes of them; they are mapped from then on.
    checked: compare every chunk with its checksum before rows are first taken from it. Passes over all rows (means,
    export, indexes, the first exact search) always do; of `take` it costs the reading of whole chunks.
    """
    place = parse_place(path, None if cache is None else CacheSpec(Path(cache), cache_bytes))
    if place.local_path is not None and not place.exists():
        raise NotAStoreError(f"{place} does not exist; make one with `actstore import` or `actstore build`")
    attributes = read_attributes(place)
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
    """An empty store at a path where there is nothing yet.

    chunk_rows defaults to about 32 MiB of rows, or to fewer where the longest split will have only so few `rows`.
    codec "raw" can be memory-mapped; "blosc" saves 8-10% on fp16 activations and reads far slower at random.
    shard_inner_rows makes each chunk file a shard of pieces of so many rows, each with a checksum of its own; in a
    bucket that is the default, 0 asks for none.
    """
    place = parse_place(path)
    require_free(place)
    if rows is not None:
        chunk_rows = chunk_rows or default_chunk_rows(dim, dtype, rows)
    if shard_inner_rows is None and codec == "raw" and place.local_path is None:
        shard_inner_rows = remote_inner_rows(dim, dtype)
        # whole pieces, and whole memory pages so that a cache can map chunks
        chunk_rows, page_rows = chunk_rows or default_chunk_rows(dim, dtype), default_chunk_rows(dim, dtype, rows=1)
        unit = shard_inner_rows if chunk_rows % page_rows else lcm(shard_inner_rows, page_rows)
        chunk_rows = -(-chunk_rows // unit) * unit
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


def require_free(path: Place) -> None:
    if path.has_entries(besides="zarr.json.part"):  # left by a creation that was killed, and written anew
        raise NotAStoreError(f"{path} exists already; choose another path")


def remove_store(path: Place, keep_top: bool = False) -> None:
    """A store that holds nothing, or was given up; what others have put into its folder stays, or the folder alone."""
    if path.local_path is None:
        path.remove_tree()
        return
    remove_own(path.local_path)
    if keep_top:
        path.local_path.mkdir(exist_ok=True)
