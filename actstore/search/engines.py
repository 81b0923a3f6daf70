"""Which engine answers a search: by its method, its device, and the indexes that are built."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from actstore.errors import ActstoreError, InvalidInputError, OtherVersionError
from actstore.search.bounded import BoundedSearch
from actstore.search.exact import ExactSearch
from actstore.search.index_files import folder
from actstore.search.ranking import Neighbours
from actstore.search.table import Rows, RowTable, parse_metric
from actstore.spec import INDEX_KINDS, SEARCH_METHODS

if TYPE_CHECKING:
    from actstore.split import Split


class Engine(Protocol):
    def search(self, vectors: Any, k: int = 10, rows: Rows | None = None) -> Neighbours: ...


def search(
    split: Split,
    vectors: Any,
    k: int = 10,
    *,
    rows: Rows | None = None,
    method: str = "auto",
    metric: str = "cosine",
    device: str = "cpu",
) -> Neighbours:
    """The k nearest rows of each of vectors (n, dim), or the nearest of some rows, ascending and distinct.

    Engines stay with the split, ready for the next search."""
    if rows is not None and not len(rows):
        raise InvalidInputError(
            f"no row of split {split.name!r} of {split.store_path} satisfies every filter; leave one out"
        )
    engines: dict[Any, Engine] = vars(split).setdefault("_engines", {})
    key = (method, metric, device)
    if key not in engines:
        engines[key] = open_engine(split, method, metric, device)
    return engines[key].search(vectors, k, rows)


def open_engine(split: Split | RowTable, method: str = "auto", metric: str = "cosine", device: str = "cpu") -> Engine:
    """method: auto (bounded where its index is built and pays, else exact), exact, bounded, faiss (its flat search),
    approximate (whichever index is built) or a kind of index. device: cpu, cuda, cuda:1, … or auto (a GPU where it can
    do this search).

    A table of some rows of a split has no index: there methods auto, exact and faiss are."""
    if method not in SEARCH_METHODS:
        raise InvalidInputError(f"method must be one of {', '.join(SEARCH_METHODS)}, got {method!r}")
    chosen = parse_metric(metric)
    if chosen != "cosine" and method not in ("auto", "exact"):
        raise InvalidInputError(f"method {method} searches by cosine only; for inner products use method exact")
    card = _gpu_number(device, method, metric)
    if card is not None:
        from actstore.search.gpu import GpuSearch

        return GpuSearch(split, device=card)
    if method == "faiss":
        from actstore.search.flat import FaissSearch

        return FaissSearch(split)
    if isinstance(split, RowTable):
        return ExactSearch(split, chosen)
    if method in ("approximate", *INDEX_KINDS):
        from actstore.search.approximate import ApproximateSearch

        return ApproximateSearch.load(split, _built_kind(split) if method == "approximate" else method)
    if method == "bounded" or (method == "auto" and chosen == "cosine" and (folder(split) / "bounded.json").exists()):
        try:
            return BoundedSearch(split)
        except OtherVersionError:  # `remarks` says so: the same answers take longer
            pass
        except ActstoreError:
            if method == "bounded":
                raise
    return ExactSearch(split, chosen)


def _gpu_number(device: str, method: str, metric: str) -> int | None:
    """The number of the GPU to search on; None: the CPU."""
    if device == "cpu":
        return None
    kind, _, place = device.partition(":")
    if device != "auto" and (kind != "cuda" or not (place.isdecimal() or device == "cuda")):
        raise InvalidInputError(f"searches run on device cpu, cuda, cuda:1 or auto, got {device!r}")
    from actstore.search.gpu import require_gpu

    can_search = method in ("auto", "exact", "faiss") and metric == "cosine"
    try:
        require_gpu(int(place or 0))
    except InvalidInputError:
        if device == "auto":
            return None
        raise
    if not can_search and device != "auto":
        raise InvalidInputError("on a GPU only methods exact and faiss by cosine are there; use device cpu")
    return int(place or 0) if can_search else None


def _built_kind(split: Split) -> str:
    built = [kind for kind in INDEX_KINDS if (folder(split) / f"{kind}.json").exists()]
    if len(built) == 1:
        return built[0]
    if built:
        raise InvalidInputError(f"several indexes are built ({', '.join(built)}); name one of them as the method")
    raise InvalidInputError(
        f"split {split.name!r} of {split.store_path} has no approximate index; "
        f"build one with `actstore index {split.store_path} --split {split.name} --kind ivf`"
    )
