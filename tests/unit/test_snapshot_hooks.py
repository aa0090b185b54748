"""`thawd.snapshot.hooks` and thawd's ``snapshot_restore_py``: order, time limit, errors, and which registry is used."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.unit.interpreters_here import INTERPRETERS
from thawd.runtime import faults
from thawd.snapshot import hooks

ROOT = Path(__file__).parents[2]
OURS = ROOT / "src" / "thawd" / "runtime" / "snapshot_restore_py.py"


def told(code: str, *, python: str = sys.executable, path: Path | None = None) -> Any:
    """Run `code` in a separate process and return what it prints as JSON."""
    search = [str(ROOT / "src"), *([str(path)] if path else [])]
    done = subprocess.run(
        [python, "-c", textwrap.dedent(code)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(search)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """thawd's module, freshly imported, under the name that functions import."""
    spec = importlib.util.spec_from_file_location(hooks.MODULE, OURS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, hooks.MODULE, module)
    before = signal.getsignal(signal.SIGALRM)
    yield module
    assert signal.getsignal(signal.SIGALRM) == before


def hang() -> None:
    threading.Event().wait(60)


@pytest.mark.parametrize("python", INTERPRETERS)
def test_a_function_without_the_package_is_served_ours_and_may_use_it_in_both_ways(python: str) -> None:
    code = """
        import json, sys
        sys.path[:] = [path for path in sys.path if "site-packages" not in path]  # some have the package
        from thawd.snapshot import hooks
        hooks.install()
        hooks.install()
        from snapshot_restore_py import register_after_restore, register_before_snapshot
        ran = []
        @register_before_snapshot
        def first():
            ran.append("first")
        @register_after_restore
        def back():
            ran.append("back")
        def last(*args, **kwargs):
            ran.append(["last", list(args), kwargs])
        same = register_before_snapshot(last, 1, b=2) is last and register_after_restore(last, 3) is last
        counts = [hooks.run_before(), hooks.run_after()]
        finders = [finder for finder in sys.meta_path if finder.__module__ == "thawd.snapshot.hooks"]
        print(json.dumps([same, first.__name__, back.__name__, counts, ran, len(finders), sys.meta_path[-1] in finders,
                          sys.modules["snapshot_restore_py"].__file__]))
    """
    *facts, file = told(code, python=python)
    ran = [["last", [1], {"b": 2}], "first", "back", ["last", [3], {}]]
    assert facts == [True, "first", "back", [2, 2], ran, 1, True]
    assert Path(file).samefile(OURS)


def test_a_package_that_is_installed_wins_and_its_hooks_are_run(tmp_path: Path) -> None:
    (tmp_path / "snapshot_restore_py.py").write_text(
        "ran = []\n"
        "def get_before_snapshot():\n    return [(ran.append, ('before',), {})]\n"
        "def get_after_restore():\n    return [(ran.append, ('after',), {})]\n"
    )
    code = """
        import json
        from thawd.snapshot import hooks
        hooks.install()
        import snapshot_restore_py
        pending = snapshot_restore_py.get_before_snapshot()
        snapshot_restore_py.get_before_snapshot = lambda: pending
        print(json.dumps([hooks.run_before(), hooks.run_after(), snapshot_restore_py.ran]))
    """
    assert told(code, path=tmp_path) == [1, 1, ["before", "after"]]


def test_other_modules_are_none_of_the_finders_business() -> None:
    code = """
        import json
        from thawd.snapshot import hooks
        hooks.install()
        try:
            import snapshot_restore_py_2
        except ModuleNotFoundError as error:
            print(json.dumps(str(error)))
    """
    assert told(code) == "No module named 'snapshot_restore_py_2'"


@pytest.mark.parametrize("python", INTERPRETERS)
def test_without_registered_hooks_nothing_is_loaded_and_nothing_runs(python: str) -> None:
    code = """
        import json, sys
        from thawd.snapshot import hooks
        hooks.install()
        before = set(sys.modules)
        counts = [hooks.run_before(), hooks.run_after()]
        print(json.dumps([counts, sorted(set(sys.modules) - before)]))
    """
    assert told(code, python=python) == [[0, 0], []]


