"""Whether a split on disk is still the one that was opened: else what seems damaged belongs to another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from actstore.errors import ActstoreError, DamagedError, NoMetadataError, ReplacedError
from actstore.layout.metadata import read_split_spec, read_store_spec
from actstore.spec import SplitSpec, StoreSpec
from actstore.storage.place import Place

_LAYOUT = ("dim", "dtype", "chunk_rows", "codec", "shard_inner_rows")


@contextmanager
def explained(split: Place, spec: StoreSpec, opened: SplitSpec) -> Iterator[None]:
    """Around a read: what does not fit because another store lies there by now is said to be replaced."""
    try:
        yield
    except DamagedError as error:
        try:
            require_same_split(split, spec, opened)
        except ReplacedError as replaced:
            raise replaced from error
        raise


def require_same_split(split: Place, spec: StoreSpec, opened: SplitSpec) -> None:
    if _was_replaced(split, spec, opened):
        raise ReplacedError(f"{split} was replaced or removed since it was opened; open it again")


def _was_replaced(split: Place, spec: StoreSpec, opened: SplitSpec) -> bool:
    """Whether it has another layout now, or rows that do not begin with those that were opened. Appends change neither,
    and damaged metadata says nothing."""
    try:
        store, now = read_store_spec(split.parent), read_split_spec(split)
    except NoMetadataError:  # which were there: the store is gone, if only until another takes its place
        return True
    except ActstoreError:
        return False
    own = store.of_split(now)
    return not covers(now, opened) or any(getattr(own, key) != getattr(spec, key) for key in _LAYOUT)


def require_same_store(where: Place, held: StoreSpec, now: StoreSpec) -> None:
    """Whether the store there is the one that a caller has opened: classes may have been added, and chunks may have
    another size; rows of another kind, or labels that mean something else, make it another."""
    if (now.dim, now.dtype) != (held.dim, held.dtype) or now.classes[: len(held.classes)] != held.classes:
        raise ReplacedError(f"{where} was replaced since it was opened; open it again")


def covers(now: SplitSpec, earlier: SplitSpec) -> bool:
    """Whether the rows of one are the first of the other, or all."""
    return earlier.content == now.content or earlier.content in {content for _, content in now.history}
