"""The flag that coroutines wait for."""

from __future__ import annotations

import asyncio

from thawd.system.flag import Flag


async def test_a_flag_lets_all_waiting_coroutines_go_on_once_it_is_set() -> None:
    flag = Flag()
    waits = [asyncio.ensure_future(flag.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(wait.done() for wait in waits)

    flag.set()
    await asyncio.gather(*waits)

    assert flag.is_set()
    await flag.wait()  # no wait is needed any more


async def test_coroutines_go_on_though_the_flag_is_cleared_directly_after_it_was_set() -> None:
    flag = Flag()
    wait = asyncio.ensure_future(flag.wait())
    await asyncio.sleep(0)

    flag.set()
    flag.clear()

    await asyncio.wait_for(wait, 5)
    assert not flag.is_set()


async def test_a_wait_that_is_cancelled_disturbs_no_other_wait() -> None:
    flag = Flag()
    gone, left = asyncio.ensure_future(flag.wait()), asyncio.ensure_future(flag.wait())
    await asyncio.sleep(0)

    gone.cancel()
    await asyncio.wait([gone])
    flag.set()

    await asyncio.wait_for(left, 5)
    assert gone.cancelled()
