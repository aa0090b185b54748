"""For all tests: how they are spread over processes, what the processes they start inherit, examples without a limit.

A worker of pytest-xdist gets whole files, so that a module's fixtures are made once. The files with tests that are
marked `serial` all go to one worker, one after another. See tests/README.md.
"""

from __future__ import annotations

import inspect
import os
import signal
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.loops import run

# Hypothesis fails an example that takes more than 0.2 s, and one that was slow to make: so does a busy machine.
settings.register_profile("thawd", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("thawd")

# Tests, servers and functions find their modules compiled: compiling them takes as long as all else of a start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Longest first, so that no worker is left alone with a long file at the end.
FOLDERS = (
    "durability",
    "integration",
    "native",
    "earlier",
    "conformance",
    "endurance",
    "architecture",
    "specification",
    "unit",
)


def pytest_configure() -> None:
    """A shell that starts us in the background has us ignore Ctrl-C, and every process we start would do so, too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is `async def` runs on a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}))
    return True


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """For `-n auto`: no workers for one file, or where -s is to show what tests print; else one more than processors.

    Tests wait for processes and disks about as long as they compute.
    """
    files = {argument.partition("::")[0] for argument in config.args}
    one_file = len(files) == 1 and Path(*files).is_file()
    return 0 if one_file or config.getoption("capture") == "no" else len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    """For `--dist loadfile`: a worker gets whole files, and one worker gets all those with tests marked `serial`."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "serial" if _is_serial(config.rootpath / file) else file

    return ByFile(config, log) if config.getoption("dist") == "loadfile" else None


@cache
def _is_serial(file: Path) -> bool:
    return "pytest.mark.serial" in file.read_text()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The serial group comes first: it is the longest row that nothing can shorten."""
    items.sort(key=lambda item: (not _is_serial(item.path), _place(item.path.parent.name)))


def _place(folder: str) -> int:
    return FOLDERS.index(folder) if folder in FOLDERS else 0
