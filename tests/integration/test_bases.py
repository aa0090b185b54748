"""Functions whose snapshots share a base: what they share, what the base must not hold, and when there is none."""

from __future__ import annotations

import json
import os
import signal
import time
import venv
from pathlib import Path
from typing import Any

import pytest

from thawd.snapshot.engine import unavailable

from .conftest import Project, Running, eventually, processes_of

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))

SECRET = "a-secret-of-first-0123456789"
MARK = "a-mark-in-the-code-of-first-0123456789"
CODE = """
import os, sys, random
SEEN = random.random()
def handler(event, context):
    return {
        "variables": dict(os.environ), "name": context.function_name, "seen": SEEN, "value": random.random(),
        "modules": {name: str(getattr(module, "__file__", None)) for name, module in sys.modules.items()},
        "path": sys.path, "switch": getattr(sys, "switch_of_test", None),
    }
"""


def snapshot(running: Running, name: str) -> dict[str, Any]:
    found: dict[str, Any] = running.function(name)["snapshot"]
    assert found["OptimizationStatus"] == "On", found
    return found


def image(project: Project, identifier: str) -> Path:
    (found,) = (project.data / "snapshots").glob(f"{identifier}*.img")
    return found


def stored_bytes(path: Path) -> int:
    return path.stat().st_blocks * 512


def ask(running: Running, name: str, event: object = None) -> Any:
    answer, error = running.invoke(name, event)
    assert error is None, answer
    return answer


REAL = 'paths = "real"\n'  # so that each environment has a TMPDIR of its own, on which a base must not depend


def two(project: Project, *, server: str = REAL + 'bases = "auto"', first: str = "", second: str = "") -> None:
    project.code(CODE + f"MARK = {MARK!r}\n", name="first.py")
    project.code(CODE, name="second.py")
    project.config(
        f'{server}\n[functions.first]\nhandler = "first.handler"\nenvironment = {{ OWN = "{SECRET}" }}\n{first}'
        f'[functions.second]\nhandler = "second.handler"\n{second}'
    )


def test_functions_share_a_base_and_store_only_what_differs_from_it(project: Project) -> None:
    two(project)
    with project.up() as running:
        first, second = ask(running, "first"), ask(running, "second")
        of_first, of_second = snapshot(running, "first"), snapshot(running, "second")
        assert of_first["base"] == of_second["base"] is not None
        assert of_first["base_refused"] is of_second["base_refused"] is None
        base = image(project, of_first["base"])
        for one in (of_first, of_second):
            assert 4 * stored_bytes(image(project, one["id"])) < stored_bytes(base)
        assert (first["name"], second["name"]) == ("first", "second")
        assert first["variables"]["OWN"] == SECRET
        assert "OWN" not in second["variables"]
        assert len({first["seen"], second["seen"], first["value"], second["value"]}) == 4


WRITES = """
MEMORY = bytearray(b"1") * (4 << 20)
def handler(event, context):
    if event == "write":
        for at in range(0, len(MEMORY), 4096):
            MEMORY[at] = 2
            MEMORY[at] = MEMORY[1]
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    own = sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty"))
    return {"own_kib": own, "whole": MEMORY.count(b"1") == len(MEMORY)}
"""


def test_pages_with_their_old_contents_are_shared_again_after_the_first_answer(project: Project) -> None:
    project.code(WRITES, name="writes.py")
    project.config(REAL + 'bases = "auto"\n[functions.writes]\nhandler = "writes.handler"\n')
    with project.up() as running:
        first, second = ask(running, "writes", "write"), ask(running, "writes")
        assert snapshot(running, "writes")["base"] is not None
        assert first["whole"]
        assert second["whole"]
        assert second["own_kib"] < first["own_kib"] - 3 * 1024


def test_a_base_holds_nothing_of_a_function(project: Project) -> None:
    two(project)
    with project.up() as running:
        ask(running, "first")
        found = snapshot(running, "first")
        assert image(project, found["base"]).exists()
        content = image(project, found["base"]).read_bytes()
        for text in (SECRET, MARK, "first.handler", "LAMBDA_TASK_ROOT=", "AWS_LAMBDA_FUNCTION_NAME="):
            assert text.encode() not in content, text
        assert SECRET.encode() in image(project, found["id"]).read_bytes()  # the search finds it where it is


