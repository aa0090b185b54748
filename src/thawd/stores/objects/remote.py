"""Accesses remote buckets with obstore: S3 and stores with the same API, Google Cloud Storage and Azure.

Each bucket runs obstore's blocking calls on its own threads. obstore's coroutines are not used, because they can crash
the process when it ends; see docs/decisions/0011-remote-buckets.md. Keys are the store's complete keys, except in
`BucketStore.put`, which puts the bucket's prefix before the key.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from thawd.errors import InvalidParameterValueException, ResourceNotFoundException, StoreError, ThawdError
from thawd.resources import RemoteBucket
from thawd.stores.tables.dynamodb import AwsAccess
from thawd.stores.threads import StoreThreads, patience_over

if TYPE_CHECKING:
    from obstore.store import ObjectStore

T = TypeVar("T")

PAGE_OBJECTS = 1000
_THREADS = 4
_RETRIES = {"max_retries": 3, "retry_timeout": timedelta(seconds=30)}
_CLIENT: dict[str, Any] = {"connect_timeout": "5s", "timeout": "30s", "allow_http": True}


class ObjectWriter(Protocol):
    """A bucket that a destination can write to."""

    async def put(self, key: str, data: bytes) -> None:
        """Store an object; an object with the same key is replaced. Durable on return.

        Raises:
            StoreError: the store failed; the call may be repeated.
            InvalidParameterValueException: the store does not accept the key.
        """


class RemoteObject(NamedTuple):
    """An object in a listing: its complete key, and properties that change when its content changes."""

    key: str
    size: int
    etag: str
    mtime_ns: int


class OddKeysError(StoreError):
    """The bucket has keys that obstore cannot represent. Later listings of the bucket use boto3."""


class BucketStore:
    """One remote bucket: an `ObjectWriter` that also reads and lists.

    Args:
        bucket: the bucket.
        aws: endpoint and credentials to use instead of the usual ones, for example of an emulator; None: the usual.
        store: obstore's store; None: it is created from the URL when it is first used.
    """

    def __init__(self, bucket: RemoteBucket, *, aws: AwsAccess | None = None, store: ObjectStore | None = None) -> None:
        self.bucket = bucket
        self._aws = aws
        self._store = store
        self._has_odd_keys = False
        self._threads = StoreThreads(_THREADS, store=f"bucket {bucket.name}")

    async def put(self, key: str, data: bytes) -> None:
        """See `ObjectWriter.put`. The bucket's prefix is put before the key."""
        await self.write(self.bucket.prefix + key, data)

    async def write(self, key: str, data: bytes) -> None:
        """Store an object; an object with the same key is replaced. Durable on return.

        Raises:
            StoreError: the store failed; the call may be repeated.
            InvalidParameterValueException: the key is not below the bucket's prefix, or the store does not accept it.
        """
        self._require_prefix(key)
        await self._run(partial(self._write, key, data))

    async def read(self, key: str, *, limit_bytes: int) -> bytes:
        """The object's bytes.

        Raises:
            ResourceNotFoundException: there is no such object.
            StoreError: the store failed.
            InvalidParameterValueException: the key is not below the bucket's prefix, or the object is larger than
                `limit_bytes`.
        """
        self._require_prefix(key)
        return await self._run(partial(self._read, key, limit_bytes))

    async def exists(self, key: str) -> bool:
        """Whether there is an object with exactly this key.

        Raises:
            StoreError: the store failed.
        """
        return await self._run(partial(self._exists, key))

    async def next_page(self, listing: Iterator[list[RemoteObject]]) -> list[RemoteObject]:
        """The next page of a `listing`; empty at its end.

        Raises:
            OddKeysError: obstore cannot list a key; start the listing again, which then uses boto3.
            StoreError: the store failed.
        """
        return await self._run(partial(next, listing, []))

    def listing(self) -> Iterator[list[RemoteObject]]:
        """All objects below the prefix, in pages. Read them with `next_page`, because iterating over them blocks."""
        return self._boto_pages() if self._has_odd_keys else self._obstore_pages()

    def close(self, *, until: float | None = None) -> None:
        """End the threads. Blocks.

        Args:
            until: when to stop waiting for running operations, ``time.monotonic()`` seconds; None: in two seconds.
                Operations that still run then are abandoned.
        """
        self._threads.close(until=patience_over() if until is None else until)

    async def _run(self, work: Callable[[], T]) -> T:
        return await self._threads.run(partial(self.explained, work))

    def explained(self, work: Callable[[], T]) -> T:
        """Run `work`, and turn its exceptions into thawd's. Blocks.

        Raises:
            ResourceNotFoundException: there is no such object.
            InvalidParameterValueException: the store does not accept the key.
            StoreError: the store failed; the call may be repeated.
        """
        from obstore.exceptions import BaseError, InvalidPathError

        try:
            return work()
        except FileNotFoundError as error:
            raise ResourceNotFoundException(self._said("there is no such object", error)) from None
        except (InvalidPathError, ValueError) as error:
            raise InvalidParameterValueException(self._said("the key cannot be used", error)) from None
        except (BaseError, OSError) as error:
            raise StoreError(self._said(f"{self.bucket.url} failed", error)) from None
        except ThawdError:
            raise
        except Exception as error:  # an exception of boto3, or of its search for credentials
            raise StoreError(self._said(f"{self.bucket.url} failed", error)) from None

    def _said(self, what: str, error: Exception) -> str:
        # Only the first line of obstore's text is a message for users; details of obstore's internals follow.
        said = self.bucket.url.conceal(str(error).partition("\n")[0].strip())
        return f"bucket {self.bucket.name}: {what}: {said}"

    def _require_prefix(self, key: str) -> None:
        if not key.startswith(self.bucket.prefix) or key == self.bucket.prefix:
            raise InvalidParameterValueException(
                f"bucket {self.bucket.name}: the key {key!r} is not below the prefix {self.bucket.prefix!r}; use the "
                "store's complete key, as in events"
            )
        if key.startswith("/") or key.endswith("/"):  # obstore would remove the slash, and use another key
            raise InvalidParameterValueException(
                f"bucket {self.bucket.name}: the key {key!r} begins or ends with a slash; remove the slash"
            )

    def _write(self, key: str, data: bytes) -> None:
        import obstore

        obstore.put(self.opened(), key, data)

    def _read(self, key: str, limit_bytes: int) -> bytes:
        import obstore

        answer = obstore.get(self.opened(), key)
        if answer.meta["size"] > limit_bytes:
            raise InvalidParameterValueException(
                f"bucket {self.bucket.name}: the object {key!r} has {answer.meta['size']} bytes, but thawd.bucket "
                f"reads at most {limit_bytes}. Read it with the store's own client"
            )
        return bytes(answer.bytes())

    def _exists(self, key: str) -> bool:
        import obstore

        try:
            obstore.head(self.opened(), key)
        except FileNotFoundError:
            return False
        return True

    def _obstore_pages(self) -> Iterator[list[RemoteObject]]:
        import obstore
        from obstore.exceptions import InvalidPathError

        try:
            for page in obstore.list(self.opened(), prefix=self.bucket.prefix or None, chunk_size=PAGE_OBJECTS):
                yield [
                    RemoteObject(
                        entry["path"],
                        entry["size"],
                        (entry["e_tag"] or "").strip('"'),
                        int(entry["last_modified"].timestamp() * 1_000_000) * 1000,
                    )
                    for entry in page
                ]
        except (InvalidPathError, ValueError) as error:
            is_s3 = self.bucket.url.scheme == "s3"
            if not is_s3 or importlib.util.find_spec("boto3") is None:
                raise StoreError(
                    self._said("one of its keys cannot be listed by obstore", error)
                    + "; rename that object"
                    + (", or install boto3, which can list it: pip install 'thawd[aws]'" if is_s3 else "")
                ) from None
            self._has_odd_keys = True
            raise OddKeysError(
                self._said("some of its keys cannot be listed by obstore, so boto3 lists the bucket from now on", error)
            ) from None

    def _boto_pages(self) -> Iterator[list[RemoteObject]]:
        """The same pages as `_obstore_pages`, from boto3, which is slower but returns every key unchanged."""
        client = self._boto_client()
        try:
            pages = client.get_paginator("list_objects_v2").paginate(
                Bucket=self.bucket.bucket, Prefix=self.bucket.prefix, PaginationConfig={"PageSize": PAGE_OBJECTS}
            )
            for page in pages:
                found = [
                    RemoteObject(
                        entry["Key"],
                        entry["Size"],
                        entry["ETag"].strip('"'),
                        int(entry["LastModified"].timestamp() * 1_000_000) * 1000,
                    )
                    for entry in page.get("Contents", [])
                    if not entry["Key"].endswith("/")
                ]
                if found:
                    yield found
        finally:
            client.close()

    def _boto_client(self) -> Any:
        from botocore import UNSIGNED
        from botocore.config import Config

        parameters = self.bucket.parameters
        style = "path" if self._is_path_style() else "auto"
        config = Config(
            s3={"addressing_style": style}, retries={"mode": "standard"}, connect_timeout=5, read_timeout=10
        )
        keys = {}
        if self._aws is not None:
            keys = {"aws_access_key_id": self._aws.access_key, "aws_secret_access_key": self._aws.secret}
        if parameters.get("anonymous") == "true":
            config = config.merge(Config(signature_version=UNSIGNED))
        return self._session().client(
            "s3", region_name=self.bucket.region, endpoint_url=self._endpoint(), config=config, **keys
        )

    def _session(self) -> Any:
        import boto3

        return boto3.Session(profile_name=self.bucket.parameters.get("profile"))

    def _endpoint(self) -> str | None:
        own = None if self._aws is None else self._aws.endpoint_url
        return self.bucket.parameters.get("endpoint") or own

    def _is_path_style(self) -> bool:
        return self.bucket.parameters.get("path_style", "true") == "true"

    def opened(self) -> ObjectStore:
        """obstore's store, for `explained` work of callers that block in threads of their own."""
        if self._store is None:
            self._store = self._open()
        return self._store

    def _open(self) -> ObjectStore:
        """Create obstore's store. Settings that the URL does not contain come from environment variables."""
        from obstore.store import AzureStore, GCSStore

        given = self.bucket.parameters
        common: dict[str, Any] = {"client_options": _CLIENT, "retry_config": _RETRIES}
        if given.get("anonymous") == "true":
            common["skip_signature"] = True
        if self.bucket.url.scheme == "gs":
            if "endpoint" in given:
                common["config"] = {"base_url": given["endpoint"]}
            return GCSStore(self.bucket.bucket, **common)
        if self.bucket.url.scheme == "az":
            named = {"account_name": given.get("account"), "endpoint": given.get("endpoint")}
            common |= {name: value for name, value in named.items() if value}
            return AzureStore(self.bucket.bucket, **common)
        return self._open_s3(common)

    def _open_s3(self, common: dict[str, Any]) -> ObjectStore:
        from obstore.store import S3Store

        if (endpoint := self._endpoint()) is not None:
            common["endpoint"] = endpoint
        if self._aws is not None:
            common |= {"access_key_id": self._aws.access_key, "secret_access_key": self._aws.secret}
        elif "skip_signature" not in common and importlib.util.find_spec("boto3") is not None:
            # Use boto3's credentials: it supports all profiles, sign-ons and roles, but obstore only some of them.
            session = self._session()
            if session.get_credentials() is not None:
                from obstore.auth.boto3 import Boto3CredentialProvider

                common["credential_provider"] = Boto3CredentialProvider(session)
        return S3Store(
            self.bucket.bucket,
            region=self.bucket.region,
            virtual_hosted_style_request=not self._is_path_style(),
            **common,
        )


