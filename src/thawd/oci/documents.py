"""The documents of the OCI image specification, and those of Docker that have the same fields, as structs.

Documents from outside are decoded here and nowhere else. The digests and sizes in them are checked by
`thawd.oci.blobs` when the blobs are stored.

Source: https://github.com/opencontainers/image-spec (manifest, image index, configuration, descriptor).
"""

from __future__ import annotations

import hashlib
import platform
import re
from typing import Any, TypeVar

import msgspec

from thawd.errors import ImageError

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER_GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"
LAYER_TAR = "application/vnd.oci.image.layer.v1.tar"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
MANIFESTS = (MANIFEST, DOCKER_MANIFEST)
INDEXES = (INDEX, DOCKER_LIST)
LARGEST_DOCUMENT_BYTES = 4 << 20
"""Largest manifest or index, as registries limit them. Source: distribution-spec, "Pushing Manifests"."""

LARGEST_LAYER_BYTES = 32 << 30

_LAYER_TYPES = {
    LAYER_TAR,
    LAYER_GZIP,
    "application/vnd.oci.image.layer.v1.tar+zstd",
    "application/vnd.docker.image.rootfs.diff.tar",
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
    "application/vnd.docker.image.rootfs.diff.tar.zstd",
}
_Document = TypeVar("_Document")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MACHINES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


class Platform(msgspec.Struct, frozen=True, omit_defaults=True):
    """The platform of an image: ``os`` and ``architecture`` in Go's names."""

    architecture: str
    os: str
    variant: str = ""

    def __str__(self) -> str:
        return "/".join(part for part in (self.os, self.architecture, self.variant) if part)