def test_init_sees_the_same_with_a_base_as_without(project: Project) -> None:
    two(project)
    with project.up() as running:
        over = ask(running, "second")
        assert snapshot(running, "second")["base"] is not None
    two(project, server=REAL + 'bases = "off"')
    with project.up() as running:
        without = ask(running, "second")
        assert (snapshot(running, "second")["base"], snapshot(running, "second")["base_refused"]) == (None, None)
    for own in "thawd.runtime.base_process", "thawd.runtime.package_base", "thawd.runtime.rehearsal":
        assert over["modules"].pop(own) is not None
    assert over["modules"] == without["modules"]
    assert over["path"] == without["path"]
    per_process = ("_X_AMZN_TRACE_ID", "AWS_LAMBDA_LOG_STREAM_NAME", "THAWD_ENVIRONMENT", "TMPDIR")
    for answer in (over, without):
        for name in per_process:
            assert answer["variables"].pop(name)
        answer["variables"].pop("LC_CTYPE", None)  # set by the interpreter itself, if at all
    assert over["variables"] == without["variables"]


def test_a_function_with_variables_that_a_process_reads_at_its_start_has_no_base(project: Project) -> None:
    two(project, second='environment = { PYTHONHASHSEED = "7", MALLOC_ARENA_MAX = "1" }\n')
    with project.up() as running:
        ask(running, "second")
        found = snapshot(running, "second")
        assert found["base"] is None
        assert found["base_refused"] == (
            "the function sets MALLOC_ARENA_MAX, PYTHONHASHSEED, which a process reads only when it starts"
        )
        assert snapshot(running, "first")["base"] is not None


@pytest.fixture
def interpreter(project: Project) -> Path:
    """A virtual environment, in which code can run when the interpreter starts."""
    folder = project.root / "own"
    venv.create(folder, symlinks=True)
    return folder


def site(interpreter: Path, code: str) -> Path:
    (packages,) = interpreter.glob("lib/python*/site-packages")
    (packages / "switched.py").write_text("")
    file = packages / "sitecustomize.py"
    file.write_text(code)
    return file


def test_an_interpreter_that_starts_otherwise_for_a_variable_has_no_base(project: Project, interpreter: Path) -> None:
    site(interpreter, "import os\nif 'OWN' in os.environ:\n    import switched\n")
    two(project, first='python = "own"\n', second='python = "own"\n')
    with project.up() as running:
        assert "switched" in ask(running, "first")["modules"]
        assert "switched" not in ask(running, "second")["modules"]
        refused = snapshot(running, "first")["base_refused"]
        assert refused == (
            "a copy of the version's base differs in modules (switched) from an interpreter started without the base"
        )
        assert snapshot(running, "second")["base"] is not None


def test_a_base_whose_files_have_changed_is_made_again(project: Project, interpreter: Path) -> None:
    code = "import sys\nsys.switch_of_test = {}\n"
    file = site(interpreter, code.format(1))
    two(project, first='python = "own"\n', second='python = "own"\n')
    with project.up() as running:
        assert [ask(running, name)["switch"] for name in ("first", "second")] == [1, 1]
        before = snapshot(running, "first")["base"]
        assert before is not None
        file.write_text(code.format(23))
        os.utime(file, (time.time() - 60,) * 2)  # no base is made of a file that may still be changing
        project.code(CODE + "# changed\n", name="second.py")
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: ask(running, "second")["switch"] == 23, what="the new version of second")
        assert snapshot(running, "second")["base"] not in (None, before)
    with project.up() as running:  # a new server finds the change for the other function, too
        assert [ask(running, name)["switch"] for name in ("first", "second")] == [23, 23]
        assert snapshot(running, "first")["base"] == snapshot(running, "second")["base"] != before


def test_a_version_whose_base_was_removed_is_frozen_again(project: Project) -> None:
    two(project)
    with project.up() as running:
        ask(running, "second")
        found = snapshot(running, "second")
    base = image(project, found["base"])
    base.unlink()
    with project.up() as running:
        assert ask(running, "second")["name"] == "second"
        again = snapshot(running, "second")
        assert image(project, again["base"]).exists()
        assert again["id"] != found["id"]


def test_a_restarted_server_uses_the_same_base(project: Project) -> None:
    two(project)
    with project.up() as running:
        ask(running, "second")
        before = snapshot(running, "second")
    with project.up() as running:
        ask(running, "second")
        assert snapshot(running, "second")["id"] == before["id"]
        project.code(CODE + "# changed\n", name="second.py")
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: snapshot(running, "second")["id"] != before["id"], what="the new version")
        assert snapshot(running, "second")["base"] == before["base"]


def test_a_base_in_use_by_other_snapshots_is_not_removed(project: Project) -> None:
    two(project)
    with project.up() as running:
        ask(running, "second")
        found = snapshot(running, "second")
    eventually(lambda: not processes_of(project.data), what="the end of all processes")
    removed = project.command("snapshot", "rm", found["base"])
    assert removed.returncode == 1
    assert f"the snapshot {found['base']} is the base of 2 others" in removed.stdout + removed.stderr
    assert project.command("snapshot", "verify", found["base"]).returncode == 0
    assert project.command("snapshot", "rm", "--all").returncode == 0
    assert json.loads(project.command("snapshot", "list", "--json").stdout) == []
