"""The pages under ``/_thawd/`` in a real Chromium: accessibility, phone, dark, print, keyboard alone, live refreshes.

Servers have no invocation, one, a few, or a million of them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from benchmarks import made_up_records

from tests.integration.clusters import cluster
from tests.integration.conftest import Project, Running, eventually

playwright = pytest.importorskip("playwright.sync_api", reason="make test-window installs it")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="make test-window installs it")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")

# The width of A4 paper without Chromium's margins, CSS pixels.
PAPER = 718
CUT_OFF = """
[...document.querySelectorAll("*")].filter(each => getComputedStyle(each).overflow !== "visible" &&
    each.checkVisibility() && (each.scrollWidth > each.clientWidth + 1 || each.scrollHeight > each.clientHeight + 1)
).map(each => each.outerHTML.slice(0, 200))
"""
CODE = """
def handler(event, context):
    if event.get("fail"):
        print("about to fail")
        raise ValueError("bad pixel count")
    return [{"label": "cat", "score": 0.9}]
"""
TRACED = """
import json, os, socket, time

def handler(event, context):
    fields = dict(field.split("=", 1) for field in os.environ["_X_AMZN_TRACE_ID"].split(";"))
    host, port = os.environ["AWS_XRAY_DAEMON_ADDRESS"].split(":")
    sender, parent, now = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), fields["Parent"], time.time()
    for number in range(12):
        segment = {"id": f"{number + 1:016x}", "parent_id": parent, "trace_id": fields["Root"], "fault": number > 9,
                   "name": "call " + "x" * 9 * number, "start_time": now, "end_time": now, "namespace": "remote",
                   "http": {"request": {"method": "GET", "url": "http://localhost/" + "y" * 20 * number}},
                   "cause": {"exceptions": [{"type": "TimeoutError", "message": "z" * 30 * number}]}}
        sender.sendto(('{"format":"json","version":1}\\n' + json.dumps(segment)).encode(), (host, int(port)))
        parent = segment["id"]
