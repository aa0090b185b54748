"""The engine, copied for this session, and a folder for each trial."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.native.engine import Case, Engine, Trial
from tests.native.processes import SELF, Identity, Keeper, expect_none, guarded


@pytest.fixture(scope="session")
def open_folder() -> Iterator[Path]:
    """A folder that all users can enter, unlike pytest's own.

    A guard process kills what is still running in it at the end.
    """
    folder = Path(tempfile.mkdtemp(prefix="thawd-native-"))
    folder.chmod(0o755)
    with guarded(folder):
        yield folder
        expect_none(folder)


@pytest.fixture(scope="session")
def engine(open_folder: Path) -> Engine:
    """The engine. A test that uses it fails if the engine is not built."""
    return Engine(open_folder)


@pytest.fixture
def own_folder(open_folder: Path) -> Iterator[Path]:
    """A folder for one test, removed when the test ends."""
    folder = Path(tempfile.mkdtemp(dir=open_folder))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def keeper(engine: Engine, own_folder: Path) -> Iterator[Keeper]:
    """A keeper that starts programs in the test's own folder. None of them outlives the test."""
    with contextlib.closing(engine.keeper(own_folder)) as keeper:
        yield keeper


@pytest.fixture
def trial(engine: Engine, open_folder: Path) -> Iterator[Callable[..., Trial]]:
    """A function that makes a trial of a case. Its processes and folder are removed when the test ends."""
    with contextlib.ExitStack() as at_end:

        def make(case: Case, *, identity: Identity = SELF, program: Sequence[object] = ()) -> Trial:
            folder = Path(tempfile.mkdtemp(prefix=f"{case}.", dir=open_folder))
            at_end.callback(shutil.rmtree, folder, ignore_errors=True)
            made = Trial(engine, case, folder, identity=identity, program=program)
            at_end.callback(made.keeper.close)
            return made

        yield make
