"""thawd's own ``snapshot_restore_py``, with which functions register hooks unless their code contains that package.

`thawd.snapshot.hooks` lets functions import this file under the name ``snapshot_restore_py``. The module only keeps the
two lists of hooks; the runtime reads the lists and runs the hooks. The interface is that of AWS's package
``snapshot_restore_py`` 1.0.0, which is installed in Lambda's Python runtimes::

    from snapshot_restore_py import register_after_restore, register_before_snapshot

    @register_before_snapshot
    def disconnect(): ...

    register_after_restore(connect, "db.example.com", retries=3)

Source: AWS Lambda developer guide, "Lambda SnapStart runtime hooks for Python".
"""

from typing import Any, Callable, Dict, List, Tuple, TypeVar

__all__ = ["register_after_restore", "register_before_snapshot"]

_Hook = TypeVar("_Hook", bound=Callable[..., Any])
_Registered = Tuple[Callable[..., Any], Tuple[Any, ...], Dict[str, Any]]

_before: List[_Registered] = []
_after: List[_Registered] = []


def register_before_snapshot(func: _Hook, *args: Any, **kwargs: Any) -> _Hook:
    """Call `func` with these arguments before the snapshot. The function that was registered last runs first."""
    _before.append((func, args, kwargs))
    return func


def register_after_restore(func: _Hook, *args: Any, **kwargs: Any) -> _Hook:
    """Call `func` with these arguments in each copy after its thaw, in the order of registration."""
    _after.append((func, args, kwargs))
    return func


def get_before_snapshot() -> List[_Registered]:
    """The list of before-snapshot hooks itself, not a copy, in the order of registration.

    Each entry is (function, arguments, keyword arguments).
    """
    return _before


def get_after_restore() -> List[_Registered]:
    """The list of after-restore hooks itself, not a copy, in the order of registration.

    Each entry is (function, arguments, keyword arguments).
    """
    return _after
