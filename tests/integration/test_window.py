"""The pages under ``/_thawd/``: what they show, who may see them, and what their buttons do. Without a browser."""

from __future__ import annotations

import base64
import html
import http.client
import json
import re
import urllib.parse
from collections.abc import Iterator
from typing import Any

import pytest

from .conftest import Project, Running, eventually

KEY = "key-of-this-server-1"
CANARY = "canary-31337"
CODE = """
def handler(event, context):
    if event.get("fail"):
        print("about to fail, token=" + event["token"])
        raise ValueError("<script>alert(1)</script> " + event["token"])
    if "isBase64Encoded" in event:
        return {"statusCode": 200, "headers": {"content-type": "image/png"}, "isBase64Encoded": True,
                "body": event["body"] if event["isBase64Encoded"] and event["rawPath"] == "/classify" else "bm8="}
    if event.get("rows"):
        return [{"label": "cat", "score": 0.9}, {"label": "<dog>", "score": 0.1}]
    return {"n": event.get("n"), "half of a pair": "\\ud83d"}
"""
CONFIG = """
    [functions.f]
    handler = "app.handler"
    maximum_retry_attempts = 0
    environment = { PASSWORD_OF_DB = "canary-31337" }
    [functions.stopped]
    handler = "app.handler"
    snapshot = false
    reserved_concurrency = 0
    """


class Browser:
    """Keeps a cookie, follows no redirects, and knows the token of the forms that it has seen."""

    def __init__(self, running: Running) -> None:
        self.place = urllib.parse.urlsplit(running.url).netloc
        self.cookie = ""
        self.token = ""

    def send(
        self, method: str, path: str, form: dict[str, Any] | bytes | None = None, **headers: str
    ) -> tuple[int, str]:
        connection = http.client.HTTPConnection(self.place, timeout=60)
        sent = {"accept": "text/html", **headers}
        if self.cookie:
            sent["cookie"] = self.cookie
        body = urllib.parse.urlencode(form) if isinstance(form, dict) else form
        connection.request(method, path, body, sent)
        answer = connection.getresponse()
        text = answer.read().decode()
        self.headers = {name.lower(): value for name, value in answer.getheaders()}
        connection.close()
        if "set-cookie" in self.headers:
            self.cookie = self.headers["set-cookie"].partition(";")[0]
        if found := re.search(r'name="token" value="([0-9a-f]+)"', text):
            self.token = found[1]
        return answer.status, text

    def get(self, path: str, **headers: str) -> str:
        status, text = self.send("GET", path, **headers)
        assert status == 200, text
        return text

    def press(self, path: str, **fields: Any) -> tuple[int, str]:
        return self.send("POST", path, {"token": self.token, **fields})


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    project = Project(tmp_path_factory.mktemp("window"))
    project.code(CODE)
    project.config(f"record_per_s = 1000\n{CONFIG}")
    with project.up() as running:
        yield running


@pytest.fixture
def browser(open_server: Running) -> Browser:
    return Browser(open_server)


def latest(running: Running, **query: Any) -> str:
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(running.url).netloc, timeout=60)
    connection.request("GET", f"/_thawd/invocations?{urllib.parse.urlencode(query)}")
    found = json.loads(connection.getresponse().read())["invocations"]
    connection.close()
    return str(found[0]["request_id"])


PAGES = ("/_thawd/", *(f"/_thawd/window/{name}" for name in ("failures", "invocations", "queue", "snapshots", "try")))


def test_every_page_opens_with_nothing_recorded_and_lets_no_script_in(open_server: Running, browser: Browser) -> None:
    for path in PAGES:
        text = browser.get(path)
        assert text.count("<h1>") == 1 and 'lang="en"' in text and 'id="content"' in text, path
        assert not re.search(r"<script(?! src=)|\son\w+=|style=", text), path
        assert "default-src 'none'" in browser.headers["content-security-policy"], path
        assert browser.headers["cache-control"] == "no-store"
    assert browser.send("GET", "/_thawd/", accept="application/json")[0] == 404  # as before, for programs
    assert browser.send("DELETE", "/_thawd/window/queue")[0] == 405


