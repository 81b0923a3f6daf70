"""Every error a user can meet. One line each: what was expected, what came, what to do."""

from __future__ import annotations


class ActstoreError(Exception):
    """Base of all errors that are raised on purpose; the command line prints its text and exits with 1."""


class NotAStoreError(ActstoreError):
    """The path holds no activation store, or one that this version cannot read."""


class NoMetadataError(NotAStoreError):
    """There is no zarr.json where one belongs; one that is damaged is something else."""


class InvalidInputError(ActstoreError, ValueError):
    """Rows, labels, ids or arguments are refused; it is a ValueError too.

    Examples:
        >>> train.of_class("bea")
        Traceback (most recent call last):
        ...
        actstore.errors.InvalidInputError: no class is named 'bea'; did you mean 'bee'?
    """


class OtherVersionError(InvalidInputError):
    """Derived data in the format of another version; it can be made again."""


class RowRangeError(InvalidInputError, IndexError):
    """A row id outside of the split."""


class MissingSplitError(InvalidInputError, KeyError):
    """A split that the store does not have."""

    __str__ = Exception.__str__  # KeyError's would put the line into quotation marks


class MissingColumnError(InvalidInputError, KeyError):
    """A column that the split does not have."""

    __str__ = Exception.__str__


class UnknownValueError(InvalidInputError):
    """A condition asks for a text that no row of the column has."""


class IncompleteError(ActstoreError):
    """A split whose build has not finished, or that does not match what a resumed build brings."""


class DamagedError(ActstoreError):
    """A file is missing, truncated or corrupt; a damaged chunk never reads as zeros."""


class LockedError(ActstoreError):
    """Another process is writing to the same split."""


class ReplacedError(ActstoreError):
    """What lies on disk now is another store or split than the one that was opened."""


class StorageError(ActstoreError, OSError):
    """The disk refused: full, read-only or gone."""


class OutOfMapsError(OSError):
    """The kernel gives no more maps or addresses to this process; rows can still be read without."""


class CacheError(StorageError):
    """The cache cannot take a chunk: its disk is full, say."""


class UnreadableImageError(InvalidInputError):
    """An image that is empty, truncated, too large, or none at all."""


class UnreachableError(ActstoreError):
    """Nothing answers on the internet, or what answers does not give the file."""


class ClusterError(ActstoreError):
    """No scheduler, no workers, or workers that cannot do the work."""


class DivergedError(ActstoreError):
    """A figure or a weight of a training is no longer a number."""


class PeerFailedError(ActstoreError):
    """Another of the processes is gone."""


class MissingInputError(ActstoreError):
    """A figure cannot be drawn, as an input of it was not given."""


def reason_of(error: BaseException) -> str:
    """What another library or the system says, in one line and without the file's name, which ours begin with."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, UnicodeDecodeError):
        return f"it is not UTF-8 text (byte {error.start})"
    return str(error).strip().partition("\n")[0] or type(error).__name__
