"""What is stored after a sync has failed is on the disk, even if another process goes on with what that sync left."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from tests.durability import disk
from tests.durability.disk import FaultyDisk
from tests.durability.test_faulty_disk import run

T = TypeVar("T")
WRITER = """
    import os, sys
    from pathlib import Path
    from thawd.errors import StoreError
    from thawd.stores.database import Database
    path, *words = sys.argv[1:]
    try:
        db = Database(Path(path), migrations=["CREATE TABLE words (word TEXT)"])
    except StoreError as error:
        print("refused", error.message, flush=True)
        raise SystemExit
    for word in words:
        if word == "!":  # every sync fails from now on
            with open(os.environ["FAULTY_DISK_CONTROL"], "r+b") as switches:
                switches.seek(SYNC_FAILURES)
                switches.write((10**6).to_bytes(8, "little"))
            continue
        try:
            db.write_now(lambda connection: connection.execute("INSERT INTO words VALUES (?)", (word * 3000,)))
            print(word, flush=True)
        except StoreError:
            print("failed", flush=True)
    print("end", flush=True)
    sys.stdin.read()
"""
WRITER = WRITER.replace("SYNC_FAILURES", str(8 * disk.FIELDS.index("sync_failures")))
READER = """
    import sqlite3, sys
    db = sqlite3.connect(sys.argv[1])
    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    print(*[word[0] for (word,) in db.execute("SELECT word FROM words")])
"""


class _AllIsLost(random.Random):
    """Chooses that everything is lost that can be lost."""

    def choice(self, seq: Sequence[T]) -> T:  # type: ignore[override]
        return max(seq) if isinstance(seq[0], float) else seq[0]  # type: ignore[type-var]

    def random(self) -> float:
        return 0.0

    def randint(self, a: int, b: int) -> int:
        return b


def write(on: FaultyDisk, path: Path, words: str) -> set[str]:
    """Store words in a new process and kill it; return those that it stored. After "!" every sync fails."""
    printed = run(on, WRITER, str(path), *words, lines=len(words.replace("!", "")) + 1)
    on.heal()
    return set(words) & set(printed)


def after_power_cut(on: FaultyDisk, path: Path) -> set[str]:
    on.cut(_AllIsLost())
    (line,) = run(on, READER, str(path))
    return set(line.split())


@pytest.mark.parametrize("refused", ["", "x", "xyz"])
@pytest.mark.parametrize("after", ["c", "cde"])
def test_what_is_stored_after_a_failed_sync_survives_a_power_cut(tmp_path: Path, refused: str, after: str) -> None:
    on = FaultyDisk(tmp_path / "disk", tmp_path / "aside", seed=1)
    path = tmp_path / "disk" / "words.db"
    # Given a process that is killed when none of its syncs succeeds any more
    write(on, path, "a")
    assert write(on, path, f"b!{refused}") == {"b"}
    # When another process stores more, and the power is cut
    assert write(on, path, after) == set(after)
    # Then everything that was stored is there.
    assert after_power_cut(on, path) >= {"a", "b", *after}


@pytest.mark.parametrize("which", range(1, 9))
def test_a_file_during_whose_creation_a_sync_failed_is_durable_once_it_is_used(tmp_path: Path, which: int) -> None:
    on = FaultyDisk(tmp_path / "disk", tmp_path / "aside", seed=1)
    path = tmp_path / "disk" / "words.db"
    on.fail_sync = which
    stored = write(on, path, "a") | write(on, path, "b")
    assert "b" in stored
    assert after_power_cut(on, path) >= stored


@pytest.mark.parametrize("cut_bytes", [1, 24, 4096, 4100, 4119, 4120, 4121])
def test_a_log_that_is_cut_off_anywhere_is_used_up_to_there(tmp_path: Path, cut_bytes: int) -> None:
    on = FaultyDisk(tmp_path / "disk", tmp_path / "aside", seed=1)
    path = tmp_path / "disk" / "words.db"
    assert write(on, path, "ab") == {"a", "b"}
    log = path.with_name("words.db-wal")
    os.truncate(log, log.stat().st_size - cut_bytes)
    assert write(on, path, "c") == {"c"}
    assert after_power_cut(on, path) == {"a", "c"}


def test_a_log_that_cannot_be_written_again_refuses_the_file_and_says_that_the_disk_failed(tmp_path: Path) -> None:
    on = FaultyDisk(tmp_path / "disk", tmp_path / "aside", seed=1)
    path = tmp_path / "disk" / "words.db"
    write(on, path, "a")
    on.fail_sync = 1
    (line,) = run(on, WRITER, str(path), "b")
    assert line.startswith(f"refused {path}: the disk failed (")
    on.heal()
    assert write(on, path, "b") == {"b"}
    assert after_power_cut(on, path) == {"a", "b"}
