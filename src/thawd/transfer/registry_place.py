"""A store of chunks in a registry of container images: each object but a chunk is an OCI artifact with a tag.

Its manifest has the object as its first layer. The manifest of a record has the chunks that the record needs as further
layers. So the registry keeps what a record needs, and frees the rest when it collects garbage. Each layer is named by
an annotation. A chunk is a blob, found through the manifests that list it.

    tag            `thawd-` and 40 digits of the SHA-256 of the object's key
    annotations    `dev.thawd.key`, of the manifest and of each layer; `org.opencontainers.image.created`

Blobs are verified by their digests. Nothing else that a registry says is trusted: `thawd.transfer` proves records and
chunks by their keys.

Source: https://github.com/opencontainers/image-spec/blob/main/manifest.md, "Guidelines for Artifact Usage".
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from thawd.errors import ImageError, ResourceNotFoundException, StoreError
from thawd.oci import documents, references
from thawd.oci.registry import Registry
from thawd.stores.chunk_places import PlacedObject
from thawd.transfer.chunk_format import record_ids
from thawd.transfer.store_layout import CHUNKS, RECORDS, chunk_key

_ARTIFACT = "application/vnd.thawd.snapshots.v1"
_OBJECT = "application/vnd.thawd.object.v1"
_CHUNK = "application/vnd.thawd.chunk.v1"
_EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
_EMPTY = b"{}"
_KEY = "dev.thawd.key"
_CREATED = "org.opencontainers.image.created"
_TAG = re.compile(r"thawd-[0-9a-f]{40}\Z")
_CHUNK_KEY = re.compile(r"chunks/[0-9a-f]{2}/[0-9a-f]{64}\Z")


class _Layer(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    media_type: str
    digest: str
    size: int
    annotations: dict[str, str] = {}


class _Artifact(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    schema_version: int
    media_type: str
    artifact_type: str = ""
    config: _Layer
    layers: list[_Layer]
    annotations: dict[str, str] = {}


class RegistryPlace:
    """A repository in a registry, as a store of chunks. Several threads may use it.

    Args:
        repository: host and repository, such as ``registry.example:5000/team/snapshots``.
        name: names the place in messages.
        environ: environment variables, for credentials; None: those of this process.
        registry: a client, for tests; None: it is made when it is first needed.
    """

    def __init__(
        self, repository: str, *, name: str, environ: dict[str, str] | None = None, registry: Registry | None = None
    ) -> None:
        self.name = name
        self.frees_chunks = True
        self._repository = repository
        self._environ = os.environ if environ is None else environ
        self._registry = registry
        self._lock = threading.Lock()
        self._chunks: dict[str, _Layer] = {}  # blobs of chunks by key
        self._searching = threading.Lock()
        self._searched = False
        self._has_empty = False

    def put(self, key: str, data: bytes) -> None:
        """Store an object, durably. All chunks of a record must be stored before."""
        with _explained():
            digest = self._client.push_content(data)
            layer = _Layer(_CHUNK if _CHUNK_KEY.match(key) else _OBJECT, digest, len(data), {_KEY: key})
            if _CHUNK_KEY.match(key):
                with self._lock:
                    self._chunks[key] = layer
                return
            needed = self._needed(key, data)
            if not self._has_empty:
                self._client.push_content(_EMPTY)
                self._has_empty = True
            artifact = _Artifact(
                schema_version=2,
                media_type=documents.MANIFEST,
                artifact_type=_ARTIFACT,
                config=_Layer(_EMPTY_TYPE, documents.digest_of(_EMPTY), len(_EMPTY)),
                layers=[layer, *needed],
                annotations={_KEY: key, _CREATED: datetime.now(UTC).isoformat(timespec="milliseconds")},
            )
            content = msgspec.json.encode(artifact)
            if len(content) > documents.LARGEST_DOCUMENT_BYTES:
                raise StoreError(
                    f"{key} needs {len(needed):,} chunks, more than a registry accepts in one manifest; use a bucket "
                    "or a folder for snapshots of this size"
                )
            self._client.push_manifest(_tag_of(key), content, documents.MANIFEST)

    def _needed(self, key: str, data: bytes) -> list[_Layer]:
        """The blobs of the chunks of a record; none for other objects."""
        if not key.startswith(f"{RECORDS}/"):
            return []
        layers = []
        for one in record_ids(data):
            layer = self._chunk(chunk_key(one))
            if layer is None:
                raise StoreError(f"the chunk {one.hex()[:12]} is not in {self.name}; send the snapshot again")
            layers.append(layer)
        return layers

    def get(self, key: str, *, limit_bytes: int) -> bytes:
        """Read an object. See `ChunkPlace.get`."""
        with _explained():
            if _CHUNK_KEY.match(key):
                layer = self._chunk(key)
            else:
                found = self._artifact(_tag_of(key), key)
                layer = None if found is None else found.layers[0]
            if layer is None:
                raise ResourceNotFoundException(f"there is no {key} in {self.name}.")
            return self._blob(layer, limit_bytes)

    def _blob(self, layer: _Layer, limit_bytes: int) -> bytes:
        if layer.size > limit_bytes:
            raise StoreError(
                f"a blob of {self.name} has more than {limit_bytes:,} bytes, so it is not what its name says"
            )
        data = bytearray()
        for part in self._client.blob(layer.digest).chunks():
            data += part
            if len(data) > layer.size:
                break
        if documents.digest_of(bytes(data)) != layer.digest:
            raise StoreError(f"{self.name} answers for the blob {layer.digest[:19]} with other content; it is not used")
        return bytes(data)

    def find(self, key: str) -> PlacedObject | None:
        """One object's entry; None: there is no such object."""
        with _explained():
            if not _CHUNK_KEY.match(key):
                found = self._artifact(_tag_of(key), key)
                return None if found is None else _entry(found)
            layer = self._chunk(key)
            # The registry may have collected it as garbage since its manifest was read.
            if layer is None or not self._client.has(f"blobs/{layer.digest}"):
                return None
            return PlacedObject(key, layer.size, 0.0)

    def listed(self, prefix: str) -> Iterator[PlacedObject]:
        """The objects in the folder `prefix`, at any depth, in no particular order."""
        with _explained():
            artifacts = list(self._artifacts())
        if prefix == CHUNKS:
            for key, layer in list(self._chunks.items()):
                yield PlacedObject(key, layer.size, 0.0)
            return
        for found in artifacts:
            if found.annotations[_KEY].startswith(f"{prefix}/"):
                yield _entry(found)

    def remove(self, key: str) -> None:
        """Remove an object; no error when there is none.

        Raises:
            StoreError: the registry allows no deletion, or failed (HTTP 500).
        """
        with _explained():
            found = self._client.find_manifest(_tag_of(key))
            if found is not None and not self._client.remove_manifest(documents.digest_of(found[0])):
                raise StoreError(
                    f"the registry of {self.name} allows no deletion, so {key} stays; allow it there (docker-registry: "
                    "storage.delete.enabled), or remove the tag with the registry's own means"
                )

    @property
    def _client(self) -> Registry:
        with self._lock:
            if self._registry is None:
                self._registry = Registry(references.parse(self._repository), self._environ)
            return self._registry

    def _chunk(self, key: str) -> _Layer | None:
        """The blob of a chunk. If no manifest that was read lists it, all manifests are read, once."""
        if key not in self._chunks:
            with self._searching:
                if not self._searched:
                    for _ in self._artifacts():
                        pass
                    self._searched = True
        return self._chunks.get(key)

    def _artifacts(self) -> Iterator[_Artifact]:
        for tag in self._client.tags():
            if _TAG.match(tag) and (found := self._artifact(tag, None)) is not None:
                yield found

    def _artifact(self, tag: str, key: str | None) -> _Artifact | None:
        """The manifest with a tag; None: there is none, as after its removal. With `key`, it must be that object's.

        Raises:
            StoreError: it is not the manifest of such an object.
        """
        answered = self._client.find_manifest(tag)
        if answered is None:
            return None
        try:
            found = msgspec.json.decode(answered[0], type=_Artifact)
        except (msgspec.DecodeError, msgspec.ValidationError, RecursionError):
            raise StoreError(f"the manifest {tag} in {self.name} is not one of a store of chunks") from None
        name = found.annotations.get(_KEY, "")
        if not found.layers or _tag_of(name) != tag or (key is not None and name != key):
            raise StoreError(f"the manifest {tag} in {self.name} is that of another object, {name[:100]!r}")
        for layer in found.layers:
            documents.checked_digest(layer.digest)
        with self._lock:
            for layer in found.layers[1:]:
                named = layer.annotations.get(_KEY, "")
                # The record that is being read says where its own chunks are: a blob of an earlier one may be gone.
                if _CHUNK_KEY.match(named) and (key is not None or named not in self._chunks):
                    self._chunks[named] = layer
        return found


def _tag_of(key: str) -> str:
    return f"thawd-{hashlib.sha256(key.encode()).hexdigest()[:40]}"


def _entry(found: _Artifact) -> PlacedObject:
    try:
        modified_unix_s = datetime.fromisoformat(found.annotations[_CREATED]).timestamp()
    except (KeyError, ValueError):
        modified_unix_s = 0.0
    return PlacedObject(found.annotations[_KEY], found.layers[0].size, modified_unix_s)


@contextlib.contextmanager
def _explained() -> Iterator[Any]:
    """Turn errors of the client into those of a store."""
    try:
        yield
    except ImageError as error:
        raise StoreError(error.message) from None
