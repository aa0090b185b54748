"""`thawd.snapshot.freeze` and `thawd thaw`, as users apply them to their own programs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from thawd.snapshot import engine

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "standalone" / "answer.py"
DEADLINE_S = 300

PROGRAM = """
import os, random, secrets, sys, uuid
from thawd import snapshot

order = []
snapshot.register_before_snapshot(order.append, "before, registered first")
snapshot.register_before_snapshot(order.append, "before, registered last")

@snapshot.register_after_restore
def connect():
    order.append("after")

random.seed(1)
os.environ["SET_BY_THE_PROGRAM"] = "kept"
outcome = snapshot.freeze(sys.argv[1])
if outcome.restored:
    print(order)
    print(random.random(), uuid.uuid4(), secrets.token_hex(8))
    print(os.environ.get("NEW"), os.environ.get("GONE"), os.environ["SET_BY_THE_PROGRAM"], outcome.arguments)
    print(sys.stdin.read())
"""


def run(
    *command: object, variables: Mapping[str, str] | None = None, **options: object
) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, **(variables or {})}
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=DEADLINE_S, env=environ, **options
    )


def thaw(image: Path, *arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-m", "thawd", "thaw", image, *arguments, **options)


def test_the_example_answers_the_same_loaded_and_thawed(tmp_path: Path) -> None:
    image = tmp_path / "answer.img"
    loaded = run(sys.executable, EXAMPLE, 3, 4)
    frozen = run(sys.executable, EXAMPLE, "freeze", image)
    assert frozen.returncode == 0, frozen.stderr
    assert image.stat().st_mode & 0o777 == 0o600
    thawed = [thaw(image, 3, 4) for _ in range(3)]
    for copy in thawed:
        assert copy.returncode == 0, copy.stderr
        assert copy.stdout.split()[0] == loaded.stdout.split()[0]
        assert re.search(r"thawed in \d+\.\d ms", copy.stdout)


def test_a_copy_has_its_own_arguments_variables_streams_and_randomness(tmp_path: Path) -> None:
    program, image = tmp_path / "program.py", tmp_path / "program.img"
    program.write_text(PROGRAM)
    frozen = run(sys.executable, program, image, variables={"GONE": "given to the original only"})
    assert frozen.returncode == 0, frozen.stderr
    copies = [thaw(image, "a", "b", variables={"NEW": "given"}, input=f"to {n}") for n in range(2)]
    lines = [copy.stdout.splitlines() for copy in copies]
    assert [line[0] for line in lines] == ["['before, registered last', 'before, registered first', 'after']"] * 2
    assert lines[0][1].split()[0] != lines[1][1].split()[0], "random"
    assert lines[0][1].split()[1] != lines[1][1].split()[1], "uuid"
    assert lines[0][1].split()[2] != lines[1][1].split()[2], "secrets"
    assert [line[2] for line in lines] == ["given None kept ['a', 'b']"] * 2
    assert [line[3] for line in lines] == ["to 0", "to 1"]


STALL = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>

int thawd_freeze(const void *request, void *report) {
    usleep(100000);
    return ((int (*)(const void *, void *))dlsym(RTLD_NEXT, "thawd_freeze"))(request, report);
}
"""


def test_threads_that_wait_for_the_gil_during_a_slow_freeze_do_not_block_a_copy(tmp_path: Path) -> None:
    """The freeze begins late, with the GIL held: other threads wait far longer than the switch interval."""
    real = engine.freeze_library_path()
    (tmp_path / "stall.c").write_text(STALL)
    link = ("-Wl,--no-as-needed", real, f"-Wl,-rpath,{Path(real).parent}")
    built = run("gcc", "-shared", "-fPIC", "-o", tmp_path / "stall.so", tmp_path / "stall.c", *link)
    assert built.returncode == 0, built.stderr
    program, image = tmp_path / "program.py", tmp_path / "program.img"
    program.write_text(
        "import sys, threading\nfrom thawd import snapshot\n\ndef compute():\n    while True:\n        pass\n\n"
        "for _ in range(2):\n    threading.Thread(target=compute, daemon=True).start()\n"
        "interval_s = sys.getswitchinterval()\noutcome = snapshot.freeze(sys.argv[1])\n"
        "print(outcome.restored, sys.getswitchinterval() == interval_s)\n"
    )
    frozen = run(sys.executable, program, image, variables={engine.LIBRARY_VARIABLE: str(tmp_path / "stall.so")})
    assert (frozen.stdout, frozen.stderr) == ("False True\n", "")
    copy = thaw(image)
    assert (copy.stdout, copy.stderr) == ("True True\n", "")


def test_a_copy_ends_with_its_own_status(tmp_path: Path) -> None:
    program, image = tmp_path / "program.py", tmp_path / "program.img"
    program.write_text(
        "import sys\nfrom thawd import snapshot\n"
        "outcome = snapshot.freeze(sys.argv[1])\nif outcome.restored:\n    sys.exit(int(outcome.arguments[0]))\n"
    )
    assert run(sys.executable, program, image).returncode == 0
    assert [thaw(image, status).returncode for status in (0, 3, 7)] == [0, 3, 7]


def test_what_cannot_be_thawed_is_told_with_status_120(tmp_path: Path) -> None:
    missing = thaw(tmp_path / "none.img")
    assert missing.returncode == 120
    assert missing.stderr.startswith("thawd: cannot thaw here: there is no image ")


@pytest.mark.parametrize("held", ["socket.create_server(('127.0.0.1', 0))", "subprocess.Popen(['sleep', '60'])"])
def test_a_refusal_is_an_exception_with_the_way_out_and_the_program_goes_on(tmp_path: Path, held: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        f"import socket, subprocess, sys\nfrom thawd import snapshot\nheld = {held}\n"
        "try:\n    snapshot.freeze(sys.argv[1])\nexcept snapshot.SnapshotRefused as error:\n    print(error)\n"
        "finally:\n    getattr(held, 'kill', held.__class__)()\nprint('goes on')\n"
    )
    done = run(sys.executable, program, tmp_path / "program.img")
    assert "first invocation" in done.stdout or "before the freeze" in done.stdout
    assert done.stdout.endswith("goes on\n")
    assert list(tmp_path.glob("program.img*")) == []
