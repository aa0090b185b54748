"""Finds state of an initialised process that will be wrong after a thaw: ``thawd snapshot lint``.

`findings` checks all objects reachable from the function's modules (`reach`, `checks`), and then the threads and
descriptors of the process. The search must not change anything, run code of the objects that it checks, or show a
secret's value. It runs after init and before the freeze; no request waits for it. Standard library only, Python 3.9 and
later.

Findings do not prevent the freeze: the engine itself refuses state that it cannot restore.
docs/reference/snapshot-lint.md explains the rules.
"""

from __future__ import annotations

import os
import sys
import time
import types
from collections import Counter
from collections.abc import Iterable
from typing import Any

from thawd.snapshot.connections import NEW, PAIR, Openings
from thawd.snapshot.lint import checks as lint_checks
from thawd.snapshot.lint import reach
from thawd.snapshot.lint.rule_texts import NOTE, RULES, WARNING, Finding, Rule, finding

__all__ = ["NOTE", "RULES", "WARNING", "Finding", "Rule", "describe", "finding", "findings", "user_modules"]

_MAX_OBJECTS = 2_000_000
_MAX_S = 10.0
_LIBRARY_FOLDERS = ("site-packages", "dist-packages")


def user_modules(folder: str) -> list[types.ModuleType]:
    """The imported modules that are the function's own: their files are in `folder`.

    Modules in a ``site-packages`` of `folder` are excluded, and so are modules that pip has installed beside the
    handler: pip lists them in a ``RECORD``.
    """
    root = os.path.join(os.path.realpath(folder), "")
    installed = _installed(root)
    found = []
    for name, module in list(sys.modules.items()):
        if not any(base is types.ModuleType for base in reach.mro(type(module))):
            continue
        path = vars(types.ModuleType)["__dict__"].__get__(module).get("__file__")
        if type(path) is not str or not os.path.realpath(path).startswith(root):
            continue
        parts = os.path.realpath(path)[len(root) :].split(os.sep)
        if parts[0] not in installed and not any(part in _LIBRARY_FOLDERS for part in parts):
            found.append((name, module))
    return [module for _, module in sorted(found, key=lambda pair: pair[0])]


def _installed(root: str) -> set[str]:
    """Names in `root` that belong to packages installed there. Source: PyPA, "Recording installed projects"."""
    names = set()
    for entry in os.listdir(root):
        if entry.endswith(".dist-info"):
            try:
                with open(os.path.join(root, entry, "RECORD"), encoding="utf-8") as record:
                    names |= {line.split(",")[0].strip('"').split("/")[0] for line in record}
            except OSError:
                continue
    return names


def findings(
    modules: Iterable[types.ModuleType],
    *,
    own_fds: Iterable[int] = (),
    openings: Openings | None = None,
    max_objects: int = _MAX_OBJECTS,
    max_s: float = _MAX_S,
) -> list[Finding]:
    """Search the process. Takes about a microsecond for each object and keeps all objects alive meanwhile.

    Args:
        modules: the function's own modules, see `user_modules`.
        own_fds: the runtime's descriptors, which are not reported.
        openings: records of which code opened sockets.
        max_objects: stop after this number of objects, with a finding TS000.
        max_s: stop after this time, seconds, with a finding TS000.

    Returns:
        The findings, warnings before notes, then sorted by rule and place.
    """
    searched = list(modules)
    checks = lint_checks.Checks(sources=_sources(searched), own_fds=own_fds, openings=openings)
    began_s = time.monotonic()
    complete = reach.walk(searched, checks.visit, max_objects=max_objects, max_s=max_s)
    if not complete:
        spent_s = time.monotonic() - began_s
        what = f"the search stopped at its limit of {max_objects} objects or {max_s:g} s; it took {spent_s:.1f} s"
        checks.found.append(finding("TS000", "everything", what))
    checks.found.extend(_default_loop(checks))
    checks.found.extend(_threads())
    checks.found.extend(_native_threads())
    checks.found.extend(_other_sockets(checks))
    return sorted(checks.found, key=lambda found: (found.level != WARNING, found.rule, found.where))


