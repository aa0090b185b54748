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
    """A folder that all users can enter, which pytest's own is not; a guard ends what is left in it."""
    folder = Path(tempfile.mkdtemp(prefix="thawd-native-"))
    folder.chmod(0o755)
    with guarded(folder):
        yield folder
        expect_none(folder)


@pytest.fixture(scope="session")
def engine(open_folder: Path) -> Engine:
    """The engine; a test that asks for it fails where it was not built."""
    return Engine(open_folder)


@pytest.fixture
def own_folder(open_folder: Path) -> Iterator[Path]:
    """A folder for one test, gone when it ends."""
    folder = Path(tempfile.mkdtemp(dir=open_folder))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def keeper(engine: Engine, own_folder: Path) -> Iterator[Keeper]:
    """Starts programs in the test's own folder; none of them outlives the test."""
    with contextlib.closing(engine.keeper(own_folder)) as keeper:
        yield keeper


@pytest.fixture
def trial(engine: Engine, open_folder: Path) -> Iterator[Callable[..., Trial]]:
    """Make a trial of a case; its processes and its folder go when the test ends."""
    with contextlib.ExitStack() as at_end:

        def make(case: Case, *, identity: Identity = SELF, program: Sequence[object] = ()) -> Trial:
            folder = Path(tempfile.mkdtemp(prefix=f"{case}.", dir=open_folder))
            at_end.callback(shutil.rmtree, folder, ignore_errors=True)
            made = Trial(engine, case, folder, identity=identity, program=program)
            at_end.callback(made.keeper.close)
            return made

        yield make
