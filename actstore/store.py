"""A store on disk or in a bucket: its classes, its splits, and a writer for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from actstore.errors import IncompleteError, LockedError, MissingSplitError, NotAStoreError, ReplacedError
from actstore.layout.ledger import has_writer, open_ledger, read_ledger
from actstore.layout.metadata import ACTIVATIONS, change_attributes, read_attributes
from actstore.layout.replacement import require_same_store
from actstore.spec import KEY, Json, SplitSpec, StoreSpec, parse_split_name
from actstore.split import Split
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

    def __repr__(self) -> str:
        rows = ", ".join(f"{name}: {split.rows}" for name, split in self.splits.items())
        return f"<ActivationStore {self.path} dim={self.dim} classes={len(self.classes)} rows={{{rows}}}>"


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
