"""Settings for all tests: how they are distributed over processes, what their child processes inherit, no time limit
for Hypothesis examples.

A worker of pytest-xdist gets whole files, so that a module's fixtures are made once. All files with tests marked
`serial` go to one worker and run one after another. See tests/README.md.
"""

from __future__ import annotations

import gc
import inspect
import os
import signal
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import whole_files
from tests.loops import run

# By default Hypothesis fails an example that takes more than 0.2 s or is slow to generate. That also happens on a busy
# machine.
settings.register_profile("thawd", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("thawd")

# Let tests, servers and functions write and find compiled modules: compiling takes as long as the rest of a start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Leave out the folder of pyenv's shims: each search for an interpreter would run one, which starts several shells
# (0.1 s). The interpreters behind them are found without it; the folder of this interpreter takes its place.
os.environ["PATH"] = os.pathsep.join(
    str(Path(sys.base_prefix, "bin")) if entry.endswith("/shims") and Path(entry, "../versions").is_dir() else entry
    for entry in os.environ.get("PATH", os.defpath).split(os.pathsep)
)

# Collecting all tests makes two million objects, and all of them stay. Meanwhile the garbage collector would go through
# them again and again, for a third of the time. tests/whole_files.py does the same for one file.
gc.disable()

# The longest folders come first, so that no worker is left alone with a long file at the end.
FOLDERS = (
    "durability",
    "integration",
    "native",
    "processes",
    "earlier",
    "conformance",
    "endurance",
    "architecture",
    "specification",
    "unit",
)


def pytest_configure(config: pytest.Config) -> None:
    """Let workers import only the files that they run; stop ignoring Ctrl-C, so that processes we start do not.

    A shell that starts the tests in the background makes them ignore it, and child processes inherit that.
    """
    whole_files.register(config)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is `async def` on its own event loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}))
    return True


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return the number of workers for `-n auto`.

    That is none for a single file or with -s, which shows what tests print; otherwise two more than there are
    processors. Tests wait for processes and disks about as long as they compute.
    """
    files = {argument.partition("::")[0] for argument in config.args}
    one_file = len(files) == 1 and Path(*files).is_file()
    return 0 if one_file or config.getoption("capture") == "no" else len(os.sched_getaffinity(0)) + 2


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    """Give each worker whole files with `--dist loadfile`. One worker gets all files with tests marked `serial`."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "serial" if _is_serial(config.rootpath / file) else file

        def _reschedule(self, node: Any) -> None:
            # A worker has one item more than it runs, because it runs an item only once it knows the next one, or that
            # there is none. With more it would keep whole files from idle workers. One that replaces a crashed worker
            # gets its first items when it has collected the tests.
            while (
                node in self.registered_collections
                and not node.shutting_down
                and self._pending_of(self.assigned_work[node]) < 2
            ):
                super()._reschedule(node)

        def remove_node(self, node: Any) -> str | None:
            workload = self.assigned_work.pop(node)
            pending = [(unit, item) for unit in workload.values() for item, has_run in unit.items() if not has_run]
            if not pending:
                return None
            unit, crashed = pending[0]
            unit[crashed] = True  # it is reported as failed, and not run again: it would end the next worker, too
            self.workqueue.update({scope: unit for scope, unit in workload.items() if not all(unit.values())})
            for other in self.assigned_work:
                self._reschedule(other)
            return crashed

    return ByFile(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_finish() -> None:
    """Enable the garbage collector, and let it leave out the objects that exist now."""
    gc.freeze()
    gc.enable()


@cache
def _is_serial(file: Path) -> bool:
    return "pytest.mark.serial" in file.read_text()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the serial group first: it takes longest, and more workers do not make it faster."""
    items.sort(key=lambda item: (not _is_serial(item.path), _place(item.path.parent.name)))


def _place(folder: str) -> int:
    return FOLDERS.index(folder) if folder in FOLDERS else 0
