"""Clients of buckets, what they say in one line, and objects on their way to one. With object_path.py the only module
that imports obstore."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from datetime import timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from actstore.errors import LockedError, StorageError
from actstore.storage.atomic_file import Data, as_bytes

if TYPE_CHECKING:
    from obstore.store import ObjectStore

    from actstore.storage.object_path import EnsureOwner, ObjectPath, Version

T = TypeVar("T")
_UPLOADS = 4  # at a time; one connection to S3 gives 50-100 MB/s
_PATIENCE = timedelta(seconds=30)
# What a service says to a wrong key or region.
_ABOUT_CREDENTIALS = re.compile(
    r"credential|authoriz|signature|access ?key|token|redirect|region|service account", re.IGNORECASE
)
_KEY_SERVERS = ("http://169.254.", "http://metadata.google")  # where a machine without keys of its own asks for some


def bucket_of(root: str) -> ObjectStore:
    """The client of a bucket, one per process. A fork of a process that has used one would wait forever."""
    global _user
    if root.startswith("memory"):
        return _connect(root)
    if _user not in (None, os.getpid()):
        raise StorageError(
            f"{root} was opened before this process was forked from another, which object storage does not survive; "
            "start workers with multiprocessing_context='spawn'"
        )
    _user = os.getpid()
    return _connect(root)


_user: int | None = None


@cache
def _connect(root: str) -> ObjectStore:
    from obstore.store import GCSStore, MemoryStore, S3Store

    scheme, _, bucket = root.partition("://")
    if scheme == "memory":
        return MemoryStore()
    if not re.fullmatch(r"[A-Za-z0-9._-]+", bucket):
        raise StorageError(f"{bucket!r} is no name of a bucket; expected letters, digits, '.', '-' and '_'")
    retry: Any = {"retry_timeout": _PATIENCE, "max_retries": 8}
    if scheme == "gs":
        return GCSStore(bucket, retry_config=retry, client_options={"connect_timeout": _PATIENCE / 3})
    endpoint = _endpoint()
    options: Any = {"connect_timeout": _PATIENCE / 3, "allow_http": endpoint.startswith("http://")}
    return S3Store(bucket, retry_config=retry, client_options=options, **_aws_profile())


def _endpoint() -> str:
    """The address of a service like S3, "" for Amazon's own. obstore panics where this or the region is not an address,
    so both are looked at first."""
    name = "AWS_ENDPOINT_URL_S3" if os.environ.get("AWS_ENDPOINT_URL_S3") else "AWS_ENDPOINT_URL"
    endpoint = os.environ.get(name, "")
    try:
        parts = urlsplit(endpoint)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of a port beyond 65535, or half of an IPv6 address
        is_address = False
    if endpoint and (not is_address or re.search(r"[^!-~]", endpoint)):
        raise StorageError(f"{name} is {endpoint!r}; expected an address such as https://minio.example.org:9000")
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        if not re.fullmatch(r"[A-Za-z0-9-]*", region := os.environ.get(name, "")):
            raise StorageError(f"{name} is {region!r}; expected a region such as us-east-1")
    return endpoint


def _aws_profile() -> dict[str, Any]:
    """obstore reads the environment and a machine's own role; a profile in ~/.aws needs boto3."""
    if {"AWS_ACCESS_KEY_ID", "AWS_SKIP_SIGNATURE", "AWS_WEB_IDENTITY_TOKEN_FILE"} & set(os.environ):
        return {}
    try:
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        return {}
    session = boto3.Session()
    return {"credential_provider": Boto3CredentialProvider(session)} if session.get_credentials() else {}


@contextmanager
def object_errors(path: ObjectPath) -> Iterator[None]:
    """One line for what a bucket says; FileNotFoundError only where the bucket is there and the object is not."""
    from obstore import exceptions

    try:
        yield
    except StorageError:
        raise
    except (exceptions.BaseError, OSError) as error:
        raise _explained(path, error) from None
    except BaseException as error:
        if type(error).__name__ == "PanicException":  # of Rust; no Exception, and its class cannot be imported
            raise StorageError(f"cannot reach {path}: {error}; {_address(path)}") from None
        raise