def test_a_failure_leads_to_its_cause_in_two_clicks_and_shows_no_secret(open_server: Running, browser: Browser) -> None:
    open_server.invoke("f", {"fail": True, "token": CANARY})
    first = browser.get("/_thawd/")
    [path] = set(re.findall(r'href="(/_thawd/window/records/\d+)"', first))
    assert browser.send("GET", path)[0] == 303
    page = browser.get(browser.headers["location"])
    for text in ("ValueError", "&lt;script&gt;alert(1)&lt;/script&gt; [redacted]", "app.py", "Where the time went"):
        assert text in page, text
    assert "about to fail, token=[redacted]" in html.unescape(page)
    assert "cannot be replayed" in page and "/replay" not in page
    for path in (*PAGES, "/_thawd/window/functions/f", "/_thawd/window/failures?error=ValueError&text=SCRIPT"):
        text = browser.get(path)
        assert CANARY not in text and "<script>alert" not in text, path
    assert "PASSWORD_OF_DB" in browser.get("/_thawd/window/functions/f")


def test_filters_pages_and_cursors_of_lists(open_server: Running, browser: Browser) -> None:
    for number in range(55):
        open_server.invoke("f", {"n": number})
    text = browser.get("/_thawd/window/invocations?function=f")
    [older] = re.findall(r'href="([^"]*before=\d+)"', text)
    assert "f" in browser.get(html.unescape(older))
    assert "No recorded invocation matches" in browser.get("/_thawd/window/failures?function=unknown&span=3600")
    assert browser.send("GET", "/_thawd/window/failures?request=abc")[0] == 303


def test_a_request_is_found_by_the_characters_that_lists_show(open_server: Running, browser: Browser) -> None:
    open_server.invoke("f", {})
    request_id = latest(open_server)
    status, _ = browser.send("GET", f"/_thawd/window/failures?request={request_id[:8]}")
    assert status == 303 and browser.headers["location"].endswith(f"/invocations/{request_id}")


def test_a_refused_request_says_which_limit_and_what_to_do(open_server: Running, browser: Browser) -> None:
    client = open_server.client()
    with pytest.raises(client.exceptions.TooManyRequestsException):
        client.invoke(FunctionName="stopped")
    page = browser.get(f"/_thawd/window/invocations/{latest(open_server, function='stopped')}")
    assert "Rate Exceeded. (ReservedFunctionConcurrentInvocationLimitExceeded)" in page
    assert "Refused: the reserved concurrency of stopped is 0" in page and "PutFunctionConcurrency" in page
    assert "function=stopped&amp;span=3600&amp;error=TooManyRequestsException" in browser.get("/_thawd/")
    assert "Starts cold: snapshot = false." in browser.get("/_thawd/window/functions/stopped")


def test_replay_runs_the_same_event_and_shows_it(open_server: Running, browser: Browser) -> None:
    open_server.invoke("f", {"n": 4242})
    request_id = latest(open_server, failed=0)
    browser.get(f"/_thawd/window/invocations/{request_id}")
    status, _ = browser.press("/_thawd/window/replay", request=request_id)
    assert status == 303
    page = browser.get(browser.headers["location"])
    assert request_id not in page and "4242" in page


def test_try_sends_an_event_and_shows_rows_as_a_table(browser: Browser) -> None:
    browser.get("/_thawd/window/try")
    status, text = browser.press("/_thawd/window/try", function="f", event='{"rows": 1}')
    assert status == 200 and "2 rows" in text and "&lt;dog&gt;" in text and "See where the time went" in text
    status, text = browser.press("/_thawd/window/try", function="f", event="{not json")
    assert status == 200 and "Could not parse" in text and "{not json" in text
    status, text = browser.press("/_thawd/window/try", function="f", event="{}")
    assert status == 200 and "half of a pair" in text
    assert browser.get(re.findall(r"/_thawd/window/invocations/[0-9a-f-]+", text)[0])
    assert "Function not found" in browser.press("/_thawd/window/try", function="none", event="{}")[1]


