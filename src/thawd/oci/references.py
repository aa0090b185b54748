"""Names of images: ``[REGISTRY/]REPOSITORY[:TAG][@DIGEST]``, and how a name's registry is recognised.

A name whose first part has a dot or a colon, or is ``localhost``, names its registry. Docker completes other names with
``docker.io``. thawd does not, because it opens no connection that the user did not ask for: ``app:1`` is an image in
the local store, and ``docker.io/app:1`` is an image in Docker's registry.

Source: https://github.com/distribution/reference (grammar), distribution-spec ("Pulling manifests").
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from thawd.errors import ImageError

DOCKER = "docker.io"
_REPOSITORY = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_REGISTRY = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?")
_LONGEST_REPOSITORY = 255


@dataclass(frozen=True, slots=True)
class Reference:
    """The name of an image.

    Attributes:
        registry: host and port of the registry; empty: the image is in the local store.
        repository: path of the repository in the registry.
        tag: the tag; None if there is a digest and no tag was given, else ``latest`` by default.
        digest: digest of the manifest or index; None: the tag decides.
    """

    registry: str
    repository: str
    tag: str | None
    digest: str | None

    def __str__(self) -> str:
        name = f"{self.registry}/{self.repository}" if self.registry else self.repository
        return name + (f":{self.tag}" if self.tag else "") + (f"@{self.digest}" if self.digest else "")

    @property
    def wanted(self) -> str:
        """The tag or digest in requests to the registry."""
        return self.digest or self.tag or "latest"

    def without_digest(self) -> Reference:
        """Return the same name by its tag."""
        return replace(self, digest=None, tag=self.tag or "latest")


def parse(text: str) -> Reference:
    """Parse the name of an image.

    Raises:
        ImageError: the text is not such a name; the message says which part is wrong (HTTP 400).
    """
    rest, at, digest = text.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise _wrong(text, f"{digest!r} is not a digest of the form sha256:HEX")
    first, slash, after = rest.partition("/")
    registry = ""
    if slash and (first == "localhost" or any(mark in first for mark in ".:[")):
        if not _REGISTRY.fullmatch(first):
            raise _wrong(text, f"{first!r} is not a host with an optional port")
        registry, rest = first.lower(), after
    repository, colon, tag = rest.partition(":")
    if colon and not _TAG.fullmatch(tag):
        raise _wrong(text, f"{tag!r} is not a tag: letters, digits, and . _ - after the first, at most 128")
    if not _REPOSITORY.fullmatch(repository) or len(repository) > _LONGEST_REPOSITORY:
        raise _wrong(text, f"{repository!r} is not a repository: lower-case letters and digits, separated by . _ - /")
    if registry in ("index.docker.io", "registry-1.docker.io"):
        registry = DOCKER
    if registry == DOCKER and "/" not in repository:
        repository = f"library/{repository}"
    return Reference(registry, repository, tag or (None if digest else "latest"), digest or None)


def _wrong(text: str, why: str) -> ImageError:
    return ImageError(f"{text!r} is not the name of an image ([REGISTRY/]REPOSITORY[:TAG][@DIGEST]): {why}")
