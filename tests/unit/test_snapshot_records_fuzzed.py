"""Records that a holder of the key has changed at random: refused or harmless, and nothing outside is touched."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.unit.chunk_stores import KEY, Machine, MemoryPlace, elsewhere
from thawd.errors import ThawdError
from thawd.snapshot.inspect import reader
from thawd.transfer import receiving, sending
from thawd.transfer.chunk_downloads import ChunkSource
from thawd.transfer.chunk_format import decode_record, encode_record

RUNS = int(os.environ.get("THAWD_FUZZ_RUNS", "150"))
OTHER_VALUES: list[Any] = [
    None, True, -1, 0, 1, 7, 4096, 2**31, 2**63, 2**70, 1.5, "", ".", "..", "../x", "/etc/x", "a\0b", "x" * 300, "link",
    "same", "folder", "file", "disk:../../x", "bin/python", [], {}, [[0, 0, 0, 1]], "0" * 64, "packages/" + "c" * 64,
]  # fmt: skip


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each container in a document with each of its keys or indexes."""
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from places(value[key])


def changed(document: Any, draw: random.Random) -> Any:
    """Return a copy with up to three changes: another value, a value of another place, a value fewer or twice."""
    document = copy.deepcopy(document)
    for _ in range(draw.randrange(1, 4)):
        found = list(places(document))
        where, key = draw.choice(found)
        kind = draw.randrange(5)
        if kind == 0:
            other, other_key = draw.choice(found)
            where[key] = copy.deepcopy(other[other_key])
        elif kind == 1:
            del where[key]
        elif kind == 2 and isinstance(where, list):
            where.insert(key, copy.deepcopy(where[key]))
        else:
            where[key] = draw.choice(OTHER_VALUES)
    return document


def outside(folder: Path) -> dict[str, tuple[int, int]]:
    """The files of the machine that no snapshot may touch."""
    paths = [path for path in folder.rglob("*") if folder / "machine" / "data" not in (path, *path.parents)]
    return {str(path): (path.lstat().st_mtime_ns, path.lstat().st_ino) for path in paths if path.name != "machine"}


def test_no_changed_record_raises_another_error_or_reaches_other_files(tmp_path: Path) -> None:
    machine, place, draw = Machine(tmp_path / "machine"), MemoryPlace(), random.Random(RUNS)
    machine.install()
    sent = sending.send(machine.store, machine.freeze(), place, KEY)
    key = KEY.function_key("classify")
    text, ids = decode_record(place.objects[sent.key][0], key=key)
    document, sha256 = json.loads(text), sent.key.rpartition("/")[2]
    there = elsewhere(machine)
    before = outside(tmp_path)
    refused = 0
    for _ in range(RUNS):
        body = json.dumps(changed(document, draw)).encode()
        place.objects[sent.key] = (encode_record(body, ids, key=key), 0.0)
        try:
            record = receiving.read_record(place, KEY, "classify", sha256)
            got = receiving.receive(there.store, ChunkSource(place), record, program=None)
            reader.read(got.snapshot.path)
        except ThawdError:
            refused += 1
        assert outside(tmp_path) == before, body
        data = there.folder / "data"
        made = {path.name for path in data.iterdir()} if data.exists() else set()
        assert made <= {"snapshots", "environments", "packages"}, body
        shutil.rmtree(data, ignore_errors=True)
    assert refused > RUNS // 2