def test_try_sends_a_file_as_the_body_of_a_request_and_shows_an_image(browser: Browser) -> None:
    browser.get("/_thawd/window/try")
    picture = b"\x89PNG\r\n\x1a\n\x00\xff--b\r\n"
    fields = {"token": browser.token, "function": "f", "path": "classify"}
    parts = [f'--b0\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{fields[name]}\r\n' for name in fields]
    head = '--b0\r\ncontent-disposition: form-data; name="file"; filename="a.png"\r\ncontent-type: image/png\r\n\r\n'
    body = "".join(parts).encode() + head.encode() + picture + b"\r\n--b0--\r\n"
    status, text = browser.send(
        "POST", "/_thawd/window/try", body, **{"content-type": "multipart/form-data; boundary=b0"}
    )
    assert status == 200 and f"data:image/png;base64,{base64.b64encode(picture).decode()}" in text


def test_dead_letters_are_queued_again_and_removed_after_a_question(open_server: Running, browser: Browser) -> None:
    client = open_server.client()
    for token in (CANARY, "x"):
        event = json.dumps({"fail": True, "token": token})
        client.invoke(FunctionName="f", InvocationType="Event", Payload=event)
    eventually(lambda: open_server.function("f")["dead"] == 2, what="two dead letters")
    text = browser.get("/_thawd/window/queue")
    numbers = re.findall(r'href="/_thawd/window/dead/(\d+)"', text)
    letter = browser.get(f"/_thawd/window/dead/{numbers[0]}")
    assert CANARY not in text + letter and "[redacted]" in letter and "will probably fail again" in letter
    assert f'href="/_thawd/window/try?dead={numbers[0]}"' in letter
    for number in numbers:
        assert "Values are redacted here" in browser.get(f"/_thawd/window/dead/{number}"), number
        filled = html.unescape(browser.get(f"/_thawd/window/try?dead={number}"))
        assert '"fail": true' in filled and "Complete the event" in filled and "stays as it is" in filled, number
        assert CANARY not in filled
    status, text = browser.press("/_thawd/window/dead/redrive", id=numbers[0])
    assert status == 200 and "1 dead letter was queued again" in text
    eventually(lambda: open_server.function("f")["dead"] == 2, what="the dead letter again")
    for impossible in ({"id": "²"}, {"id": "9" * 30}, {}):
        assert browser.press("/_thawd/window/dead/remove", **impossible)[0] == 400
    assert "For 10 minutes, this can be undone" in browser.press("/_thawd/window/dead/ask", all=1)[1]
    assert "To queue again cannot be undone" in browser.get("/_thawd/window/queue")
    assert open_server.function("f")["dead"] == 2
    status, text = browser.press("/_thawd/window/dead/remove", all=1)
    assert status == 200 and "2 dead letters were removed" in text and "Undo: restore 2 dead letters" in text
    assert open_server.function("f")["dead"] == 0
    # Somebody else finds the removal on the page of the queue. It can be undone once.
    [removal] = set(re.findall(r'name="removal" value="(\d+)"', browser.get("/_thawd/window/queue")))
    status, text = browser.press("/_thawd/window/dead/undo", removal=removal)
    assert status == 200 and "2 dead letters were restored" in text and "Undo:" not in text
    assert open_server.function("f")["dead"] == 2
    status, text = browser.press("/_thawd/window/dead/undo", removal=removal)
    assert status == 404 and "was undone before" in text
    for impossible in ("", "²", "9" * 30, "-1"):
        assert browser.press("/_thawd/window/dead/undo", removal=impossible)[0] == 404
    assert browser.send("POST", "/_thawd/window/dead/undo", {"removal": removal})[0] == 403
    assert "1 dead letter was removed" in browser.press("/_thawd/window/dead/remove", id=numbers[1])[1]
    assert "1 dead letter was removed" in browser.press("/_thawd/window/dead/remove", all=1)[1]
    assert browser.get("/_thawd/window/queue").count("Undo: restore 1 dead letter") == 2


