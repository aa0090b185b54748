"""Asynchronous events that run when the server stops or dies: they run again, and those that kill the server run
alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.execution_fakes import claim, until
from tests.unit.invoker_post import Post

pytestmark = [pytest.mark.in_memory, pytest.mark.usefixtures("quick")]


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


def test_an_event_that_kills_the_server_again_and_again_is_given_up(tmp_path: Path) -> None:
    async def dies() -> None:
        post = Post(tmp_path, marks=True)
        await post.queue.recover()
        if not (await post.queue.depth()):
            await post.accept()
        for event in await post.queue.lease("f", limit=1):
            post.queue.begins(event)
        post.state.close()
        post.tables.close()

    async def after() -> None:
        async with Post(tmp_path, marks=True) as post:
            await post.settled(dead=1)
            (letter,) = await post.dead_letters.page("f")
            assert letter.condition == "Interrupted"
            assert letter.error == "the server died 10 times while this event ran"
            assert not post.dispatcher.got

    for _ in range(10):
        claim(dies)
    claim(after)


def test_events_that_ran_when_the_server_died_thrice_run_one_at_a_time(tmp_path: Path) -> None:
    async def dies() -> None:
        post = Post(tmp_path, marks=True)
        await post.queue.recover()
        if not (await post.queue.depth()):
            for number in range(3):
                await post.accept(request_id=f"id-{number}")
        for event in await post.queue.lease("f", limit=3):
            post.queue.begins(event)
        post.state.close()
        post.tables.close()

    async def after() -> None:
        async with Post(tmp_path, marks=True) as post:
            await post.accept(request_id="innocent")
            await post.settled()
            suspects = [i.request_id for i in post.dispatcher.got if i.request_id != "innocent"]
            assert sorted(suspects) == ["id-0", "id-1", "id-2"]
            assert post.dispatcher.most <= 2

    for _ in range(3):
        claim(dies)
    claim(after)
