"""What the starter of a thaw passes to a copy arrives: arguments, environment, descriptors.

Copies of copies work, too.
"""

from __future__ import annotations

import errno
import os
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.native.engine import Case, Engine, Trial, cases_of, end_of, require

CASES = {case.name: case for case in cases_of("delivery", "generations")}
COMPLETE = 64  # FREEZE_COMPLETE of native/freeze.h
ONLY_OPEN = next(case for case in cases_of("files") if case.name == "only_what_was_open")


def frozen(trial: Callable[..., Trial], case: Case) -> Trial:
    one = trial(case)
    ended = one.freeze()
    assert ended is None, ended
    return one


def opened(folder: Path, number: int) -> int:
    """Return a descriptor of a file whose only line is the number that the descriptor must have in the copy."""
    path = folder / f"for {number}"
    path.write_text(f"{number}\n")
    return os.open(path, os.O_RDONLY)


def test_arguments_and_environment_arrive(trial: Callable[..., Trial]) -> None:
    one = frozen(trial, CASES["arguments"])
    for _ in range(3):
        outcome = one.thaw("first", "second argument", "", environment={"THAWED_BY": "runner"})
        require(one.case, outcome)


def test_a_thousand_arguments_arrive(trial: Callable[..., Trial]) -> None:
    one = frozen(trial, CASES["many_arguments"])
    require(one.case, one.thaw(*(f"argument {i}" for i in range(1000))))


def test_arguments_that_are_too_long_are_refused(trial: Callable[..., Trial]) -> None:
    one = frozen(trial, CASES["many_arguments"])
    outcome = one.thaw(*["x" * 100_000] * 3)
    assert outcome.status == 120
    assert outcome.errors.startswith("thawd: cannot thaw here: arguments and environment")


@pytest.mark.parametrize("order", [(40, 41, 42, 500), (500, 42, 41, 40)], ids=["in order", "in reverse"])
def test_descriptors_arrive_under_their_numbers(trial: Callable[..., Trial], order: tuple[int, ...]) -> None:
    one = frozen(trial, CASES["descriptors"])
    inside = {number: opened(one.folder, number) for number in order}
    options = [word for number in order for word in ("--fd", f"{number}={inside[number]}")]
    require(one.case, one.thaw(thaw_options=options, pass_fds=tuple(inside.values())))
    for fd in inside.values():
        os.close(fd)


# Opens files under these numbers, in a process where nothing else uses them, and becomes thaw.
AS_NUMBERS = """
import os, sys
folder, pairs, command = sys.argv[1], sys.argv[2].split(","), sys.argv[3:]
for pair in pairs:
    number, place = pair.split("=")
    fd = os.open(f"{folder}/for {number}", os.O_RDONLY)
    os.dup2(fd, int(place))
    if fd != int(place):
        os.close(fd)
os.execv(command[0], command)
"""


def test_descriptors_whose_numbers_are_swapped_arrive(trial: Callable[..., Trial]) -> None:
    """The numbers 40, 41 and 42 swap cyclically, and 500 stays. No order of dup2 calls alone can do this."""
    one = frozen(trial, CASES["descriptors"])
    pairs = ("41=40", "42=41", "40=42", "500=500")
    for number in (40, 41, 42, 500):
        os.close(opened(one.folder, number))
    thaw = [one.engine.thaw, *(word for pair in pairs for word in ("--fd", pair)), one.image]
    for _ in range(3):
        command = [sys.executable, "-c", AS_NUMBERS, one.folder, ",".join(pairs), *thaw]
        copy = one.keeper.start(command, identity=one.identity, stdin=subprocess.PIPE)
        require(one.case, end_of(copy))


def test_a_descriptor_that_was_to_be_passed_and_was_not_is_a_refusal(trial: Callable[..., Trial]) -> None:
    one = frozen(trial, CASES["descriptors"])
    outcome = one.thaw()
    assert outcome.status == 120
    assert outcome.output == ""
    assert outcome.errors == "thawd: cannot thaw here: a descriptor was not passed (--fd OLD=NEW): 40\n"


def test_a_passed_descriptor_is_watched_by_an_older_epoll_set(trial: Callable[..., Trial]) -> None:
    one = frozen(trial, CASES["socket_in_epoll"])
    reading, writing = os.pipe()
    os.write(writing, b"x")
    require(one.case, one.thaw(thaw_options=["--fd", f"50={reading}"], pass_fds=(reading,)))
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("name", ["watched", "watched_exclusively"])
def test_a_passed_descriptor_may_be_of_a_kind_that_epoll_cannot_watch(trial: Callable[..., Trial], name: str) -> None:
    one = frozen(trial, CASES[name])
    with (one.folder / "file").open("w") as file:
        require(one.case, one.thaw(thaw_options=["--fd", f"50={file.fileno()}"], pass_fds=(file.fileno(),)))