class Descriptor(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Refers to a blob: its type, digest and size in bytes."""

    media_type: str
    digest: str
    size: int
    annotations: dict[str, str] | None = None
    platform: Platform | None = None


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """An image of one platform: its configuration and its layers, the lowest first."""

    schema_version: int
    config: Descriptor
    layers: list[Descriptor]
    media_type: str = ""
    annotations: dict[str, str] | None = None


class Index(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Images of several platforms under one name; also the list of images in an OCI layout."""

    schema_version: int
    manifests: list[Descriptor]
    media_type: str = ""
    annotations: dict[str, str] | None = None


class ProcessConfig(msgspec.Struct, frozen=True, omit_defaults=True, rename="pascal"):
    """The defaults for containers of the image. Docker writes null for a field that is not declared."""

    user: str | None = None
    exposed_ports: dict[str, Any] | None = None
    env: list[str] | None = None
    entrypoint: list[str] | None = None
    cmd: list[str] | None = None
    volumes: dict[str, Any] | None = None
    working_dir: str | None = None
    labels: dict[str, str] | None = None
    stop_signal: str | None = None


class RootFilesystem(msgspec.Struct, frozen=True):
    """Digests of the uncompressed layers, the lowest first."""

    diff_ids: list[str]
    type: str = "layers"


class History(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of an image's history."""

    created: str | None = None
    created_by: str | None = None
    comment: str | None = None
    empty_layer: bool = False


class ImageConfig(msgspec.Struct, frozen=True, omit_defaults=True):
    """The configuration of an image."""

    architecture: str
    os: str
    rootfs: RootFilesystem
    config: ProcessConfig | None = None
    created: str | None = None
    history: list[History] | None = None
    variant: str | None = None


def digest_of(content: bytes) -> str:
    """Return the digest of a blob's content."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def checked_digest(text: str) -> str:
    """Return `text` if it is a digest that thawd can verify.

    Raises:
        ImageError: it is not a SHA-256 digest (HTTP 400).
    """
    if not _DIGEST.fullmatch(text):
        raise ImageError(f"{text!r} is not a digest of the form sha256:HEX; build the image with SHA-256 digests")
    return text


def encode(document: Manifest | Index | ImageConfig) -> bytes:
    """Return a document as JSON, the same bytes for the same content."""
    return msgspec.json.encode(document, order="deterministic")


def decode_index(content: bytes, what: str) -> Index:
    """Decode an image index. Raises ImageError if it is not one."""
    return _decode(content, Index, what)


def decode_config(content: bytes, what: str) -> ImageConfig:
    """Decode the configuration of an image. Raises ImageError if it is not one."""
    config = _decode(content, ImageConfig, what)
    for digest in config.rootfs.diff_ids:
        checked_digest(digest)
    process = config.config or ProcessConfig()
    texts = (*(process.env or ()), *(process.entrypoint or ()), *(process.cmd or ()), process.working_dir or "")
    if any("\0" in text for text in texts):
        raise ImageError(f"{what}: its configuration has a NUL character, which no process can be started with")
    return config


def decode_manifest(content: bytes, what: str) -> Manifest:
    """Decode a manifest of one image, and check that thawd can use its layers.

    Args:
        content: the document.
        what: names the image in messages.

    Raises:
        ImageError: it is no manifest, or has layers of another kind; the message says which (HTTP 400).
    """
    manifest = _decode(content, Manifest, what)
    for layer in manifest.layers:
        checked_digest(layer.digest)
        if not 0 <= layer.size <= LARGEST_LAYER_BYTES:
            raise ImageError(
                f"{what}: the layer {layer.digest} has {layer.size} bytes; at most {LARGEST_LAYER_BYTES} are read"
            )
        if layer.media_type not in _LAYER_TYPES:
            why = "is encrypted" if "encrypted" in layer.media_type else f"has the type {layer.media_type}"
            if "foreign" in layer.media_type or "nondistributable" in layer.media_type:
                why = "may not be distributed, and is not in the registry"
            raise ImageError(
                f"{what}: the layer {layer.digest} {why}. thawd reads tar layers, uncompressed or with gzip or zstd; "
                "is it an image of a container?"
            )
    checked_digest(manifest.config.digest)
    if not 0 <= manifest.config.size <= LARGEST_DOCUMENT_BYTES:
        raise ImageError(
            f"{what}: its configuration has {manifest.config.size} bytes; at most {LARGEST_DOCUMENT_BYTES} are read"
        )
    return manifest


def media_type_of(content: bytes, declared: str, what: str) -> str:
    """Return the media type of a manifest or index: the declared type, or else what the document itself says.

    Raises:
        ImageError: the document is of a kind that thawd cannot read, such as Docker's schema 1 (HTTP 400).
    """
    if declared in (*MANIFESTS, *INDEXES):
        return declared
    document = _decode(content, dict[str, Any], what)
    own = document.get("mediaType")
    if own in (*MANIFESTS, *INDEXES):
        return str(own)
    if document.get("schemaVersion") == 1:
        raise ImageError(f"{what}: it has a manifest of schema 1, without digests of its layers; push the image again")
    if isinstance(document.get("manifests"), list):
        return INDEX
    if isinstance(document.get("layers"), list) and isinstance(document.get("config"), dict):
        return MANIFEST
    raise ImageError(f"{what}: {own or declared or 'the document'} is neither an image manifest nor an image index")


def machine_architecture() -> str:
    """Return the architecture of this machine in Go's names, such as ``amd64``."""
    machine = platform.machine().lower()
    return _MACHINES.get(machine, machine)


def choose(index: Index, architecture: str, what: str) -> Descriptor:
    """Return the image of an index that runs on Linux with an architecture.

    Args:
        index: the image index. If it lists only one image without a platform, that image is taken.
        architecture: in Go's names.
        what: names the image in messages.

    Raises:
        ImageError: the index has no such image; the message lists those it has (HTTP 400).
    """
    images = [
        found
        for found in index.manifests
        # Attestations are manifests of the platform unknown/unknown.
        if found.platform is None or found.platform.os != "unknown"
    ]
    fitting = [
        each
        for each in images
        if each.platform and (each.platform.os, each.platform.architecture) == ("linux", architecture)
    ]
    if fitting:
        return fitting[0]
    if len(images) == 1 and images[0].platform is None:
        return images[0]
    offered = ", ".join(sorted({str(each.platform) for each in images if each.platform})) or "no platform"
    raise ImageError(f"{what} has no image for linux/{architecture}, only for {offered}. {_build_for(architecture)}")


def check_platform(config: ImageConfig, architecture: str, what: str) -> None:
    """Check that an image's configuration is for Linux and this architecture. Raises ImageError (HTTP 400)."""
    if config.os != "linux" or _MACHINES.get(config.architecture, config.architecture) != architecture:
        raise ImageError(
            f"{what} is an image for {config.os}/{config.architecture}, and this machine is linux/{architecture}. "
            + _build_for(architecture)
        )


def _build_for(architecture: str) -> str:
    return f"Build it for this machine (`--platform linux/{architecture}`)."


def _decode(content: bytes, kind: type[_Document], what: str) -> _Document:
    if len(content) > LARGEST_DOCUMENT_BYTES:
        raise ImageError(
            f"{what}: a document of the image has {len(content)} bytes; at most {LARGEST_DOCUMENT_BYTES} are read"
        )
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ImageError(f"{what}: a document of the image cannot be read: {error}") from None
