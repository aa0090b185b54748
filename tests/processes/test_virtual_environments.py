"""`thawd.publishing.virtual_environments`: a virtual environment for requirements is made once and completely.

It is made again when its inputs change, and removed when no process uses it. The tests use real programs, some of them
made for the purpose.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from tests.unit.made_up_programs import program
from tests.unit.tiny_package import requirements_file, wheel
from thawd.errors import EnvironmentBuildError
from thawd.publishing.interpreters import Interpreter, prepare_environment
from thawd.publishing.virtual_environments import remove_unused

SOURCES = Path(__file__).parents[2] / "src"
ME = Interpreter(Path(sys.executable), sys.version_info[:3])


def prepare(requirements: Path, root: Path, *, python: Interpreter = ME, lines: list[str] | None = None) -> Path:
    lines = [] if lines is None else lines
    return asyncio.run(prepare_environment(requirements, python, root, on_line=lines.append))


def installer(folder: Path, *, on_install: str = "true") -> Interpreter:
    """Return a fake interpreter.

    It records each start, makes a "virtual environment" from itself, and "installs" with the given script.
    """
    script = f"""
        echo "$@" >> {folder}/starts
        case "$*" in
        *"-m venv"*) mkdir -p "$4/bin" && cp "$0" "$4/bin/python" ;;
        *"-m pip"*) {on_install} ;;
        esac
    """
    return Interpreter(program(folder / "made-up-python", script), (3, 12, 0))


def starts(folder: Path) -> int:
    return len((folder / "starts").read_text().splitlines())


def left(root: Path) -> list[str]:
    """Return the contents of the folder of virtual environments, except the locks."""
    return [path.name for path in root.iterdir() if path.suffix != ".lock"]


async def until(is_so: Callable[[], bool]) -> None:
    """Wait, for at most half a minute, until another process has done something."""
    deadline = time.monotonic() + 300
    while not is_so():
        assert time.monotonic() < deadline, "it never came to be"
        await asyncio.sleep(0.01)


def test_requirements_are_installed_by_pip_without_a_network(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    wheel(tmp_path / "wheels")
    requirements = requirements_file(tmp_path, "--no-index\n--find-links wheels\ntiny == 1.0  # by hand\n")
    lines: list[str] = []

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        made = runner.run(prepare_environment(requirements, ME, tmp_path / "environments", on_line=lines.append))

    said = subprocess.run([made, "-c", "import tiny; print(tiny.VERSION)"], capture_output=True, text=True, check=True)
    assert said.stdout == "1.0\n"
    assert made.is_relative_to(tmp_path / "environments")
    assert any("Successfully installed tiny-1.0" in line for line in lines)


def test_a_requirement_that_cannot_be_met_is_told_with_the_last_lines_of_pip(tmp_path: Path) -> None:
    requirements = requirements_file(tmp_path, "--no-index\nno-such-package == 7\n")

    with pytest.raises(EnvironmentBuildError) as refused:
        prepare(requirements, tmp_path / "environments")

    assert f"could not install {requirements}: it ended with status 1" in refused.value.message
    assert "No matching distribution found for no-such-package==7" in refused.value.message
    assert "Correct the requirements file" in refused.value.message
    assert left(tmp_path / "environments") == []


def test_an_environment_that_is_there_is_used_without_starting_anything(tmp_path: Path) -> None:
    requirements = requirements_file(tmp_path)
    python = installer(tmp_path)
    first = prepare(requirements, tmp_path / "environments", python=python)
    before = starts(tmp_path)
    lines: list[str] = []

    assert prepare(requirements, tmp_path / "environments", python=python, lines=lines) == first
    assert (starts(tmp_path), lines) == (before, [])


def test_the_same_requirements_elsewhere_share_an_environment(tmp_path: Path) -> None:
    python = installer(tmp_path)

    made = {
        prepare(requirements_file(tmp_path / name, "tiny >= 1\n"), tmp_path / "environments", python=python)
        for name in ("one", "two")
    }

    assert len(made) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "requirements.txt").write_text("-r base.txt\ntiny\n./a.whl\n-c limits.txt\n\n"),
        lambda folder: (folder / "base.txt").write_text("other\n"),
        lambda folder: (folder / "deeper" / "more.txt").write_text("x\n"),
        lambda folder: (folder / "limits.txt").write_text("tiny<3\n"),
        lambda folder: (folder / "a.whl").write_text("longer than before"),
        lambda folder: os.utime(folder / "a.whl", (1, 1)),
    ],
    ids=["text", "-r", "-r within -r", "-c", "archive", "archive's time"],
)
def test_a_change_of_what_is_installed_makes_another_environment(
    tmp_path: Path, change: Callable[[Path], object]
) -> None:
    folder = tmp_path / "code"
    requirements = requirements_file(folder, "-r base.txt\ntiny\n./a.whl\n--constraint=limits.txt # at most\n")
    (folder / "deeper").mkdir()
    (folder / "base.txt").write_text("-rdeeper/more.txt\n-r requirements.txt\n")
    (folder / "deeper" / "more.txt").touch()
    (folder / "limits.txt").touch()
    (folder / "a.whl").touch()
    python = installer(tmp_path)
    first = prepare(requirements, tmp_path / "environments", python=python)

    change(folder)

    assert prepare(requirements, tmp_path / "environments", python=python) != first


def test_another_version_of_the_interpreter_makes_another_environment(tmp_path: Path) -> None:
    requirements = requirements_file(tmp_path)
    old = installer(tmp_path)
    new = Interpreter(old.path, (3, 12, 1))

    assert prepare(requirements, tmp_path / "e", python=old) != prepare(requirements, tmp_path / "e", python=new)


def test_callers_in_several_processes_wait_for_one_build(tmp_path: Path) -> None:
    requirements = requirements_file(tmp_path)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    python = installer(tmp_path, on_install=f"read line < {gate}")
    text = f"""
        import asyncio
        from pathlib import Path
        from thawd.publishing.interpreters import Interpreter, prepare_environment
        async def twice():
            python = Interpreter(Path({str(python.path)!r}), (3, 12, 0))
            call = lambda: prepare_environment(Path({str(requirements)!r}), python,
                Path({str(tmp_path / "environments")!r}), on_line=lambda line: print(line, flush=True))
            print(*await asyncio.gather(call(), call()))
        asyncio.run(twice())
    """
    callers = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(text)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(SOURCES)},
        )
        for _ in range(2)
    ]
    # Given four calls in two processes: one builds, and three have printed that they wait
    said: list[str] = []
    seen = threading.Semaphore(0)

    def listen(caller: subprocess.Popen[str]) -> None:
        assert caller.stdout
        for line in caller.stdout:
            said.append(line)
            seen.release()

    listeners = [threading.Thread(target=listen, args=(caller,)) for caller in callers]
    for listener in listeners:
        listener.start()
    for _ in range(4):
        assert seen.acquire(timeout=300), said
    assert sum("waiting for another process" in line for line in said) == 3, said
    # When the build may continue
    gate.write_text("go\n")
    for caller, listener in zip(callers, listeners, strict=True):
        assert caller.wait(timeout=300) == 0
        listener.join()
        assert caller.stdout
        caller.stdout.close()

    # Then all have the same virtual environment, and it was made once
    assert len({path for line in said if line.startswith("/") for path in line.split()}) == 1
    assert starts(tmp_path) == 2


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_cancelling_kills_the_installer_and_leaves_no_half_environment(
    tmp_path: Path, loop_factory: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    requirements = requirements_file(tmp_path)
    # The installer's child must be killed, too. It holds the other end of the output pipe.
    python = installer(tmp_path, on_install=f"cd {tmp_path}; sleep 60 & echo $$ $! > pids; mv pids up; wait")

    async def cancel() -> None:
        call = asyncio.ensure_future(
            prepare_environment(requirements, python, tmp_path / "environments", on_line=lambda line: None)
        )
        await until((tmp_path / "up").exists)
        pids = [int(pid) for pid in (tmp_path / "up").read_text().split()]
        births = {pid: birth(pid) for pid in pids}  # on a busy machine another process may soon have the same id
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: not any(birth(pid) == births[pid] > 0 for pid in pids))

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(cancel())

    assert left(tmp_path / "environments") == []


def birth(pid: int) -> int:
    """Return when the process started, in clock ticks since boot; -1 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return -1
    return -1 if fields[0] == "Z" else int(fields[19])


