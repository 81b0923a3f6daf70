"""A split by its path: `a.zarr/train`, or `a.zarr` where it is clear which split is meant."""

from __future__ import annotations

from actstore.errors import InvalidInputError, MissingSplitError
from actstore.layout.metadata import read_attributes
from actstore.spec import KEY
from actstore.split import Split
from actstore.storage.place import AnyPlace, Place, parse_place
from actstore.store import ActivationStore, open


def open_representation(what: Split | AnyPlace) -> Split:
    """The split itself, or that of a path; of a store alone its only split, or train."""
    if isinstance(what, Split):
        return what
    place = parse_place(what)
    if not _is_split(place):
        return default_split(open(place))
    store, _, name = str(place).rstrip("/").rpartition("/")
    return open(store or ".")[name]


def default_split(store: ActivationStore) -> Split:
    names = list(store.splits)
    if len(names) == 1 or "train" in names:
        return store[names[0] if len(names) == 1 else "train"]
    have = ", ".join(names) or "none yet"
    raise MissingSplitError(
        f"{store.path} needs a split, such as {store.path}/{(names or ['train'])[0]}; it has: {have}"
    )


def _is_split(place: Place) -> bool:
    """Its group says how many rows it has."""
    if not (place / "zarr.json").exists():
        return False
    about = read_attributes(place).get(KEY)
    if not isinstance(about, dict):
        raise InvalidInputError(f"{place} is Zarr, but neither an activation store nor a split of one")
    return "rows" in about