def _chain(count: int) -> list[select.epoll]:
    """Epoll sets, each of which watches the one before it."""
    made = [select.epoll()]
    while len(made) < count:
        made.append(select.epoll())
        made[-1].register(made[-2].fileno())
    return made


# Source: epoll_ctl(2), EINVAL ("fd refers to an epoll instance") and ELOOP ("nesting depth ... greater than 5").
@pytest.mark.parametrize(
    ("name", "depth", "error"), [("watched_exclusively", 1, errno.EINVAL), ("watched", 5, errno.ELOOP)]
)
def test_a_copy_is_not_made_without_one_of_its_watches(
    trial: Callable[..., Trial], name: str, depth: int, error: int
) -> None:
    one = frozen(trial, CASES[name])
    sets = _chain(depth)
    fd = sets[-1].fileno()
    outcome = one.thaw(thaw_options=["--fd", f"50={fd}"], pass_fds=(fd,))
    for each in sets:
        each.close()
    assert outcome.output == ""
    assert outcome.errors == (
        f"thawd: thaw failed at descriptors: an epoll set cannot watch a descriptor again: 50 (errno {error})\n"
    )


def test_standard_input_can_be_passed_too(trial: Callable[..., Trial]) -> None:
    one = frozen(trial, CASES["standard"])
    fd = opened(one.folder, 0)
    require(one.case, one.thaw(thaw_options=["--fd", f"0={fd}"], pass_fds=(fd,)))
    os.close(fd)


def test_descriptors_that_thaw_inherits_do_not_reach_the_copy(trial: Callable[..., Trial]) -> None:
    one = frozen(trial, ONLY_OPEN)
    strange = [opened(one.folder, number) for number in range(20)]
    os.dup2(strange[0], 900)
    require(one.case, one.thaw(pass_fds=(*strange, 900)))
    for fd in (*strange, 900):
        os.close(fd)


def test_copies_of_copies_are_whole_down_to_the_limit(trial: Callable[..., Trial]) -> None:
    one = frozen(trial, CASES["again"])
    images = [one.image]
    while len(images) < 12:
        following = one.folder / f"image{len(images)}"
        copy = one.start_copy(str(following), image=images[-1])
        ended = one.await_freeze(copy)
        if ended is not None:
            break
        images.append(following)
        for outcome in one.thaw_many(serial=1, parallel=1, image=following):
            require(one.case, outcome)
    assert len(images) == 8
    assert ended is not None
    assert "refused: the process was frozen and thawed too often (eight times at most); start it again" in ended.output
    assert ended.passed, "the process that was refused goes on"
    require(one.case, one.thaw())  # the first image still works


def test_an_older_generation_may_be_deleted_only_when_no_younger_one_needs_it(trial: Callable[..., Trial]) -> None:
    one = frozen(trial, CASES["again"])
    second = one.folder / "second"
    assert one.await_freeze(one.start_copy(str(second))) is None
    assert second.stat().st_blocks < one.image.stat().st_blocks, "the second holds only what changed"
    one.image.unlink()
    outcome = one.thaw(image=second)
    assert outcome.status == 120
    assert str(one.image) in outcome.errors


def test_complete_images_of_copies_need_no_older_generation(trial: Callable[..., Trial]) -> None:
    one = trial(CASES["again"])
    assert one.freeze(flags=COMPLETE) is None
    image = one.image
    for generation in range(1, 10):  # more than the eight generations that may refer to each other
        following = one.folder / f"image{generation}"
        assert one.await_freeze(one.start_copy(str(following), image=image)) is None
        assert following.stat().st_blocks * 512 > 4000 * 4096
        image.unlink()
        image = following
        require(one.case, one.thaw(image=image))


def test_the_child_of_a_copy_can_be_frozen(trial: Callable[..., Trial]) -> None:
    one = frozen(trial, CASES["forked_copy"])
    second = one.folder / "second"
    assert one.await_freeze(one.start_copy(str(second))) is None
    for _ in range(2):
        require(one.case, one.thaw(image=second))


@pytest.mark.parametrize(
    "arguments", [(), ("--fd",), ("--fd", "x=3", "image"), ("--fd", "3", "image"), ("--new", "image")]
)
def test_a_misused_thaw_says_how_to_use_it(engine: Engine, arguments: tuple[str, ...]) -> None:
    done = subprocess.run([engine.thaw, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "usage: thawd-thaw" in done.stderr
