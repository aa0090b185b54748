"""The key of a version's image: it is different if anything is different that is known to decide what init does."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from thawd import __version__
from thawd.environments.starts.engine_files import Engine, fingerprint
from thawd.environments.version import Version

_LISTED_FILES = 1000


def key_of(version: Version, engine: Engine, *, confined: bool = False, bases: bool = False) -> str:
    """Return the key of a version's image: a digest of what is known before init and decides what init does.

    The digest covers the files that the function's own variables name. It does not cover other files that init reads:
    the process records them, and a probe checks them before the image is used again. Reads files and blocks.

    Args:
        version: the version.
        engine: the engine that freezes and thaws.
        confined: whether each process of the version sees its own ``/tmp``.
        bases: whether the image may refer to a base.
    """
    parts: dict[str, object] = {
        "thawd": __version__,
        "engine": engine.digests(),
        "python": [str(version.python), version.python_version],
        "task_root": version.code,
        "variables": sorted(version.variables.items()),
        "prime": version.function.prime,
        "sockets": [version.function.snapshot_connections, version.function.snapshot_listeners],
        "files": [_encodable(fingerprint(path)) for path in _named_files(version)],
    }
    if confined:
        parts["confined"] = True
    if version.places is not None:
        parts["layers"] = str(version.places.layers)
    if version.root is not None:
        parts["root"] = version.root.options
    if bases:
        parts["bases"] = True
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def _encodable(found: tuple[str, int, int, int] | None) -> tuple[str, int, int, int] | None:
    """Return a fingerprint with a path that JSON can contain: names of files need not be UTF-8."""
    return found and (os.fsencode(found[0]).decode("utf-8", "backslashreplace"), *found[1:])


def _named_files(version: Version) -> Iterator[Path]:
    """Yield the absolute paths in the function's own environment variables, and of the files in each folder among them.

    Of each folder, at most `_LISTED_FILES` files are listed.
    """
    for text in version.function.environment.values():
        path = Path(text)
        if path.is_absolute():
            yield path
            inside = (Path(folder, name) for folder, _, names in os.walk(path) for name in sorted(names))
            yield from itertools.islice(inside, _LISTED_FILES)