def test_after_a_killed_builder_the_next_one_waits_for_its_installer_and_starts_anew(tmp_path: Path) -> None:
    requirements = requirements_file(tmp_path)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    once = f"if mkdir {tmp_path}/first; then read line < {gate}; touch ${{0%/bin/python}}/half; fi"
    python = installer(tmp_path, on_install=once)
    text = f"""
        import asyncio
        from pathlib import Path
        from thawd.publishing.interpreters import Interpreter, prepare_environment
        python = Interpreter(Path({str(python.path)!r}), (3, 12, 0))
        root = Path({str(tmp_path / "environments")!r})
        asyncio.run(prepare_environment(Path({str(requirements)!r}), python, root, on_line=print))
    """

    async def take_over() -> Path:
        # Given a builder that was killed while its installer still runs
        builder = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            textwrap.dedent(text),
            env={**os.environ, "PYTHONPATH": str(SOURCES)},
            stdout=asyncio.subprocess.DEVNULL,
        )
        await until((tmp_path / "first").exists)
        builder.send_signal(signal.SIGKILL)
        await builder.wait()
        # When another builder comes
        lines: list[str] = []
        call = asyncio.ensure_future(
            prepare_environment(requirements, python, tmp_path / "environments", on_line=lines.append)
        )
        await until(lambda: bool(lines))
        # Then it waits for the installer to end
        assert "waiting for another process" in lines[0]
        assert starts(tmp_path) == 2
        gate.write_text("go\n")
        return await call

    made = asyncio.run(take_over())

    # And it makes the virtual environment from the beginning
    assert starts(tmp_path) == 4
    assert not (made.parents[1] / "half").exists()
    assert left(tmp_path / "environments") == [made.parents[1].name]


