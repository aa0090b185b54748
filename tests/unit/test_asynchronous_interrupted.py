"""Asynchronous events that run when the server stops or dies: they run again, and those that kill the server run
alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.execution_fakes import claim, until
from tests.unit.invoker_post import Post
from thawd.errors import StoreError
from thawd.queue.suspects import Suspects

pytestmark = [pytest.mark.in_memory, pytest.mark.usefixtures("quick")]


def begin_and_die(folder: Path, *, events: int = 1) -> None:
    """Begin the events of the queue in `folder`, accepted first if there are none, and end as a killed server does."""

    async def work() -> None:
        post = Post(folder, marks=True)
        await post.queue.recover()
        if not (await post.queue.depth()):
            for number in range(events):
                await post.accept(request_id=f"id-{number}")
        for event in await post.queue.lease("f", limit=events):
            post.queue.begins(event)
        post.state.close()
        post.tables.close()

    claim(work)


def test_after_stop_no_event_is_begun_and_those_under_way_end(tmp_path: Path) -> None:
    async def work() -> None:
        async with Post(tmp_path) as post:
            post.dispatcher.gate.clear()
            await post.accept()
            await until(lambda: post.dispatcher.running)
            post.invoker.stop()
            await post.accept(request_id="id-2")
            post.dispatcher.gate.set()
            await post.settled(queued=1)
            assert [i.request_id for i in post.dispatcher.got] == ["id-1"]

    claim(work)


def test_what_was_under_way_when_the_invoker_was_stopped_runs_again_with_the_same_id(tmp_path: Path) -> None:
    async def work() -> None:
        async with Post(tmp_path) as post:
            post.dispatcher.gate.clear()
            await post.accept()
            await until(lambda: post.dispatcher.running)
        async with Post(tmp_path) as post:
            await post.settled()
            assert post.dispatcher.got[0].request_id == "id-1"

    claim(work)


@pytest.mark.parametrize("leases", [True, False])
def test_only_an_event_that_has_an_environment_is_marked_as_running(tmp_path: Path, leases: bool) -> None:
    """An event that waits for an environment cannot be the one that kills the server."""

    async def work() -> None:
        async with Post(tmp_path, marks=True) as post:
            post.dispatcher.leases = leases
            post.dispatcher.gate.clear()
            await post.accept()
            await until(lambda: post.dispatcher.running)
            marks = post.queue._marks
            assert marks is not None
            assert len(marks._slots) == leases
            post.dispatcher.gate.set()
            await post.settled()
            assert not marks._slots

    claim(work)


def test_an_event_that_kills_the_server_again_and_again_is_given_up(tmp_path: Path) -> None:
    async def after() -> None:
        async with Post(tmp_path, marks=True) as post:
            await post.settled(dead=1)
            (letter,) = await post.dead_letters.page("f")
            assert letter.condition == "Interrupted"
            assert letter.error == "the server died 10 times while this event ran"
            assert not post.dispatcher.got

    for _ in range(10):
        begin_and_die(tmp_path)
    claim(after)


def test_events_that_ran_when_the_server_died_thrice_run_one_at_a_time(tmp_path: Path) -> None:
    async def after() -> None:
        async with Post(tmp_path, marks=True) as post:
            await post.accept(request_id="innocent")
            await post.settled()
            suspects = [i.request_id for i in post.dispatcher.got if i.request_id != "innocent"]
            assert sorted(suspects) == ["id-0", "id-1", "id-2"]
            assert post.dispatcher.most <= 2

    for _ in range(3):
        begin_and_die(tmp_path, events=3)
    claim(after)


class Noted:
    """Copies of events that note when events run. The first note fails.

    Attributes:
        notes: request ids of the events that had begun, and whether the event was said to run, for each note.
    """

    may_run = True

    def __init__(self, post: Post) -> None:
        self.notes: list[tuple[list[str], bool]] = []
        self._post = post
        self._fails = True

    async def note_run(self, event_id: int, *, runs: bool) -> None:
        if self._fails:
            self._fails = False
            raise StoreError("the database is away")
        self.notes.append(([i.request_id for i in self._post.dispatcher.got], runs))

    def changed(self) -> None:
        pass


def test_the_copy_of_an_interrupted_event_says_that_it_runs_before_it_runs_and_until_it_has_ended(
    tmp_path: Path,
) -> None:
    async def after() -> None:
        post = Post(tmp_path, marks=True)
        copies: Any = Noted(post)
        post.queue.copies, post.invoker._suspects = copies, Suspects(copies)
        async with post:
            await post.settled()
            await until(lambda: len(copies.notes) == 2)
        assert copies.notes == [([], True), (["id-0"], False)]

    begin_and_die(tmp_path)
    claim(after)