def test_no_other_site_can_press_a_button_or_read_a_page(open_server: Running, browser: Browser) -> None:
    browser.get("/_thawd/window/queue")
    form = {"token": browser.token, "function": "f", "event": "{}"}
    for fields, headers in (
        (form, {"origin": "https://elsewhere.example"}),
        (form, {"sec-fetch-site": "cross-site"}),
        ({**form, "token": "0" * 64}, {}),
        ({"function": "f", "event": "{}"}, {}),
    ):
        assert browser.send("POST", "/_thawd/window/try", fields, **headers)[0] == 403, (fields, headers)
    assert browser.send("GET", "/_thawd/", origin="https://elsewhere.example")[0] == 403
    assert browser.send("GET", "/_thawd/", host="rebound.example")[0] == 403
    # What another site embeds or fetches is refused, and a link there leads to the page.
    foreign = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    for dest, status in (("document", 200), ("iframe", 403), ("object", 403), ("empty", 403)):
        assert browser.send("GET", "/_thawd/", **foreign, **{"sec-fetch-dest": dest})[0] == status, dest
    assert browser.send("POST", "/_thawd/window/try", form, **foreign, **{"sec-fetch-dest": "document"})[0] == 403


def test_open_pages_are_told_of_what_is_recorded(open_server: Running, browser: Browser) -> None:
    connection = http.client.HTTPConnection(browser.place, timeout=60)
    connection.request("GET", "/_thawd/window/live")
    answer = connection.getresponse()
    assert answer.getheader("content-type") == "text/event-stream"
    assert answer.readline() == b"retry: 5000\n"
    open_server.invoke("f", {})
    while b"event: changed" not in answer.readline():
        pass
    connection.close()


def test_with_a_key_pages_need_a_session_that_the_key_opens(project: Project) -> None:
    project.code(CODE)
    project.config(f'key = "{KEY}"\n{CONFIG}')
    with project.up() as running:
        browser = Browser(running)
        for path in (*PAGES, "/_thawd/window/live", "/_thawd/window/functions/f"):
            status, text = browser.send("GET", path)
            assert status == 401 and "Sign in" in text and "functions/f" not in text, path
        followed = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
        status, text = browser.send("GET", "/_thawd/window/queue", **followed)
        assert status == 401 and 'href="/_thawd/window/queue">continue</a>' in text
        assert browser.send("POST", "/_thawd/window/login", {"key": "wrong-key"})[0] == 401 and not browser.cookie
        assert browser.send("POST", "/_thawd/window/try", {"function": "f"})[0] == 401
        assert browser.send("POST", "/_thawd/window/login", {"key": "x" * 5000})[0] == 413
        assert browser.send("POST", "/_thawd/window/login", {"key": KEY})[0] == 303
        cookie = browser.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and KEY not in cookie
        for path in PAGES:
            assert KEY not in browser.get(path), path
        assert browser.send("GET", "/_thawd/status")[0] == 403  # the cookie is for pages only
        forged = browser.cookie[:-1] + "10"[browser.cookie[-1] == "1"]
        assert Browser(running).send("GET", "/_thawd/", cookie=forged)[0] == 401
        browser.get("/_thawd/")
        assert browser.press("/_thawd/window/logout")[0] == 303
        assert browser.send("GET", "/_thawd/")[0] == 401
        assert Browser(running).get("/_thawd/", **{"x-api-key": KEY})


def test_the_page_of_a_function_says_what_lambda_would_bill_once_enough_was_measured(project: Project) -> None:
    project.code(CODE)
    project.config('[functions.f]\nhandler = "app.handler"\n')
    with project.up() as running:
        browser = Browser(running)
        for _ in range(29):
            running.invoke("f", {})
        assert "Only 29 invocations were measured" in browser.get("/_thawd/window/functions/f")
    with project.up() as running:
        running.invoke("f", {})
        text = browser_text(Browser(running).get("/_thawd/window/functions/f"))
        document = json.loads(project.command("cost", "f", "--json").stdout)
        on_demand = document["rows"][0]
        assert f"on demand at least {on_demand['per_million']:.2f} " in text, text
        assert "Last 24 hours: 30 invocations, counted since" in text
        assert f"{on_demand['start_share']:.1%} waited for a start" in text


def browser_text(page: str) -> str:
    """Return the text of a page without its tags."""
    return " ".join(html.unescape(re.sub("<[^>]*>", " ", page)).split())