class BucketStores:
    """The remote buckets of a configuration.

    Attributes:
        aws: endpoint and credentials, for example those of an emulator; None: those that the environment and the files
            of AWS name. Set it before the first use.
    """

    def __init__(self, buckets: Mapping[str, RemoteBucket]) -> None:
        self.aws: AwsAccess | None = None
        self._buckets = buckets
        self._open: dict[str, BucketStore] = {}

    def get(self, name: str) -> BucketStore | None:
        """The bucket called `name`; None: there is none."""
        if name in self._buckets and name not in self._open:
            self._open[name] = BucketStore(self._buckets[name], aws=self.aws)
        return self._open.get(name)

    def close(self, *, until: float | None = None) -> None:
        """Close all buckets that were opened, as `BucketStore.close` does. Blocks."""
        until = patience_over() if until is None else until
        while self._open:
            self._open.popitem()[1].close(until=until)


def require_library(buckets: Mapping[str, RemoteBucket]) -> None:
    """Check that the library for remote buckets is installed, if there are any.

    Raises:
        StoreError: the library is not installed; the message names the extra that installs it.
    """
    for bucket in buckets.values():
        if importlib.util.find_spec("obstore") is None:
            raise StoreError(
                f"bucket {bucket.name}: {bucket.url} needs obstore, which is not installed; install it with: "
                "pip install 'thawd[buckets]'"
            )