def test_the_getters_give_the_lists_themselves_as_the_public_package_does(registry: Any) -> None:
    registry.register_before_snapshot(hang, 1, a=2)
    registry.register_after_restore(print)
    assert registry.get_before_snapshot() == [(hang, (1,), {"a": 2})]
    assert registry.get_after_restore() == [(print, (), {})]
    assert registry.get_before_snapshot() is registry.get_before_snapshot()
    assert registry.__all__ == ["register_after_restore", "register_before_snapshot"]


def test_before_hooks_run_once_and_backwards_and_after_hooks_in_every_copy_and_forwards(registry: Any) -> None:
    ran: list[str] = []
    for name in "abc":
        registry.register_before_snapshot(ran.append, f"before {name}")
        registry.register_after_restore(ran.append, f"after {name}")
    assert (hooks.run_before(), hooks.run_before()) == (3, 0)
    assert (hooks.run_after(), hooks.run_after()) == (3, 3)
    after = ["after a", "after b", "after c"]
    assert ran == ["before c", "before b", "before a", *after, *after]


def test_a_hook_may_register_further_ones_of_its_kind(registry: Any) -> None:
    ran: list[str] = []
    registry.register_before_snapshot(ran.append, "first")
    registry.register_before_snapshot(registry.register_before_snapshot, ran.append, "added")
    assert hooks.run_before() == 3
    assert ran == ["added", "first"]
    registry.register_after_restore(registry.register_after_restore, ran.append, "added after")
    assert hooks.run_after() == 2
    assert ran[-1] == "added after"


