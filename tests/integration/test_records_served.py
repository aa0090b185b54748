"""Invocations of a real server are recorded: from each source, with their stages, without secrets, through a kill."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from .conftest import Project, Running, eventually

CODE = """
import time
def handler(event, context):
    if isinstance(event, dict) and "rawPath" in event:
        return {"statusCode": 503, "body": "overloaded"}
    if event.get("fail"):
        print("about to fail")
        raise ValueError("bad pixel count, password=" + event["password"])
    time.sleep(event.get("s", 0))
    return {"n": event.get("n")}
"""
CANARY = "canary-90210"
KEY = "key-of-this-server-1"


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    project = Project(tmp_path_factory.mktemp("recording"))
    project.code(CODE)
    project.config(
        f"""
        record_per_s = 1000
        key = "{KEY}"
        [functions.f]
        handler = "app.handler"
        maximum_retry_attempts = 1
        on_failure = "table:failures"
        [tables.failures]
        [functions.limited]
        handler = "app.handler"
        reserved_concurrency = 0
        [routes]
        "GET /d" = "f"
        """
    )
    with project.up() as running:
        yield running


def get(running: Running, path: str, *, method: str = "GET", body: bytes | None = None, **headers: str) -> Any:
    request = urllib.request.Request(f"{running.url}{path}", method=method, data=body)
    for name, value in {"x-api-key": KEY, **headers}.items():
        request.add_header(name.replace("_", "-"), value)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def invoke(running: Running, event: Any, *, function: str = "f", **headers: str) -> Any:
    path = f"/2015-03-31/functions/{function}/invocations"
    return get(running, path, method="POST", body=json.dumps(event).encode(), **headers)


def recorded(running: Running, **query: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = get(running, f"/_thawd/invocations?{urllib.parse.urlencode(query)}")["invocations"]
    return found


def test_an_invocation_is_recorded_before_its_caller_can_ask(recording: Running) -> None:
    invoke(recording, {"n": 7, "s": 0.02})
    latest = recorded(recording, function="f", failed=0)[0]
    assert latest["status"] == 200 and latest["handler_ms"] >= 20
    assert latest["total_ms"] >= latest["wait_ms"] + latest["start_ms"] + latest["handler_ms"]
    document = get(recording, f"/_thawd/invocations/{latest['request_id']}")
    assert document["event"] == {"n": 7, "s": 0.02} and document["answer"] == {"n": 7}
    assert document["why_not_replayable"] is None


def test_failures_are_found_by_their_error_and_text(recording: Running) -> None:
    invoke(recording, {"fail": True, "password": CANARY})
    [found] = recorded(recording, failed=1, error="ValueError", text="PIXEL", limit=1)
    assert found["error"] == "bad pixel count, password=[redacted]"
    document = get(recording, f"/_thawd/invocations/{found['request_id']}")
    assert document["event"] == {"fail": True, "password": "[redacted]"}
    assert "would get others" in document["why_not_replayable"]
    assert CANARY not in json.dumps(document)


def test_a_throttled_request_and_a_handlers_503_are_failures(recording: Running) -> None:
    status, _ = invoke(recording, {}, function="limited")
    assert status == 429
    [throttled] = recorded(recording, function="limited")
    assert (throttled["status"], throttled["error_type"]) == (429, "TooManyRequestsException")
    get(recording, f"/d?token={CANARY}&key={KEY}", authorization=f"Bearer {CANARY}")
    [served] = recorded(recording, failed=1, text="GET /d")
    assert (served["status"], served["error_type"], served["source"]) == (503, "HTTP 503", "GET /d")
    document = json.dumps(get(recording, f"/_thawd/invocations/{served['request_id']}"))
    assert CANARY not in document and KEY not in document


def test_all_attempts_of_an_event_belong_together(recording: Running) -> None:
    invoke(recording, {"fail": True, "password": "pw-1", "n": 99}, x_amz_invocation_type="Event")
    found = eventually(
        lambda: [each for each in recorded(recording, failed=1, text="queued") if "pixel" in each["error"]][1:2],
        what="the second attempt",
    )
    document = get(recording, f"/_thawd/invocations/{found[0]['request_id']}")
    assert [each["source"] for each in document["attempts"]] == ["Invoke, queued"] * 2

    def steps() -> list[tuple[str, str]]:
        document = get(recording, f"/_thawd/invocations/{found[0]['request_id']}")
        return [(step["kind"], step["detail"]) for step in document["steps"]]

    eventually(lambda: len(steps()) == 3, what="the delivery of the failure")
    line = f"event {found[0]['request_id']} becomes a dead letter (RetriesExhausted): ValueError: bad pixel count"
    recording.until_said(line)
    assert f"{line}, password=[redacted]" in "\n".join(recording.output)
    assert steps() == [
        ("retry", "in 0.05 s"),
        ("dead letter", "RetriesExhausted"),
        ("delivered", "the failure to table:failures"),
    ]


def test_records_need_the_key_and_say_what_is_wrong_with_a_filter(recording: Running) -> None:
    assert get(recording, "/_thawd/invocations", x_api_key="wrong-key")[0] == 403
    status, text = get(recording, "/_thawd/invocations?since=yesterday")
    assert status == 400 and "seconds since 1970" in text
    status, text = get(recording, "/_thawd/invocations/no-such-id")
    assert status == 404 and "record_per_s" in text
    assert get(recording, "/_thawd/invocations", method="POST")[0] == 405


def test_records_survive_a_kill(project: Project) -> None:
    project.code(CODE)
    project.config('[functions.f]\nhandler = "app.handler"\n')
    with project.up() as running:
        running.invoke("f", {"n": 1})
        assert len(get(running, "/_thawd/invocations")["invocations"]) == 1  # written by now
        running.stop(number=signal.SIGKILL)
    assert (project.data / "records.db").stat().st_mode & 0o777 == 0o600
    with project.up() as running:
        running.invoke("f", {"n": 2})
        assert len(get(running, "/_thawd/invocations")["invocations"]) == 2


def test_a_damaged_file_does_not_keep_a_server_from_starting(project: Project) -> None:
    project.code(CODE)
    project.config('[functions.f]\nhandler = "app.handler"\n')
    project.data.mkdir()
    (project.data / "records.db").write_bytes(b"garbage" * 1000)
    with project.up() as running:
        running.invoke("f", {})
        running.until_said("with the records of invocations is damaged")
        assert len(get(running, "/_thawd/invocations")["invocations"]) == 1