def test_an_environment_whose_interpreter_is_gone_is_made_again(tmp_path: Path) -> None:
    requirements = requirements_file(tmp_path)
    python = installer(tmp_path)
    made = prepare(requirements, tmp_path / "environments", python=python)
    made.unlink()
    made.symlink_to(tmp_path / "removed-from-the-machine")

    assert prepare(requirements, tmp_path / "environments", python=python) == made
    assert os.access(made, os.X_OK)


def test_requirements_changed_meanwhile_are_told(tmp_path: Path) -> None:
    requirements = requirements_file(tmp_path)
    python = installer(tmp_path, on_install=f"echo other >> {requirements}")

    with pytest.raises(EnvironmentBuildError, match=r"was changed while it was being installed\. .* SIGHUP"):
        prepare(requirements, tmp_path / "environments", python=python)

    assert left(tmp_path / "environments") == []


def test_only_the_last_lines_are_told_but_all_are_passed_on(tmp_path: Path) -> None:
    requirements = requirements_file(tmp_path)
    noise = "seq 100; head -c 300000 /dev/zero | tr '\\\\0' x; printf '\\nno newline'; exit 3"
    lines: list[str] = []

    with pytest.raises(EnvironmentBuildError) as refused:
        prepare(requirements, tmp_path / "environments", python=installer(tmp_path, on_install=noise), lines=lines)

    assert "ended with status 3" in refused.value.message
    assert "    no newline\n" in refused.value.message
    assert "\n    50\n" not in refused.value.message
    assert [str(number) for number in range(1, 101)] == [line for line in lines if line.isdigit()]


def test_an_interpreter_that_cannot_make_environments_is_told(tmp_path: Path) -> None:
    python = Interpreter(program(tmp_path / "python", "echo 'ensurepip is not available'; exit 1"), (3, 12, 0))

    with pytest.raises(EnvironmentBuildError, match=r"could not make a virtual environment: it ended with status 1"):
        prepare(requirements_file(tmp_path), tmp_path / "environments", python=python)


def test_files_and_folders_that_do_not_serve_are_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    requirements = requirements_file(tmp_path)

    with pytest.raises(EnvironmentBuildError, match=r"nope\.txt cannot be read: No such file or directory"):
        prepare(tmp_path / "nope.txt", tmp_path / "environments")
    with pytest.raises(EnvironmentBuildError, match=r"cannot be made in .*/file/environments: Not a directory"):
        prepare(requirements, tmp_path / "file" / "environments")
    missing = Interpreter(tmp_path / "no-python", (3, 12, 0))
    with pytest.raises(
        EnvironmentBuildError, match=r"/no-python cannot be started: No such file or directory; reinstall it"
    ):
        prepare(requirements, tmp_path / "environments", python=missing)


def test_environments_that_nobody_has_used_for_long_are_removed(tmp_path: Path) -> None:
    root, python = tmp_path / "environments", installer(tmp_path)
    old, used, young, built = (
        prepare(requirements_file(tmp_path / name, f"{name}\n"), root, python=python).parent.parent
        for name in ("old", "used", "young", "built")
    )
    for folder in (old, used, young, built):
        os.utime(folder / ".thawd-complete", (0, 0))
    assert prepare(tmp_path / "young" / "requirements.txt", root, python=python).is_relative_to(young)
    with (root / f"{built.name}.lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        remove_unused(root, {used.name}, unused_s=3600)

    assert sorted(left(root)) == sorted(folder.name for folder in (used, young, built))
    remove_unused(tmp_path / "nothing-here", set(), unused_s=0)


def test_a_measurement_removes_no_environment_of_the_server_it_shares_them_with(tmp_path: Path) -> None:
    shared = tmp_path / "environments"
    made = prepare(requirements_file(tmp_path), shared, python=installer(tmp_path)).parent.parent
    os.utime(made / ".thawd-complete", (0, 0))
    (tmp_path / "of-a-bench").symlink_to(shared)

    remove_unused(tmp_path / "of-a-bench", set(), unused_s=0)
    assert left(shared) == [made.name]
