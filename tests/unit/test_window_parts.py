"""Parts of the pages: escaping, drawings, sessions."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import random
import tracemalloc
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from thawd.errors import InvalidParameterValueException
from thawd.stores.invocations.record_queries import ErrorCount
from thawd.stores.invocations.record_rows import InvocationRow
from thawd.window import failures, heat_map, try_page, waterfall
from thawd.window.layout import code, counted, indented, milliseconds, page, size, whole_number
from thawd.window.live import Live
from thawd.window.markup import Html, el, render
from thawd.window.session import COOKIE, Sessions
from thawd.window.uploads import form_of, http_event


def test_every_text_is_escaped_unless_it_is_html() -> None:
    assert el("p", "<b>", Html("<i>x</i>"), 3, None, ["&", '"']) == "<p>&lt;b&gt;<i>x</i>3&amp;&quot;</p>"
    assert el("a", "x", href='"><script>', title=None, hidden=True) == '<a href="&quot;&gt;&lt;script&gt;" hidden>x</a>'
    assert render(el("br")) == "<br/>"


def invocation(**more: float) -> InvocationRow:
    times = {
        "total_ms": 20.0, "gateway_ms": 1.0, "wait_ms": 2.0, "start_ms": 8.0, "prepare_ms": 5.0, "hooks_ms": 1.0,
        "handler_ms": 7.0, **more,
    }  # fmt: skip
    return InvocationRow(
        1, 0, "r", "f", "", "1", "Invoke", "thaw", 200, 0, "", "", *times.values(), 2, 2, 1, "s", "t"
    )  # fmt: skip


def test_the_stages_of_a_waterfall_follow_each_other_and_fill_the_whole_time() -> None:
    stages = waterfall.stages(invocation())
    assert [(stage.name, stage.took_ms) for stage in stages] == [
        ("gateway", 1.0), ("wait", 2.0), ("spawn", 3.0), ("restore", 4.0), ("hooks", 1.0), ("handler", 7.0),
        ("answer", 3.0),
    ]  # fmt: skip
    for one, other in itertools.pairwise(stages):
        assert other.begin_ms == pytest.approx(one.begin_ms + one.took_ms)
    assert sum(stage.took_ms for stage in stages) == pytest.approx(21.0)
    assert "restore" in waterfall.draw(invocation()) and waterfall.draw(invocation(total_ms=0.0, handler_ms=30.0))


def test_a_heat_map_has_a_cell_for_each_minute_and_latency_by_start_kind() -> None:
    cells = {"warm": Counter({(0, -14): 100, (59, -10): 1}), "cold": Counter({(3, 2): 1})}
    drawing = heat_map.draw(cells, since_ms=0, column_ms=60_000)
    assert drawing.count('class="heat warm') == 2 and drawing.count('class="heat cold') == 1
    assert "shade5" in drawing and "warm: 101 invocations" in drawing and "fork" not in drawing
    assert heat_map.quantile_ms(Counter({-14: 99, 2: 1}), 0.99) == pytest.approx(7.8125)
    assert heat_map.quantile_ms(Counter(), 0.5) is None


def test_a_request_id_that_has_several_continuations_lists_them() -> None:
    rows = [invocation()._replace(request_id=f"0a1b2c3d-{each}") for each in "xy"]
    text = render(failures.several(rows, "<0a1b2c3d"))
    assert "&lt;0a1b2c3d" in text and all(f"/invocations/{row.request_id}" in text for row in rows)


def test_kinds_of_failures_link_to_the_time_that_they_are_of() -> None:
    kinds = [ErrorCount("f", "ValueError", 2, 1, "bad")]
    assert "error=ValueError&amp;span=3600" in failures.groups(kinds, span="3600")
    assert "span" not in failures.groups(kinds)


def test_sessions_are_opened_by_the_key_alone_and_cannot_be_made_up() -> None:
    sessions = Sessions("the-right-key")
    scope = {"headers": []}
    assert sessions.opened(scope) is None and sessions.log_in("the-wrong-key", is_secure=False) is None
    cookie = (sessions.log_in("the-right-key", is_secure=True) or b"").partition(b";")[0]
    value = cookie.decode().removeprefix(f"{COOKIE}=")
    assert sessions.opened({"headers": [(b"cookie", cookie)]}) == value
    until, nonce, signature = value.split(".")
    for forged in (f"{int(until) + 9}.{nonce}.{signature}", f"{until}.{nonce}.{'0' * 64}", "", "..", value[:-1]):
        assert sessions.opened({"headers": [(b"cookie", f"{COOKIE}={forged}".encode())]}) is None, forged
    assert Sessions("the-right-key").opened({"headers": [(b"cookie", cookie)]}) is None  # of another server
    assert sessions.opened({"headers": [(b"x-api-key", b"the-right-key")]}) == "key"
    assert sessions.has_token(value, sessions.token(value)) and not sessions.has_token("other", sessions.token(value))
    assert Sessions(None).opened(scope) == "loopback"
    assert Sessions(None, ["a-secret"]).opened(scope) is None


def test_answers_are_shown_as_what_they_are() -> None:
    assert "<img" in str(render(try_page.shown(b"\x89PNG", "image/png")))
    picture = b'{"statusCode": 200, "headers": {"Content-Type": "image/png"}, "isBase64Encoded": true, "body": "aGk="}'
    assert 'src="data:image/png;base64,aGk="' in render(try_page.shown(picture, None))
    assert "<script>" not in render(try_page.shown(b'{"statusCode": 200, "body": "<script>"}', None))
    assert "<img" not in render(try_page.shown(picture.replace(b"image/png", b"image/svg+xml"), None))
    assert "<table>" in render(try_page.shown(b'[{"a": 1}, {"b": "<"}]', None))
    assert "<pre" in render(try_page.shown(b"[1, 2]", None)) and "<pre" in render(try_page.shown(b"\xff", None))


def test_answers_that_are_hardly_json_are_shown() -> None:
    for answer in (b"[" * 100_000, b'{"a": ' * 100_000, b"9" * 5000):
        assert "<pre" in render(try_page.shown(answer, None))
    assert "<pre" in render(try_page.shown(b'{"statusCode": 200, "body": "\\ud800"}', None))


@pytest.mark.parametrize("show", [code, lambda body: render(try_page._indented(body))])
def test_deeply_nested_json_needs_little_memory_on_a_page(show: Callable[[bytes], Html]) -> None:
    body = b"[" * 400 + b",".join([b"1"] * 20_000) + b"]" * 400  # 40 KB; with indents, it would have 16 MB
    tracemalloc.start()
    try:
        page = show(body)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(page) < 100_000
    assert peak_bytes < 4 << 20


def test_json_is_indented_as_far_as_it_is_shown() -> None:
    assert indented('{"a":[1]}', most=100) == '{\n  "a": [\n    1\n  ]\n}'
    assert indented("no JSON", most=3) == "no JSON"
    assert "Only the first 20,000 characters are shown. Without indents, the text has 30,002." in code(
        b'"' + b"a" * 30_000 + b'"'
    )


def test_a_parameter_is_a_whole_number_or_nothing() -> None:
    assert [whole_number(text) for text in ("0", "12", "", "-1", "1.5", "\xb2", "\u0663", "9" * 19, "9" * 5000)] == [
        0, 12, *[None] * 7,
    ]  # fmt: skip


def test_figures_have_units() -> None:
    assert (counted(1, "row"), counted(0, "row"), counted(1200, "row")) == ("1 row", "0 rows", "1,200 rows")
    assert [milliseconds(value) for value in (None, 0.1234, 12.3, 999.4, 1500, 90_000)] == [
        "-", "0.123 ms", "12.3 ms", "999 ms", "1.50 s", "1.5 min",
    ]  # fmt: skip
    assert [size(count) for count in (7, 2048, 3 << 20, 5 << 30)] == ["7 B", "2.0 KiB", "3.0 MiB", "5.0 GiB"]


def test_a_file_in_a_form_arrives_byte_for_byte_whatever_is_in_it() -> None:
    for seed in range(200):
        draw = random.Random(seed)
        file = bytes(draw.choice(b"\r\n-b0\x00\x85\x0c\xff a") for _ in range(draw.choice((1, 2, 3, 40, 500))))
        body = (
            b'--bnd\r\ncontent-disposition: form-data; name="function"\r\n\r\n\xc3\xa4\r\n--bnd\r\n'
            b'Content-Disposition: form-data; name="file"; filename="a.png"\r\nContent-Type: image/png\r\n\r\n'
            + file
            + b"\r\n--bnd--\r\n"
        )
        form = form_of("multipart/form-data; boundary=bnd", body)
        assert (form.file, form.file_type, form.fields) == (file, "image/png", {"function": "ä"}), seed
        event = json.loads(http_event(file, "image/png", "classify"))
        assert base64.b64decode(event["body"]) == file and event["rawPath"] == "/classify", seed
    assert form_of("application/x-www-form-urlencoded", b"a=1&b=%C3%A4").fields == {"a": "1", "b": "ä"}


@pytest.mark.parametrize("kind", ["message/rfc822", "multipart/mixed; boundary=other", "text/plain; charset=utf-16"])
def test_a_file_of_any_type_arrives(kind: str) -> None:
    file = b"Subject: x\r\n\r\n--other\r\n\r\nhello\r\n--other--\r\n"
    head = f'content-disposition: form-data; name="file"; filename="\xe4.eml"\r\ncontent-type: {kind}\r\n\r\n'
    form = form_of('multipart/form-data; boundary="b d"', b"--b d\r\n" + head.encode() + file + b"\r\n--b d--\r\n")
    assert (form.file, form.file_type) == (file, kind.partition(";")[0])


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("multipart/form-data", b"x"),
        ("multipart/form-data; boundary*=utf-8''%E2%82%AC", b"x"),
        ("multipart/form-data; boundary=b", b"x"),
        ("multipart/form-data; boundary=b", b"--b\r\n\r\ncut off"),
        ("multipart/form-data; boundary=b", b"--b\r\ncontent-disposition: form-data; name=a\r\n\r\n" * 60),
        ("application/x-www-form-urlencoded", b"a=1&" * 60),
    ],
)
def test_what_is_no_form_is_refused(kind: str, body: bytes) -> None:
    with pytest.raises(InvalidParameterValueException):
        form_of(kind, body)


async def test_a_page_that_is_closed_leaves_the_others_at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thawd.window.live._SHORTEST_S", 0.001)
    live, leave, sent = Live(), asyncio.Event(), list[Any]()

    async def receive() -> dict[str, Any]:
        await leave.wait()
        return {"type": "http.disconnect"}

    async def never() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Any) -> None:
        sent.append(message)

    async def ignore(message: Any) -> None:
        pass

    staying, leaving = asyncio.create_task(live.serve(never, send)), asyncio.create_task(live.serve(receive, ignore))
    await asyncio.sleep(0.01)
    leave.set()
    await leaving
    await asyncio.sleep(0.05)
    assert len(sent) <= 3  # the head, the time between connections, one sign of life
    live.close()
    await staying


def test_half_of_a_surrogate_pair_does_not_break_a_page() -> None:
    assert "?" in page("x", code(b'{"name": "\\ud83d"}')).decode()