def describe(found: Iterable[Finding]) -> str:
    """The findings as text for people, one paragraph each; empty when there are none."""
    return "\n".join(
        f"{one.rule} {one.level}: {one.where}: {one.what}\n    {one.why}\n    {one.way_out}\n" for one in found
    )


def _sources(modules: Iterable[types.ModuleType]) -> str:
    texts = []
    for module in modules:
        path = vars(types.ModuleType)["__dict__"].__get__(module).get("__file__")
        if type(path) is str and path.endswith(".py"):
            try:
                with open(path, encoding="utf-8", errors="replace") as file:
                    texts.append(file.read().lower())
            except OSError:
                continue
    return "\n".join(texts)


def _default_loop(checks: lint_checks.Checks) -> list[Finding]:
    """Findings on the loop that ``asyncio.get_event_loop`` made for this thread.

    The walk over the modules' objects does not find that loop if no module refers to it.
    """
    events: Any = sys.modules.get("asyncio.events")
    local = reach.attributes(getattr(events, "_event_loop_policy", None)).get("_local")
    # Only asyncio's own classes: reading attributes of another class may run its code.
    loop = getattr(local, "_loop", None) if reach.class_module(type(local)) == "asyncio.events" else None
    state = lint_checks.loop_state(loop) if loop is not None else ""
    if not state or any(one.rule == "TS006" for one in checks.found):
        return []
    what = f"{state}: {reach.class_names(type(loop))[0]}"
    return [finding("TS006", "asyncio.get_event_loop()", what, level="" if state == lint_checks.RUNNING else NOTE)]


def _threads() -> list[Finding]:
    threading: Any = sys.modules.get("threading")
    found: list[Finding] = []
    for ident, thread in list(threading._active.items()) if threading is not None else ():
        if ident in (threading.get_ident(), threading.main_thread().ident):
            continue
        held = reach.attributes(thread)
        target = held.get("_target")
        kind = "daemon thread" if held.get("_daemonic") is True else "thread"
        name = held.get("_name")
        # A pool's thread gets only a note: it waits for work, and in a copy does nothing until it gets work.
        waits = _is_pools(target) or held.get("_work_queue") is not None
        where = f"thread {name!r}" if type(name) is str else "a thread"
        found.append(
            finding("TS003", where, f"a {kind} that runs {_called(thread, target)}", level=NOTE if waits else "")
        )
    return found


def _is_pools(target: Any) -> bool:
    return type(target) is types.FunctionType and target.__module__ == "concurrent.futures.thread"


def _called(thread: Any, target: Any) -> str:
    if type(target) is types.MethodType:
        target = target.__func__
    if type(target) is types.FunctionType or type(target) is types.BuiltinFunctionType:
        return f"{target.__module__}.{target.__qualname__}"
    return f"{reach.class_names(type(thread))[0]}.run"


def _native_threads() -> list[Finding]:
    threading: Any = sys.modules.get("threading")
    python_ids: set[Any] = {os.getpid()}
    if threading is not None:
        python_ids |= {reach.attributes(thread).get("_native_id") for thread in list(threading._active.values())}
    names: Counter[str] = Counter()
    try:
        for task in os.listdir("/proc/self/task"):
            if int(task) not in python_ids:
                with open(f"/proc/self/task/{task}/comm", encoding="utf-8", errors="replace") as comm:
                    names[comm.read().strip()] += 1
    except OSError:
        return []  # /proc cannot be read, or a thread ended during the loop
    listed = ", ".join(f"{count} named {name!r}" for name, count in sorted(names.items()))
    return [finding("TS011", "this process", listed)] if listed else []


def _other_sockets(checks: lint_checks.Checks) -> list[Finding]:
    """Findings on sockets that no reachable object holds: they belong to libraries or to native code."""
    return [
        finding(
            "TS002",
            f"descriptor {held.number}",
            f"a socket that none of the function's objects holds, {held.state()}",
            level=NOTE if held.kind == NEW else "",
        )
        for held in checks.openings.sockets(checks.known_fds)
        if held.kind != PAIR
    ]
