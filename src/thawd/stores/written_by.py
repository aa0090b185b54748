"""Notes in a data folder which version of thawd is the newest that has used it, for messages of older versions."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from thawd import __version__

_FILE = "newest-thawd"
_VERSION = re.compile(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})[0-9A-Za-z.+-]{0,40}")


def note(folder: Path) -> None:
    """Note that this version uses the data folder, unless a newer one did. A note that fails is left out."""
    noted = newest(folder)
    if noted == __version__ or _order(noted or "") > _order(__version__):
        return
    written = folder / f"{_FILE}.new"
    with contextlib.suppress(OSError):
        with open(written, "w", opener=_private) as file:
            file.write(f"{__version__}\n")
        written.replace(folder / _FILE)


def _private(path: str, flags: int) -> int:
    """Open a file, as the argument `opener` of `open`. A new file is readable only by its owner."""
    return os.open(path, flags, 0o600)


def newest(folder: Path) -> str | None:
    """Return the newest version that has used the data folder; None: it is not known."""
    try:
        text = (folder / _FILE).read_text().strip()
    except (OSError, ValueError):
        return None
    return text if _VERSION.fullmatch(text) else None


def newer(folder: Path) -> str:
    """Return words for the newer thawd that wrote a file in a data folder, such as ``a newer thawd, 0.2.0``."""
    noted = newest(folder)
    is_newer = noted is not None and _order(noted) > _order(__version__)
    return f"a newer thawd, {noted}" if is_newer else "a newer thawd"


def _order(version: str) -> tuple[int, ...]:
    found = _VERSION.fullmatch(version)
    return () if found is None else tuple(map(int, found.groups()))
