"""A pytest plugin: a worker of pytest-xdist imports a test file when it runs the file's tests, and no other test file.

Without it each worker imports all test files and makes all tests before the first one runs, although it runs only a
part of them. With it a worker collects one `WholeFile` for each test file. When the worker runs that item, it collects
the file's tests and runs them one after another. Reports name the tests, as usual. The plugin works with
`--dist loadfile` only, and not if the command line selects tests within files.
"""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

# The options that select tests within files.
SELECTIONS = ("keyword", "markexpr", "deselect", "collectonly")
# The options with which pytest shows what fixtures did, too.
DETAILS = ("durations", "xmlpath", "setupshow", "setuponly", "log_cli_level")
INPUT = "thawd_whole_files"
SEVERAL = "several"


class TestFile(pytest.File):
    """A test file whose tests are not collected yet."""

    __test__ = False

    def collect(self) -> Iterator[WholeFile]:
        """Yield the one item that stands for the file's tests."""
        item: WholeFile = WholeFile.from_parent(self, name="all tests")
        item.folder = self.parent
        # The time limit holds for each test.
        item.add_marker(pytest.mark.timeout(0))
        yield item


class WholeFile(pytest.Item):
    """Collects the tests of a file and runs them.

    Attributes:
        folder: the node of the file's folder.
    """

    folder: pytest.Collector | None = None

    def runtest(self) -> None:
        """Do nothing: `run_tests` reports each test by itself."""

    def run_tests(self, following: pytest.Item | None) -> None:
        """Collect the file's tests and run them.

        Args:
            following: the item that the worker runs next. Fixtures that it can use, too, are kept.
        """
        tests = self._tests()
        if not tests:
            # Fixtures of the file before this one may be left that the following one does not have.
            self.session._setupstate.teardown_exact(following)
        place = self.session.items.index(self)
        try:
            for test, successor in itertools.pairwise([*tests, following]):
                assert test is not None
                # pytest-xdist sends a report only if it is about the item at the place that it was told to run.
                self.session.items[place] = test
                self.config.hook.pytest_runtest_protocol(item=test, nextitem=successor)
                if self.session.shouldfail or self.session.shouldstop:
                    break
        finally:
            self.session.items[place] = self

    def _tests(self) -> list[pytest.Item]:
        # The objects stay: see tests/conftest.py.
        gc.disable()
        module: pytest.Module = pytest.Module.from_parent(self.folder, path=self.path)
        tests = list(self.session.genitems(module))
        self.config.hook.pytest_collection_modifyitems(session=self.session, config=self.config, items=tests)
        gc.freeze()
        gc.enable()
        return tests


class Reports:
    """The reports of a worker, of which several go into one message: a message takes longer than most tests.

    Args:
        interactor: pytest-xdist's plugin of a worker; its `sendevent` becomes that of this object.
    """

    KEPT_S = 0.3

    def __init__(self, interactor: Any) -> None:
        self._channel = interactor.channel
        self._kept: list[tuple[str, dict[str, Any]]] = []
        self._sent_s = 0.0
        interactor.sendevent = self.send

    def send(self, name: str, **content: Any) -> None:
        """Send an event, soon if it is the report of a test that passed, else immediately with all that were kept."""
        self._kept.append((name, content))
        if name == "testreport" and content["data"]["outcome"] == "passed":
            self.send_old()
        else:
            self._send()

    def send_old(self) -> None:
        """Send what was kept if the last message was sent some time ago."""
        if self._kept and time.monotonic() - self._sent_s > self.KEPT_S:
            self._send()

    def _send(self) -> None:
        self._sent_s = time.monotonic()
        self._channel.send((SEVERAL, {"events": self._kept}))
        self._kept = []


class InWorker:
    """Hooks of a worker."""

    def __init__(self, reports: Reports) -> None:
        self.reports = reports

    @pytest.hookimpl
    def pytest_pycollect_makemodule(self, module_path: Path, parent: pytest.Collector) -> TestFile:
        """Collect the file as one item."""
        return TestFile.from_parent(parent, path=module_path)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run all tests of a file; or one test, reporting what it did, and of its fixtures only what failed.

        pytest makes six messages to the controller of each test, and they take longer than most tests.
        """
        if isinstance(item, WholeFile):
            item.run_tests(nextitem)
            return True
        if any(item.config.getoption(option, None) for option in DETAILS):
            return None
        self.reports.send_old()
        for report in runtestprotocol(item, log=False, nextitem=nextitem):
            if report.when == "call" or not report.passed:
                item.ihook.pytest_runtest_logreport(report=report)
        return True


class InController:
    """Hooks of the process that distributes the files."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.tests: set[str] = set()
        self.all_files = 0
        self.session: pytest.Session | None = None

    @pytest.hookimpl
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Keep the session."""
        self.session = session

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a new worker that it runs whole files, and take its messages apart."""
        node.workerinput[INPUT] = True
        process = node.process_from_remote

        def process_each(message: Any) -> None:
            events = message[1]["events"] if isinstance(message, tuple) and message[0] == SEVERAL else [message]
            for event in events:
                process(event)

        node.process_from_remote = process_each

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Make the percentage that pytest prints that of the files whose tests have begun.

        pytest divides the number of tests that ran by `testscollected`. Here, that is the number of files at first.
        """
        assert self.session is not None
        self.all_files = self.all_files or self.session.testscollected
        self.files.add(report.nodeid.partition("::")[0])
        self.tests.add(report.nodeid)
        self.session.testscollected = max(len(self.tests), len(self.tests) * self.all_files // len(self.files))


def register(config: pytest.Config) -> None:
    """Add the hooks to a worker that runs whole files, or to the process whose workers do."""
    if hasattr(config, "workerinput"):
        if config.workerinput.get(INPUT):
            [interactor] = [one for one in config.pluginmanager.get_plugins() if hasattr(one, "sendevent")]
            config.pluginmanager.register(InWorker(Reports(interactor)))
        return
    selected = any(config.getoption(option, None) for option in SELECTIONS) or any("::" in name for name in config.args)
    if config.getoption("dist", None) == "loadfile" and config.getoption("tx") and not selected:
        config.pluginmanager.register(InController())
