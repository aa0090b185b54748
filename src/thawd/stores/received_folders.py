"""Virtual environments that arrived with a snapshot: each is for the functions that brought it, and for no others.

The name of a virtual environment is a digest of its requirements and its interpreter, not of its contents, so nothing
proves that a received one contains what its name says. Whoever has a function's key may have sent it. So its marker
lists the functions whose snapshots brought these contents. `thawd.transfer` writes the marker;
`thawd.publishing.virtual_environments` makes another virtual environment for all other functions.
"""

from __future__ import annotations

from pathlib import Path

COMPLETE = ".thawd-complete"
"""Name of the marker in a virtual environment, which is written last."""

_RECEIVED = "received with the snapshots of:"


def functions_of(folder: Path) -> frozenset[str] | None:
    """The functions for which a virtual environment was received; None: it was made here, or is not complete."""
    try:
        lines = (folder / COMPLETE).read_text(errors="replace").splitlines()
    except OSError:
        return None
    return frozenset(lines[1:]) if lines and lines[0] == _RECEIVED else None


def mark_received(folder: Path, functions: frozenset[str]) -> None:
    """Write the marker of a virtual environment that was received for these functions.

    Raises:
        OSError: it cannot be written.
    """
    written = folder / f"{COMPLETE}.new"
    written.unlink(missing_ok=True)
    written.write_text("\n".join([_RECEIVED, *sorted(functions)]) + "\n")
    written.rename(folder / COMPLETE)
