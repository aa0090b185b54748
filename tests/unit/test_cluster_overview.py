"""One look at all machines of a cluster: questions between machines, what is shown of one that does not answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.unit.test_cluster_links import FakeHost, pair
from thawd.cluster import channel, overview
from thawd.cluster.links import Links
from thawd.cluster.listening import AcceptedLink
from thawd.cluster.overview import Known, MachineReport, Overview, SeenMachine
from thawd.cluster.questions import Asker, answer, order_name
from thawd.errors import (
    InvalidParameterValueException,
    MachineAwayError,
    ResourceNotFoundException,
    UnknownOutcomeError,
)
from thawd.server.assembly.machines import elsewhere_of
from thawd.window import elsewhere
from thawd.window.elsewhere import Elsewhere, RecordElsewhere
from thawd.window.live import Live
from thawd.window.machines_table import dead_elsewhere, fingerprint, page_of, section
from thawd.window.markup import render
from thawd.wire import frames


async def told(arguments: Mapping[str, str]) -> bytes:
    return msgspec.json.encode({"told": dict(arguments)})


async def lacking(_: Mapping[str, str]) -> bytes:
    raise ResourceNotFoundException("there is no such thing")


async def broken(_: Mapping[str, str]) -> bytes:
    raise ZeroDivisionError


async def endless(_: Mapping[str, str]) -> bytes:
    await asyncio.Event().wait()
    raise AssertionError


QUESTIONS = {"told": told, "lacking": lacking, "broken": broken, "endless": endless}


@asynccontextmanager
async def asking(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Asker]:
    """A machine ``a`` that asks ``b``."""

    async def tell(_: FakeHost, question: str, arguments: Mapping[str, str]) -> bytes:
        return await answer(QUESTIONS, question, arguments)

    monkeypatch.setattr(FakeHost, "tell", tell)
    async with pair() as both:
        links: dict[str, Links] = {"b": both.links}
        yield Asker("a", {"told": told}, links.get)


async def ask(asker: Asker, question: str, machine: str = "b", *, timeout_s: float = 5.0) -> Any:
    return msgspec.json.decode(await asker.ask(machine, question, {"x": "1"}, timeout_s=timeout_s))


async def test_a_machine_answers_questions_and_so_does_the_asking_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async with asking(monkeypatch) as asker:
        for machine in "ab":
            assert await ask(asker, "told", machine) == {"told": {"x": "1"}}


async def test_errors_of_an_answer_arrive_and_a_bug_is_an_error_of_the_platform(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with asking(monkeypatch) as asker:
        with pytest.raises(ResourceNotFoundException, match="no such thing"):
            await ask(asker, "lacking")
        with pytest.raises(Exception, match="ZeroDivisionError"):
            await ask(asker, "broken")
        with pytest.raises(InvalidParameterValueException, match="does not know the question 'new'"):
            await ask(asker, "new")
        with pytest.raises(ResourceNotFoundException, match="no machine c in the cluster"):
            await ask(asker, "told", "c")


async def test_a_machine_that_is_silent_or_knows_no_questions_costs_only_the_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with asking(monkeypatch) as asker:
        with pytest.raises(MachineAwayError, match=r"did not answer within 0\.05 s"):
            await ask(asker, "endless", timeout_s=0.05)
        assert await ask(asker, "told") == {"told": {"x": "1"}}

        def older(link: AcceptedLink, kind: int, head: Any, body: bytes) -> None:
            known(link, 99 if kind == channel.ASK else kind, head, body)

        known = AcceptedLink.on_frame
        monkeypatch.setattr(AcceptedLink, "on_frame", older)
        with pytest.raises(MachineAwayError, match="connection to the machine b was lost"):
            await ask(asker, "told")


def test_the_page_of_dead_letters_counts_those_of_the_other_machines() -> None:
    def seen(name: str, report: MachineReport | None) -> SeenMachine:
        return SeenMachine(name=name, address="10.0.0.2:1", is_own=name == "a", state="serving", why="", report=report)

    own = seen("a", MachineReport(state="serving", dead=5))
    line = dead_elsewhere(
        [own, seen("b", MachineReport(state="serving", dead=3, url="http://10.0.0.2:8350")), seen("<c>", None)]
    )
    assert line is not None
    text = render([line])
    assert 'others: <a href="http://10.0.0.2:8350/_thawd/window/queue">b</a> 3; &lt;c&gt; no answer.' in text
    assert dead_elsewhere([own]) is None


async def test_an_order_that_is_not_answered_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies: list[str] = []

    async def obey(arguments: Mapping[str, str]) -> bytes:
        bodies.append(arguments["body"])
        return b"{}"

    monkeypatch.setitem(QUESTIONS, order_name("change"), obey)
    monkeypatch.setitem(QUESTIONS, order_name("endless"), endless)
    async with asking(monkeypatch) as asker:
        assert await asker.order("b", "change", "all", timeout_s=5.0) == b"{}"
        assert bodies == ["all"]
        with pytest.raises(UnknownOutcomeError, match="it is unknown whether it did"):
            await asker.order("b", "endless", "all", timeout_s=0.05)
        with pytest.raises(InvalidParameterValueException, match="does not know the question 'order:new'"):
            await asker.order("b", "new", "all", timeout_s=5.0)

        def lost(link: AcceptedLink, kind: int, head: Any, body: bytes) -> None:
            known(link, 99 if kind == channel.ASK else kind, head, body)

        known = AcceptedLink.on_frame
        monkeypatch.setattr(AcceptedLink, "on_frame", lost)
        with pytest.raises(UnknownOutcomeError, match="it is unknown whether it did"):
            await asker.order("b", "change", "all", timeout_s=5.0)


async def test_an_order_to_a_machine_that_cannot_be_reached_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair() as both:
        both.listener.close()
        both.links.close()
        asker = Asker("a", {}, {"b": both.links}.get)
        with pytest.raises(MachineAwayError, match="cannot be reached"):
            await asker.order("b", "change", "all", timeout_s=5.0)


async def test_a_stranger_gets_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with asking(monkeypatch), pair() as both:
        reader, writer = await asyncio.open_connection("127.0.0.1", both.port)
        writer.write(frames.encode(channel.ASK, {"question": "told", "arguments": {}}))
        decoder = frames.Decoder()
        decoder.feed(await reader.read())  # until the machine closes the connection
        kinds = []
        while (frame := decoder.take()) is not None:
            kinds.append(frame.kind)
        assert kinds == [channel.CHALLENGE]
        writer.close()


class Cluster:
    """Machines whose answers the test decides."""

    def __init__(self, names: str) -> None:
        self.known = {name: Known(f"10.0.0.1:{ord(name)}", is_alive=True) for name in names}
        self.reports = {name: MachineReport(state="serving") for name in names}
        self.silent: set[str] = set()
        self.away: set[str] = set()
        self.asked: list[str] = []
        self.at_once = self.most_at_once = 0
        self.tasks: set[asyncio.Task[None]] = set()
        self.overview = Overview("a", known=lambda: self.known, ask=self.ask, spawn_task=self.spawn)

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)

    async def ask(self, name: str) -> bytes:
        self.asked.append(name)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if name in self.silent:
                await asyncio.Event().wait()
            if name in self.away:
                raise MachineAwayError(f"{name} is away")
            return msgspec.json.encode(self.reports[name])
        finally:
            self.at_once -= 1

    async def states(self) -> dict[str, str]:
        return {machine.name: machine.state for machine in await self.overview.machines()}

    def close(self) -> None:
        for task in self.tasks:
            task.cancel()


async def test_machines_are_asked_together_and_once_for_all_who_look() -> None:
    cluster = Cluster("abc")
    cluster.reports["b"].state = "draining"
    looks = await asyncio.gather(*(cluster.states() for _ in range(5)))
    assert looks == [{"a": "serving", "b": "draining", "c": "serving"}] * 5
    assert sorted(cluster.asked) == ["a", "b", "c"]


async def test_a_machine_that_does_not_answer_delays_nobody_and_is_named() -> None:
    cluster = Cluster("ab")
    cluster.silent = {"b"}
    begun_s = time.monotonic()
    assert await cluster.states() == {"a": "serving", "b": "no answer"}
    assert time.monotonic() - begun_s < 5  # it would wait for ever
    assert cluster.asked.count("b") == 1
    await cluster.states()
    assert cluster.asked.count("b") == 1  # it is not asked again before it has answered
    cluster.close()


async def test_at_most_sixteen_machines_are_asked_at_a_time() -> None:
    cluster = Cluster("abcdefghijklmnopqrstuvwxyz")
    cluster.silent = set(cluster.known)
    assert {machine.state for machine in await cluster.overview.machines(0.01)} == {"no answer"}
    assert cluster.most_at_once == 16
    cluster.close()


async def test_an_old_report_is_not_shown_and_a_machine_that_left_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "_ASK_AGAIN_S", 0.0)
    cluster = Cluster("ab")
    assert await cluster.states() == {"a": "serving", "b": "serving"}
    cluster.away = {"b"}
    assert await cluster.states() == {"a": "serving", "b": "no answer"}  # it still sends summaries
    cluster.known["b"] = Known("", is_alive=False)
    [_, b] = await cluster.overview.machines()
    assert (b.state, b.why, b.report) == ("gone", "b is away", None)
    # A machine that is cut off itself cannot say that others are gone.
    cluster.reports["a"].state = "cut off"
    await cluster.states()
    assert await cluster.states() == {"a": "cut off", "b": "no answer"}
    cluster.away, cluster.reports["b"] = set(), MachineReport(state="cut off", why="it is cut off")
    assert (await cluster.states())["b"] == "cut off"
    del cluster.known["b"]
    assert await cluster.states() == {"a": "cut off"}


async def test_an_answer_of_another_version_is_read_as_far_as_possible() -> None:
    cluster = Cluster("abc")
    answers = {"b": b'{"state": "serving", "queued": 3, "of the future": [1]}', "c": b'{"state": 7}', "a": b"{}"}
    overview_ = Overview("a", known=lambda: cluster.known, ask=lambda name: _later(answers[name]), spawn_task=_spawn)
    a, b, c = await overview_.machines()
    assert b.report is not None and b.report.queued == 3
    assert a.report is None and c.report is None
    assert "another version" in c.why


async def _later(document: bytes) -> bytes:
    return document


def _spawn(work: Coroutine[None, None, None]) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(work)


def seen(report: MachineReport | None, **more: Any) -> SeenMachine:
    fields = {"name": "b", "address": "10.0.0.2:8351", "is_own": False, "state": "serving", "why": ""}
    return SeenMachine(**{**fields, "report": report, **more})


def test_the_table_shows_figures_and_escapes_what_machines_say() -> None:
    hostile = "<script>alert(1)</script>"
    report = MachineReport(
        state=hostile, why=hostile, version=hostile, url="javascript:alert(1)", environments={"thaw": 3, "cold": 1},
        cores=2, cores_used=1.26, memory_mb=4096, memory_used_mb=1024, queued=1200, oldest_age_s=1.5, errors=7,
        leads=True,
    )  # fmt: skip
    text = section([seen(report, name=hostile, state=hostile, why=hostile), seen(None, state="gone", why="it left")])
    assert "<script>" not in text and "href" not in text
    for shown in ("1.3 of 2", "1,024 of 4,096", "1,200", "1.50 s", "leads", ">7<", "gone", ": it left"):
        assert shown in text, shown
    assert "1 machine did not answer in time" in text
    assert fingerprint([seen(report)]) != fingerprint([seen(MachineReport(state="serving"))])


def test_records_of_other_machines_are_escaped_and_linked() -> None:
    hostile = "<script>alert(1)</script>"
    record = RecordElsewhere(hostile, "http://b:1/_thawd/", f'a"/{hostile}', hostile, 1, hostile)
    text = render(elsewhere.nothing_here(hostile, Elsewhere([record], ["b"], [hostile])))
    assert "<script>" not in text
    assert 'href="http://b:1/_thawd/window/invocations/a%22%2F%3Cscript%3E' in text
    assert "did not answer, and may have recorded it" in text
    assert Elsewhere([record]).only("other").found == []
    assert "may have: c" in elsewhere.nowhere("x", Elsewhere([], [], ["c"]))
    assert "href" not in render(elsewhere.section(Elsewhere([replace(record, page=None)])))


@pytest.mark.parametrize(
    "answer",
    [
        b"{}",
        b'"found"',
        b'{"found": [{"id": 1, "request_id": "abcdefgh", "function": "f", "began_ms": %d, '
        b'"error_type": ""}]}' % (10**18),
    ],
)
def test_a_machine_whose_records_cannot_be_read_counts_as_away(answer: bytes) -> None:
    right = b'{"found": [{"id": 1, "request_id": "abcdefgh", "function": "f", "began_ms": 5, "error_type": ""}]}'
    answers = {"b": msgspec.Raw(answer), "c": msgspec.Raw(right)}
    found = elsewhere_of({"answers": answers, "away": {"d": "gone"}}, {"b": None, "c": None}, "abcd")
    assert [(each.machine, each.began_ms) for each in found.found] == [("c", 5)]
    assert (found.asked, found.away) == (["c"], ["b", "d"])


@pytest.mark.parametrize(
    ("url", "address", "page"),
    [
        ("http://10.0.0.2:8350", "10.0.0.2:8351", "http://10.0.0.2:8350/_thawd/"),
        ("https://[fd00::2]:8350", "10.0.0.2:8351", "https://[fd00::2]:8350/_thawd/"),
        ("http://0.0.0.0:8350", "10.0.0.2:8351", "http://10.0.0.2:8350/_thawd/"),
        ("http://127.0.0.1:8350", "10.0.0.2:8351", None),  # only it itself reaches its loopback
        ("http://127.0.0.1:8350", "127.0.0.1:8351", "http://127.0.0.1:8350/_thawd/"),
        ("http://user@evil:8350/x?y", "10.0.0.2:8351", "http://evil:8350/_thawd/"),
        ("javascript:alert(1)", "10.0.0.2:8351", None),
        ("http://[", "10.0.0.2:8351", None),
        ("", "10.0.0.2:8351", None),
    ],
)
def test_a_machine_links_to_its_page_if_others_reach_it(url: str, address: str, page: str | None) -> None:
    assert page_of(MachineReport(state="serving", url=url), address) == page


async def test_a_page_is_refreshed_when_what_it_shows_of_others_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thawd.window.live._LOOK_S", 0.001)
    monkeypatch.setattr("thawd.window.live._SHORTEST_S", 0.001)
    live, sent, now = Live(), [], ["one"]
    arrived = asyncio.Event()

    async def look() -> str:
        return now[0]

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))
        arrived.set()

    async def until(text: bytes) -> None:
        sent.clear()
        while not any(text in body for body in sent):
            arrived.clear()
            await arrived.wait()

    async def receive() -> Any:
        await asyncio.Event().wait()

    # The page was made before the change, so the first look shows it.
    serving = asyncio.create_task(live.serve(receive, send, look=look, shown="zero"))
    await until(b"event: changed")
    await until(b"still here")
    now[0] = "two"
    await until(b"event: changed")
    live.close()
    await serving