class UnspeakableError(Exception):
    def __str__(self) -> NoReturn:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("bad"), "ValueError: bad"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt: "),
        (UnspeakableError(), "UnspeakableError: <no message: __str__ raised RuntimeError>"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_whatever_a_hook_raises_is_lambdas_error_with_its_exit_status(
    registry: Any, error: BaseException, text: str
) -> None:
    def fails() -> NoReturn:
        raise error

    ran: list[str] = []
    registry.register_before_snapshot(ran.append, "registered before")
    registry.register_before_snapshot(fails)
    with pytest.raises(hooks.HookError) as before:
        hooks.run_before()
    registry.register_after_restore(fails)
    registry.register_after_restore(ran.append, "registered after")
    with pytest.raises(hooks.HookError) as after:
        hooks.run_after()
    assert ran == []
    assert (before.value.error_type, before.value.exit_status) == ("Runtime.BeforeSnapshotError", 64)
    assert (after.value.error_type, after.value.exit_status) == ("Runtime.AfterRestoreError", 65)
    name = f"{__name__}.{fails.__qualname__}"
    assert before.value.message == str(before.value) == f"the before-snapshot hook {name} raised {text}"
    assert after.value.message == f"the after-restore hook {name} raised {text}"
    assert before.value.cause is after.value.cause is error
    assert not after.value.timed_out


def test_what_cannot_be_called_and_what_has_no_name_is_an_error_too(registry: Any) -> None:
    registry.register_before_snapshot(3)
    with pytest.raises(hooks.HookError, match="hook of type int raised TypeError"):
        hooks.run_before()


def test_a_hook_that_hangs_is_ended_and_the_error_shows_where_it_was(registry: Any) -> None:
    ran: list[str] = []
    registry.register_after_restore(ran.append, "before it")
    registry.register_after_restore(hang)
    registry.register_after_restore(ran.append, "after it")
    with pytest.raises(hooks.HookError) as raised:
        hooks.run_after(limit_s=0.1)
    assert ran == ["before it"]
    error = raised.value
    assert error.timed_out
    assert (error.error_type, error.exit_status) == ("Runtime.AfterRestoreError", 65)
    assert error.message == f"the after-restore hooks took longer than 0.1 s; {__name__}.hang was running"
    assert "hang" in {frame.name for frame in traceback.extract_tb(error.cause.__traceback__)}


def test_the_time_limit_is_for_all_hooks_together(registry: Any) -> None:
    for _ in range(100):
        registry.register_after_restore(threading.Event().wait, 0.05)
    with pytest.raises(hooks.HookError) as raised:
        hooks.run_after(limit_s=0.2)
    assert raised.value.timed_out


def test_a_hook_that_swallows_or_replaces_the_time_limit_is_late_nevertheless(registry: Any) -> None:
    def swallows() -> None:
        try:
            hang()
        except BaseException:
            return

    def replaces() -> None:
        try:
            hang()
        except BaseException as error:
            raise ValueError("something else") from error

    ran: list[str] = []
    for hook in (swallows, replaces):
        registry.get_after_restore().clear()
        registry.register_after_restore(hook)
        registry.register_after_restore(ran.append, "later")
        with pytest.raises(hooks.HookError, match=f"longer than 0.05 s; .*{hook.__name__} was running") as raised:
            hooks.run_after(limit_s=0.05)
        assert raised.value.timed_out
        assert isinstance(raised.value.cause, hooks.TimeLimit)
        assert "hang" in {frame.name for frame in traceback.extract_tb(raised.value.cause.__traceback__)}
    assert ran == []


def test_hooks_in_time_are_not_disturbed_later(registry: Any) -> None:
    registry.register_after_restore(int)
    assert hooks.run_after(limit_s=0.5) == 1
    threading.Event().wait(0.7)


@pytest.mark.parametrize("python", INTERPRETERS)
def test_the_functions_own_handler_and_timer_of_the_signal_are_put_back(python: str) -> None:
    code = """
        import json, signal, threading
        from thawd.snapshot import hooks
        hooks.install()
        import snapshot_restore_py
        rang = threading.Event()
        def ring(signum, frame):
            rang.set()
        signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, 3600, 100)
        snapshot_restore_py.register_after_restore(int)
        hooks.run_after()
        left, interval = signal.getitimer(signal.ITIMER_REAL)
        signal.raise_signal(signal.SIGALRM)
        print(json.dumps([signal.getsignal(signal.SIGALRM) is ring, 0 < left <= 3600, interval, rang.is_set()]))
    """
    assert told(code, python=python) == [True, True, 100.0, True]


def test_outside_the_main_thread_hooks_run_without_a_limit_of_their_own(registry: Any) -> None:
    results: list[int] = []
    registry.register_after_restore(threading.Event().wait, 0.1)
    thread = threading.Thread(target=lambda: results.append(hooks.run_after(limit_s=0.01)))
    thread.start()
    thread.join(30)
    assert results == [1]


def test_before_hooks_have_no_limit_of_their_own_and_leave_the_signal_alone(registry: Any) -> None:
    seen: list[Any] = []
    registry.register_before_snapshot(lambda: seen.append(signal.getsignal(signal.SIGALRM)))
    hooks.run_before()
    assert seen == [signal.getsignal(signal.SIGALRM)]


def test_the_limit_of_after_hooks_is_lambdas(registry: Any) -> None:
    seen: list[float] = []
    registry.register_after_restore(lambda: seen.append(signal.getitimer(signal.ITIMER_REAL)[0]))
    hooks.run_after()
    assert 9 < seen[0] <= 10


def test_what_the_runtime_reports_of_a_hook_has_lambdas_type_and_the_functions_frames_alone(registry: Any) -> None:
    registry.register_after_restore(hang)
    with pytest.raises(hooks.HookError) as raised:
        hooks.run_after(limit_s=0.05)
    error = raised.value
    report = faults.report(faults.Fault(error.error_type, error.message, error.cause))
    assert report.error_type == "Runtime.AfterRestoreError"
    assert "in hang" in report.frames[0]
    assert "thawd/snapshot/hooks.py" not in report.text