class Upload:
    """An object on its way; `finish` waits until it is there. Several travel side by side."""

    def __init__(self, path: ObjectPath, *parts: Data, ensure_owner: EnsureOwner | None = None) -> None:
        body = b"".join(as_bytes(part).data for part in parts)  # a copy: the caller's buffer is filled again meanwhile
        self.size = len(body)
        send = path.put if ensure_owner is None else partial(_put_guarded, path, ensure_owner=ensure_owner)
        self._sent: Future[Any] = threads(_UPLOADS, "upload").submit(send, body)

    def finish(self) -> int:
        """Wait until the object is stored; returns its size."""
        self._sent.result()
        return self.size

    def abandon(self) -> None:
        """An object that nothing names does no harm, and is overwritten when its turn comes again."""
        if not self._sent.cancel():
            wait([self._sent])


def _put_guarded(path: ObjectPath, body: bytes, ensure_owner: EnsureOwner) -> None:
    """Write an object that is new, or replace one when `ensure_owner` says that this is still ours to do.

    It is asked between reading the old version and replacing that very version, so what a process that has
    taken over writes in its stead is never overwritten.
    """
    condition: Version = {}
    while True:
        try:
            path.put(body, condition)
            return
        except LockedError:
            condition = path.read_version()[1]
            ensure_owner()


@cache
def threads(count: int, name: str) -> ThreadPoolExecutor:
    """Threads that wait for a bucket, kept for the next call; a forked process gets its own."""
    return ThreadPoolExecutor(count, thread_name_prefix=f"actstore-{name}")


os.register_at_fork(after_in_child=threads.cache_clear)


def retried(ask: Callable[[], T]) -> T:
    """What `ask` returns; again where it was cut short. obstore itself does so with all but listings."""
    from obstore import exceptions

    until, pause = time.monotonic() + _PATIENCE.total_seconds(), 0.1
    while True:
        try:
            return ask()
        except exceptions.GenericError as error:
            if "NoSuchBucket" in str(error) or time.monotonic() + pause > until:
                raise
        time.sleep(pause)
        pause *= 2


def _explained(path: ObjectPath, error: Exception) -> Exception:
    from obstore import exceptions

    if "NoSuchBucket" in str(error):
        return StorageError(f"{path}: there is no bucket {path.bucket!r}; create it, or check its name")
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(f"{path} does not exist")
    if isinstance(error, (exceptions.PreconditionError, exceptions.AlreadyExistsError)):
        return LockedError(f"another process has written {path} meanwhile; wait for it to end, or stop it")
    if isinstance(error, (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)):
        return StorageError(f"{path}: access denied{_code(error)}; {_credentials(path)}")
    gist = _gist(error)
    # an address may hold such words, too: that of a listing has a token of its own
    lacks = any(server in gist for server in _KEY_SERVERS) or _ABOUT_CREDENTIALS.search(re.sub(r"\w+://\S+", "", gist))
    return StorageError(f"cannot reach {path}: {gist}; {_credentials(path) if lacks else _address(path)}")


def _credentials(path: ObjectPath) -> str:
    if path.root.startswith("gs"):
        return "check GOOGLE_APPLICATION_CREDENTIALS"
    return "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL"


def _address(path: ObjectPath) -> str:
    setting = "" if path.root.startswith("gs") else " and AWS_ENDPOINT_URL"
    return f"check the network{setting}, and run the same command again"


def _code(error: Exception) -> str:
    matched = re.search(r"<Code>(\w+)</Code>", str(error))
    return f" ({matched[1]})" if matched else ""


def _gist(error: Exception) -> str:
    """The first line of what obstore says, without its account of retries and its XML."""
    line = str(error).splitlines()[0].partition("<?xml")[0].removeprefix("Generic S3 error: ")
    return re.sub(r" in [\d.]+m?s, after.*? - ", ": ", line).rstrip(": ") + _code(error)
