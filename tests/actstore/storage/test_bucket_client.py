"""What a bucket's service answers, or does not: cut listings, addresses that are none, and what is said of each."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from actstore.errors import StorageError
from actstore.storage import bucket_client
from actstore.storage.object_path import ObjectPath
from tests.object_storage import CuttingProxy, S3Server

_numbers = count()


@pytest.fixture
def proxy(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy(s3.port, b"list-type=2", 0)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
    yield proxy
    proxy.close()


def bucket(s3: S3Server) -> ObjectPath:
    """A new one: clients are kept with the address that they were made for."""
    name = f"client-{next(_numbers)}"
    s3.create_bucket(name)
    return ObjectPath.parse(f"s3://{name}/x.zarr")


def test_listings_that_are_cut_short_are_asked_again(
    s3: S3Server, proxy: CuttingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actstore.storage.object_path._LISTED", 2)
    top = bucket(s3)
    for name in ("a", "b/c", "d", "e", "f"):
        (top / name).put(b"123")
    for act, expected in (
        (lambda: sorted(entry.name for entry in top.iterdir()), ["a", "b", "d", "e", "f"]),
        (top.has_entries, True),
        (top.tree_size, 15),
    ):
        proxy.times = 2
        assert act() == expected  # type: ignore[operator]
        assert proxy.times == 0
    proxy.times = 2
    top.remove_below(top.contents())
    assert not top.has_entries()


def test_a_listing_that_is_always_cut_says_nothing_of_credentials(
    s3: S3Server, proxy: CuttingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_client, "_PATIENCE", bucket_client._PATIENCE / 60)
    top = bucket(s3)
    proxy.times = 1000
    with pytest.raises(StorageError, match="list response body") as refused:
        list(top.iterdir())
    assert "ACCESS_KEY" not in str(refused.value)
    assert "AWS_ENDPOINT_URL" in str(refused.value)


@pytest.mark.parametrize(
    "endpoint",
    ["nonsense", "http://", "http://:80", "http://[", "https://h:99999", "ftp://h", "http://a b", "//h", ":"],
)
def test_an_address_that_is_none(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(StorageError, match="AWS_ENDPOINT_URL is"):
        ObjectPath.parse(f"s3://client-{next(_numbers)}/x.zarr").exists()


def test_a_region_and_a_bucket_that_are_none(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StorageError, match="'a b'"):
        ObjectPath.parse("s3://a b/x.zarr").exists()
    monkeypatch.setenv("AWS_REGION", "no region")
    with pytest.raises(StorageError, match="AWS_REGION is 'no region'"):
        ObjectPath.parse(f"s3://client-{next(_numbers)}/x.zarr").exists()


def test_a_panic_of_the_library_is_one_line() -> None:
    panic: Any = type("PanicException", (BaseException,), {})
    top = ObjectPath.parse("memory://panic/x.zarr")
    with pytest.raises(StorageError, match="request valid"), bucket_client.object_errors(top):
        raise panic("request valid: InvalidUri")
    with pytest.raises(KeyboardInterrupt), bucket_client.object_errors(top):
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("said", "lacks"),
    [
        ("Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 10s", True),
        ("Generic S3 error: Server returned 400 <Code>AuthorizationHeaderMalformed</Code>", True),
        ("Generic S3 error: Error performing GET http://h/b?continuation-token=1 in 3s - HTTP error: timed out", False),
        ("Generic S3 error: Server returned error status 503 <Code>SlowDown</Code>", False),
    ],
)
def test_credentials_are_named_where_they_are_at_fault(said: str, lacks: bool) -> None:
    from obstore.exceptions import GenericError

    with pytest.raises(StorageError) as refused, bucket_client.object_errors(ObjectPath("s3://b", "x.zarr")):
        raise GenericError(said)
    assert ("AWS_SECRET_ACCESS_KEY" in str(refused.value)) == lacks
