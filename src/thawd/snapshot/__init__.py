"""Snapshots of processes: freeze a process once, then thaw any number of copies of it in milliseconds each.

Works for any Python program that starts slowly, with thawd's server or without it::

    from thawd import snapshot

    model = load_model()  # takes seconds, once
    outcome = snapshot.freeze("program.img")
    if outcome.restored:  # in each copy: thawd thaw program.img ARGUMENT...
        print(model.predict(outcome.arguments))

Standard library only, Python 3.9 and later; Linux x86-64. Names are imported on first use, because every execution
environment loads this package and must start quickly. docs/how-to/standalone.md has more.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thawd.snapshot.engine import FreezeOutcome, SnapshotError, SnapshotFailed, SnapshotRefused
    from thawd.snapshot.standalone import freeze, register_after_restore, register_before_snapshot

__all__ = [
    "FreezeOutcome",
    "SnapshotError",
    "SnapshotFailed",
    "SnapshotRefused",
    "freeze",
    "register_after_restore",
    "register_before_snapshot",
]
_OF_ENGINE = ("FreezeOutcome", "SnapshotError", "SnapshotFailed", "SnapshotRefused")


def __getattr__(name: str) -> Any:
    if name in _OF_ENGINE:
        from thawd.snapshot import engine

        return getattr(engine, name)
    if name in __all__:
        from thawd.snapshot import standalone

        return getattr(standalone, name)
    raise AttributeError(f"module 'thawd.snapshot' has no attribute {name!r}")