"""


def a_project(tmp_path_factory: pytest.TempPathFactory, config: str) -> Project:
    project = Project(tmp_path_factory.mktemp("pages"))
    project.code(CODE)
    project.config(config)
    return project


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    project = a_project(tmp_path_factory, '[functions.f]\nhandler = "app.handler"\nmaximum_retry_attempts = 0\n')
    with project.up() as running:
        running.invoke("f", {"fail": True})
        for number in range(35):  # enough for prices on the page of the function
            running.invoke("f", {"n": number})
        running.client().invoke(FunctionName="f", InvocationType="Event", Payload='{"fail": true}')
        eventually(lambda: running.function("f")["dead"] == 1, what="a dead letter")
        yield running


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server whose function was never invoked."""
    with a_project(tmp_path_factory, '[functions.f]\nhandler = "app.handler"\n').up() as running:
        yield running


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with a million records; making them takes 20 s of processor time."""
    config = 'record_days = 3650\nrecord_max_mb = 1024\n[functions.fn7]\nhandler = "app.handler"\n'
    project = a_project(tmp_path_factory, config)
    project.data.mkdir(mode=0o700)
    made_up_records.fill(project.data / "records.db", 1_000_000)
    with project.up() as running:
        yield running


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Running]]:
    """Two machines of a cluster, a and b, and c, which was killed."""
    config = '[functions.app]\nhandler = "app.handler"\nprovisioned_concurrency = 3\n'  # one on each machine
    with cluster(tmp_path_factory.mktemp("cluster"), "abc", config) as running:
        running["b"].invoke("app", {"fail": "no such flower"})
        running["c"].process.kill()
        eventually(lambda: not running["a"].status()["cluster"]["machines"]["c"]["alive"], what="that c is gone")
        yield running


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def paths(page: Any, server: Running) -> list[str]:
    """Return the address of every kind of page that there is: an invocation and a dead letter may be missing."""
    function = next(iter(server.status()["functions"]))
    names = ("failures", "invocations", "queue", "snapshots", "try", f"functions/{function}")
    found = ["/_thawd/", *(f"/_thawd/window/{name}" for name in names)]
    for name, links in (("invocations", 'tbody th a[href*="/invocations/"]'), ("queue", 'a[href*="/dead/"]')):
        page.goto(f"{server.url}/_thawd/window/{name}")
        if page.locator(links).count():
            found.append(page.locator(links).first.get_attribute("href"))
    return found


def faults(chromium: Any, server: Running, scheme: str, width: int, media: str = "screen") -> int:
    """Look at all pages of a server and assert that axe-core finds no violation; return how many there are."""
    context = chromium.new_context(color_scheme=scheme, viewport={"width": width, "height": 800})
    page = context.new_page()
    page.emulate_media(media=media)
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    visited = paths(page, server)
    for path in visited:
        answer = page.goto(f"{server.url}{path}")
        assert answer.status == 200, path
        found = axe.Axe().run(page).response
        assert found["passes"] and not found["violations"], (path, found["violations"])
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        assert media == "screen" or page.evaluate(CUT_OFF) == [], path
    assert not problems
    context.close()
    return len(visited)


@pytest.mark.parametrize(
    ("scheme", "width", "media"),
    [
        ("light", 1280, "screen"),
        ("dark", 1280, "screen"),
        ("light", 390, "screen"),
        ("light", 2560, "screen"),
        ("dark", PAPER, "print"),
    ],
)
def test_no_page_violates_a_rule_of_axe_or_overflows_its_window(
    server: Running, chromium: Any, scheme: str, width: int, media: str
) -> None:
    assert faults(chromium, server, scheme, width, media) == 9


def test_pages_of_a_machine_of_a_cluster(member: dict[str, Running], chromium: Any) -> None:
    for scheme, width, media in (
        ("light", 1280, "screen"),
        ("dark", 1280, "screen"),
        ("light", 390, "screen"),
        ("light", PAPER, "print"),
    ):
        assert faults(chromium, member["a"], scheme, width, media) == 7


def test_the_page_of_an_invocation_of_another_machine_leads_there(member: dict[str, Running], chromium: Any) -> None:
    for width, media in ((1280, "screen"), (390, "screen"), (PAPER, "print")):
        page = chromium.new_page(viewport={"width": width, "height": 800})
        page.emulate_media(media=media)
        page.goto(f"{member['b'].url}/_thawd/window/invocations")
        there = page.locator('tbody th a[href*="/invocations/"]').first.get_attribute("href")
        assert page.goto(f"{member['a'].url}{there}").status == 200
        assert not axe.Axe().run(page).response["violations"]
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        follow(page, there.rpartition("/")[2])
        assert page.url == f"{member['b'].url}{there}" and "no such flower" in page.locator("main").text_content()
        page.close()


def test_the_table_of_machines_refreshes_itself_and_leads_to_their_pages(
    member: dict[str, Running], chromium: Any
) -> None:
    page = chromium.new_page()
    page.goto(f"{member['a'].url}/_thawd/")
    table = page.locator("table").first
    before = table.text_content()
    member["b"].invoke("app", {"fail": "no such flower"})
    playwright.expect(table).not_to_have_text(before, timeout=30_000)
    follow(page, "b")
    assert page.url == f"{member['b'].url}/_thawd/"
    assert "b (this machine)" in page.locator("table").first.text_content()
    page.close()


def test_pages_without_an_invocation_and_with_the_first_one(untouched: Running, chromium: Any) -> None:
    for width, media in ((390, "screen"), (PAPER, "print")):
        assert faults(chromium, untouched, "light", width, media) == 7
    untouched.invoke("f", {"n": 1})
    assert faults(chromium, untouched, "light", 1280) == 8


def test_pages_with_a_million_invocations(crowded: Running, chromium: Any) -> None:
    for scheme, width, media in (("light", 1280, "screen"), ("dark", 390, "screen"), ("light", PAPER, "print")):
        assert faults(chromium, crowded, scheme, width, media) == 8


def test_of_a_million_invocations_a_failure_and_the_older_ones_are_reached_by_keyboard(
    crowded: Running, chromium: Any
) -> None:
    page = chromium.new_page()
    page.goto(f"{crowded.url}/_thawd/")
    follow(page, "All failures")
    assert page.locator("tbody tr").count() == 100  # 50 kinds, 50 failures
    follow(page, "Error4")
    newest = page.locator("table").last.locator("tbody th a").first.text_content().strip()
    follow(page, "Older")
    oldest = page.locator("table").last.locator("tbody th a").first.text_content().strip()
    assert page.locator("tbody tr").count() == 50 and int(oldest, 16) < int(newest, 16)
    follow(page, oldest)
    assert "something went wrong with item" in page.locator("main").text_content()
    page.goto(f"{crowded.url}/_thawd/window/invocations?text=nowhere")
    assert "The search stopped after 10,000 records" in page.locator("main").text_content()
    page.close()


def test_paper_is_white_and_has_no_forms(server: Running, chromium: Any) -> None:
    page = chromium.new_page(color_scheme="dark")
    for path in paths(page, server):
        page.emulate_media(media="print")
        page.goto(f"{server.url}{path}")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        shown = page.locator("header, form").evaluate_all("all => all.filter(each => each.checkVisibility()).length")
        assert shown == 0, path
    page.close()


def test_the_calls_of_a_handler_are_on_a_phone_on_paper_and_without_scripts(
    tmp_path_factory: pytest.TempPathFactory, chromium: Any
) -> None:
    project = Project(tmp_path_factory.mktemp("calls"))
    project.code(TRACED)
    project.config('[functions.f]\nhandler = "app.handler"\ntracing = "Active"\n')
    with project.up() as running:
        running.invoke("f", {})
        for scheme, width, media in (("light", 1280, "screen"), ("dark", 390, "screen"), ("light", PAPER, "print")):
            assert faults(chromium, running, scheme, width, media) == 8
        context = chromium.new_context(java_script_enabled=False, viewport={"width": 390, "height": 800})
        page = context.new_page()
        path = paths(page, running)[-1]
        page.goto(f"{running.url}{path}")
        table = page.locator("div.scroll", has_text="What the handler called").locator("table")
        assert table.locator("tbody tr").count() == 12 and table.get_by_text("failed: TimeoutError").count() == 2
        assert table.bounding_box()["width"] <= 390, "nothing of it is beside the screen"
        context.close()


def follow(page: Any, text: str) -> None:
    """Press the tabulator key until something with this text has the focus, then the enter key."""
    for _ in range(150):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent.trim()") == text:
            assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", text
            with page.expect_navigation():
                page.keyboard.press("Enter")
            return
    raise AssertionError(f"no focus reaches {text!r}")


def test_by_keyboard_alone_a_failure_is_found_and_its_event_is_sent_again(server: Running, chromium: Any) -> None:
    page = chromium.new_page()
    page.goto(f"{server.url}/_thawd/")

    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    follow(page, "Failures")
    follow(page, "ValueError")
    href = page.locator("table").last.locator("tbody th a").first.text_content()
    follow(page, href.strip())
    assert "bad pixel count" in page.locator("main").text_content()
    before = page.url
    follow(page, "Replay")
    assert page.url != before and "bad pixel count" in page.locator("main").text_content()
    page.close()


def test_by_keyboard_alone_dead_letters_are_removed_and_restored(server: Running, chromium: Any) -> None:
    page = chromium.new_page(viewport={"width": 390, "height": 800})
    page.goto(f"{server.url}/_thawd/window/queue")
    assert "To queue again cannot be undone" in page.locator("main").text_content()
    follow(page, "Remove all …")
    assert "For 10 minutes, this can be undone" in page.locator("main").text_content()
    follow(page, "Remove")
    assert "was removed" in page.locator("[role=status]").text_content()
    found = axe.Axe().run(page).response
    assert found["passes"] and not found["violations"], found["violations"]
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.emulate_media(media="print")
    assert page.get_by_text("gone for good at").is_visible() and page.evaluate(CUT_OFF) == []
    page.emulate_media(media="screen")
    follow(page, "Undo: restore 1 dead letter")
    assert "1 dead letter was restored" in page.locator("[role=status]").text_content()
    assert server.function("f")["dead"] == 1
    page.close()


def test_pages_that_nobody_sees_hold_no_connection(server: Running, chromium: Any) -> None:
    context = chromium.new_context()
    for _ in range(8):  # a browser has six connections to a server
        page = context.new_page()
        page.goto(f"{server.url}/_thawd/", timeout=20_000)
        page.evaluate(
            "Object.defineProperty(document, 'hidden', { value: true });"
            "document.dispatchEvent(new Event('visibilitychange'))"
        )
    context.close()


def test_an_open_page_refreshes_itself_unless_it_is_in_use(server: Running, chromium: Any) -> None:
    page = chromium.new_page()
    page.goto(f"{server.url}/_thawd/window/invocations")
    rows = page.locator("tbody tr").count()
    server.invoke("f", {"n": 1})
    playwright.expect(page.locator("tbody tr")).to_have_count(rows + 1, timeout=30_000)
    page.locator('input[name="text"]').fill("typing")
    server.invoke("f", {"n": 2})
    page.wait_for_timeout(2500)
    assert page.locator('input[name="text"]').input_value() == "typing"
    page.close()
