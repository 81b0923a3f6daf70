"""Clients of buckets, and what they say in one line. With object_path.py the only module that imports obstore."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

from actstore.errors import LockedError, StorageError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

    from actstore.storage.object_path import ObjectPath

_PATIENCE = timedelta(seconds=30)


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
    retry: Any = {"retry_timeout": _PATIENCE, "max_retries": 8}
    if scheme == "gs":
        return GCSStore(bucket, retry_config=retry, client_options={"connect_timeout": _PATIENCE / 3})
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
    options: Any = {"connect_timeout": _PATIENCE / 3, "allow_http": endpoint.startswith("http://")}
    return S3Store(bucket, retry_config=retry, client_options=options, **_aws_profile())


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
    return StorageError(f"cannot reach {path}: {_gist(error)}; {_credentials(path)}")


def _credentials(path: ObjectPath) -> str:
    if path.root.startswith("gs"):
        return "check GOOGLE_APPLICATION_CREDENTIALS"
    return "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL"


def _code(error: Exception) -> str:
    matched = re.search(r"<Code>(\w+)</Code>", str(error))
    return f" ({matched[1]})" if matched else ""


def _gist(error: Exception) -> str:
    """The first line of what obstore says, without its account of retries and its XML."""
    line = str(error).splitlines()[0].partition("<?xml")[0].removeprefix("Generic S3 error: ")
    return re.sub(r" in [\d.]+m?s, after.*? - ", ": ", line).rstrip(": ") + _code(error)
