"""`thawd.environments.child_processes`: which exits are reported, which processes are ended and awaited.

Also, which strays are killed.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap

import pytest

from tests.unit.execution_fakes import claim, within
from thawd.environments import child_processes
from thawd.environments.child_processes import Children, with_descendants
from thawd.environments.init_phase import InitError


def test_a_forked_process_that_was_reaped_before_it_is_watched_keeps_its_status() -> None:
    """FORKED and EXITED can arrive in one piece. Then the exit is reported before the process is watched."""

    async def work() -> None:
        children = Children()
        process = subprocess.Popen(["true"])  # noqa: ASYNC220
        process.wait()
        children.report_exit(process.pid, 9)
        child = children.watch(process.pid)
        assert await within(child.ended) == 9

    claim(work)


def test_a_fork_that_died_with_its_template_and_was_swept_before_it_is_watched_keeps_its_status() -> None:
    async def work() -> None:
        children = Children()
        fork = subprocess.Popen(["sleep", "1000"], start_new_session=True)  # noqa: ASYNC220
        fork.returncode = 0  # `Children` reaps it, not Popen
        children._note_session(fork.pid)  # it has the session of its template
        os.kill(fork.pid, signal.SIGKILL)
        os.waitid(os.P_PID, fork.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222
        children.reap()
        assert await within(children.watch(fork.pid).ended) == signal.SIGKILL

    claim(work)


def test_a_report_about_an_earlier_process_with_the_same_id_is_ignored() -> None:
    async def work() -> None:
        children = Children()
        process = subprocess.Popen(["sleep", "1000"], start_new_session=True)  # noqa: ASYNC220
        process.returncode = 0  # `Children` reaps it, not Popen
        children.report_exit(process.pid, 9)
        child = children.watch(process.pid)
        assert not child.ended.done()
        child.kill()
        await within(child.ended)

    claim(work)


def test_a_process_that_outlasts_the_functions_is_neither_ended_nor_awaited_with_them() -> None:
    async def work() -> None:
        children = Children()
        started = [subprocess.Popen(["sleep", "1000"], start_new_session=True) for _ in range(2)]  # noqa: ASYNC220
        for process in started:
            process.returncode = 0  # `Children` reaps it, not Popen
        function, beside = (children.watch(process.pid) for process in started)
        beside.outlasts = True
        children.kill_all()
        await within(children.all_ended())
        assert (function.killed, beside.killed, beside.ended.done()) == (True, False, False)
        beside.kill()
        await within(beside.ended)

    claim(work)


def test_a_process_whose_start_had_begun_when_all_were_killed_is_killed_as_soon_as_it_is_followed() -> None:
    async def work() -> None:
        children = Children()
        children.kill_all(and_later=True)
        process = subprocess.Popen(["sleep", "1000"], start_new_session=True)  # noqa: ASYNC220
        process.returncode = 0  # `Children` reaps it, not Popen
        late = children.watch(process.pid)
        await within(late.ended)
        assert late.killed

    claim(work)


@pytest.mark.parametrize("is_killed_before", [False, True])
def test_a_process_that_has_lost_its_channel_was_killed_by_the_platform_only_if_it_still_ran(
    is_killed_before: bool,
) -> None:
    async def work() -> None:
        children = Children()
        process = subprocess.Popen(["sleep", "1000"], start_new_session=True)  # noqa: ASYNC220
        process.returncode = 0  # `Children` reaps it, not Popen
        child = children.watch(process.pid)
        if is_killed_before:
            os.kill(process.pid, signal.SIGKILL)
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222
        child.make_sure()
        assert await within(child.ended) == signal.SIGKILL
        assert InitError.of_exit(child).from_outside == is_killed_before

    claim(work)


def test_a_process_is_about_to_end_before_it_closes_its_channel() -> None:
    """If the kernel closed a channel first, an environment that was killed from outside would look killed by us."""
    for _ in range(30):
        ours, theirs = socket.socketpair()
        process = subprocess.Popen(["sleep", "1000"], pass_fds=[theirs.fileno()])
        theirs.close()
        assert child_processes._runs(process.pid)
        process.kill()
        assert ours.recv(1) == b""
        assert not child_processes._runs(process.pid)
        process.wait()
        ours.close()


def test_sweeping_strays_takes_no_exit_status_from_the_platforms_own_programs() -> None:
    """pip, for example, is a child that asyncio awaits.

    If the sweep reaped it, asyncio would never learn of its end.
    """
    process = subprocess.Popen(["sh", "-c", "exit 7"], start_new_session=True)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    Children().kill_strays(lambda identifier: True, spare_unknown=True)
    assert process.wait() == 7


def test_a_process_without_variables_is_nobodys_only_if_it_was_so_a_while_ago_too() -> None:
    """A process that is executing a program has no variables for a moment, whatever environment it belongs to."""
    # In a separate process, because this one may have children of other tests.
    script = textwrap.dedent("""
        import signal, subprocess
        from thawd.environments.child_processes import Children

        children = Children()
        process = subprocess.Popen(["sleep", "1000"], env={}, start_new_session=True)
        assert children.kill_strays(lambda identifier: True, spare_unknown=False, patience_s=1000)
        assert process.poll() is None
        assert children.kill_strays(lambda identifier: True, spare_unknown=False, patience_s=0)
        assert process.wait() == -signal.SIGKILL
        assert not children.kill_strays(lambda identifier: True, spare_unknown=False)
    """)
    subprocess.run([sys.executable, "-c", script], check=True)


def test_descendants_that_end_meanwhile_are_left_out() -> None:
    """Otherwise an error would end the checks of a function's memory and of the time limit of its init."""
    storm = subprocess.Popen(["sh", "-c", "while :; do (:; (:) & (:) & wait); done"], start_new_session=True)
    try:
        for _ in range(2000):
            assert with_descendants(storm.pid)[0] == storm.pid
    finally:
        os.killpg(storm.pid, signal.SIGKILL)
        storm.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can leave a process of root to an ordinary user")
def test_a_stray_that_runs_as_another_user_does_not_end_the_search() -> None:
    script = """
        import os, subprocess
        from thawd.environments.child_processes import Children
        stray = subprocess.Popen(["sleep", "1000"], start_new_session=True, stdout=subprocess.DEVNULL)
        stray.returncode = 0
        print(stray.pid, flush=True)
        os.setresuid(65534, 65534, 65534)
        print(Children().kill_strays(lambda owner: False, spare_unknown=False, patience_s=0))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, check=False)
    stray, *found = done.stdout.split()
    os.kill(int(stray), signal.SIGKILL)
    assert found == [b"False"]
