"""Snapshots of processes: freeze one once, thaw it any number of times, in milliseconds.

For any slow-starting Python program, with the platform or without::

    from thawd import snapshot

    model = load_model()  # takes seconds, once
    outcome = snapshot.freeze("program.img")
    if outcome.restored:  # in each copy: thawd thaw program.img ARGUMENT...
        print(model.predict(outcome.arguments))

Standard library only, Python 3.9 and later; Linux x86-64. Nothing is imported eagerly, since every execution
environment loads this package. docs/how-to/standalone.md has more.
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
