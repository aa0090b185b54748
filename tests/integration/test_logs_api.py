"""The Logs API, through boto3 and the AWS CLI. The page names are those of the CloudWatch Logs API reference."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.clients import client_of
from tests.integration.conftest import DEADLINE_S, Project
from tests.integration.logs_alone import served
from thawd.gateway.logs import event_operations
from thawd.telemetry.logs.writer import rotated

BEGIN_MS = 1_790_000_000_000
STREAMS = ("2026/11/20/[$LATEST]aa", "2026/11/20/[$LATEST]bb", "2026/11/21/[$LATEST]cc")
GROUP = "/aws/lambda/f"


def logs_of(url: str) -> Any:
    return client_of(url, "logs", parameter_validation=False)


def line(number: int) -> str:
    at = datetime.fromtimestamp((BEGIN_MS + number) / 1000, UTC)
    level = ("INFO", "ERROR")[number % 2]
    message = json.dumps({"level": level, "n": number}) if number % 3 == 0 else f"line {number} {level}"
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z\t{STREAMS[number % 3]}\t{message}\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logs of three groups. The log of `f` has lines 0 to 299 in three files, one line per millisecond."""
    folder = tmp_path_factory.mktemp("logs")
    path = folder / "f.log"
    rotated(path, 2).write_text("".join(map(line, range(100))))
    rotated(path, 1).write_text("".join(map(line, range(100, 200))))
    path.write_text("".join(map(line, range(200, 300))))
    (folder / "g.log").write_text(line(0))
    (folder / "=team,shared.log").write_text(line(1))
    return folder


@pytest.fixture(scope="module")
def logs(folder: Path) -> Iterator[Any]:
    with served(folder) as url:
        yield logs_of(url)


def numbers(events: list[dict[str, Any]]) -> list[int]:
    return [event["timestamp"] - BEGIN_MS for event in events]


# DescribeLogGroups


def test_groups_are_described(logs: Any) -> None:
    groups = logs.describe_log_groups()["logGroups"]
    assert [group["logGroupName"] for group in groups] == [GROUP, "/aws/lambda/g", "team/shared"]
    assert groups[0]["arn"] == f"arn:aws:logs:us-east-1:000000000000:log-group:{GROUP}:*"
    assert groups[0]["creationTime"] == BEGIN_MS
    assert groups[0]["storedBytes"] == sum(len(line(number)) for number in range(300))


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ({"logGroupNamePrefix": "/aws/lambda/"}, [GROUP, "/aws/lambda/g"]),
        ({"logGroupNamePattern": "SHARED"}, ["team/shared"]),
        ({"logGroupNamePrefix": "/none"}, []),
    ],
)
def test_groups_are_found_by_prefix_and_pattern(logs: Any, asked: dict[str, str], names: list[str]) -> None:
    assert [group["logGroupName"] for group in logs.describe_log_groups(**asked)["logGroups"]] == names


def test_groups_come_page_by_page(logs: Any) -> None:
    pages = list(logs.get_paginator("describe_log_groups").paginate(PaginationConfig={"PageSize": 2}))
    assert [len(page["logGroups"]) for page in pages] == [2, 1]


# DescribeLogStreams


def test_streams_are_described(logs: Any) -> None:
    streams = logs.describe_log_streams(logGroupName=GROUP)["logStreams"]
    assert [stream["logStreamName"] for stream in streams] == list(STREAMS)
    assert [stream["firstEventTimestamp"] - BEGIN_MS for stream in streams] == [0, 1, 2]
    assert [stream["lastEventTimestamp"] - BEGIN_MS for stream in streams] == [297, 298, 299]
    assert streams[0]["arn"] == f"arn:aws:logs:us-east-1:000000000000:log-group:{GROUP}:log-stream:{STREAMS[0]}"


@pytest.mark.parametrize("order", ["LogStreamName", "LastEventTime"])
@pytest.mark.parametrize("descending", [True, False])
def test_streams_come_in_order_page_by_page(logs: Any, order: str, descending: bool) -> None:
    pages = logs.get_paginator("describe_log_streams").paginate(
        logGroupName=GROUP, orderBy=order, descending=descending, PaginationConfig={"PageSize": 1}
    )
    found = [stream["logStreamName"] for page in pages for stream in page["logStreams"]]
    assert found == list(STREAMS)[:: -1 if descending else 1]


def test_streams_are_found_by_prefix_and_the_group_by_its_arn(logs: Any) -> None:
    arn = f"arn:aws:logs:us-east-1:000000000000:log-group:{GROUP}"
    for group in (arn, GROUP):
        asked = {"logGroupIdentifier": group, "logStreamNamePrefix": "2026/11/21"}
        assert [s["logStreamName"] for s in logs.describe_log_streams(**asked)["logStreams"]] == [STREAMS[2]]


# GetLogEvents


def test_the_latest_events_come_without_startfromhead_and_the_first_with_it(logs: Any) -> None:
    asked = {"logGroupName": GROUP, "logStreamName": STREAMS[1], "limit": 4}
    assert numbers(logs.get_log_events(**asked)["events"]) == [289, 292, 295, 298]
    answer = logs.get_log_events(**asked, startFromHead=True)
    assert numbers(answer["events"]) == [1, 4, 7, 10]
    assert answer["events"][0]["message"] == "line 1 ERROR\n"
    assert answer["events"][0]["ingestionTime"] == BEGIN_MS + 1


def test_forward_tokens_lead_to_the_end_and_then_stay_the_same(logs: Any) -> None:
    asked = {"logGroupName": GROUP, "logStreamName": STREAMS[0], "limit": 30, "startFromHead": True}
    found: list[int] = []
    token = None
    while True:
        answer = logs.get_log_events(**asked, **({"nextToken": token} if token else {}))
        found += numbers(answer["events"])
        if answer["nextForwardToken"] == token:
            break
        token = answer["nextForwardToken"]
    assert found == list(range(0, 300, 3))
    assert answer["events"] == []


def test_backward_tokens_lead_to_the_beginning_and_a_forward_token_back(logs: Any) -> None:
    asked = {"logGroupName": GROUP, "logStreamName": STREAMS[2], "limit": 30}
    pages = [logs.get_log_events(**asked)]
    while pages[-1]["events"]:
        pages.append(logs.get_log_events(**asked, nextToken=pages[-1]["nextBackwardToken"]))
    assert pages[-1]["nextBackwardToken"] == pages[-2]["nextBackwardToken"]
    found = [numbers(page["events"]) for page in pages]
    assert [number for page in reversed(found) for number in page] == list(range(2, 300, 3))
    # A page's forward token leads to the events after it, which are those of the previous page here.
    again = logs.get_log_events(**asked, nextToken=pages[1]["nextForwardToken"])
    assert numbers(again["events"]) == found[0]


def test_the_start_is_inclusive_and_the_end_is_not(logs: Any) -> None:
    answer = logs.get_log_events(
        logGroupName=GROUP, logStreamName=STREAMS[0], startTime=BEGIN_MS + 30, endTime=BEGIN_MS + 39
    )
    assert numbers(answer["events"]) == [30, 33, 36]


def test_new_events_are_found_by_the_old_forward_token(folder: Path, logs: Any) -> None:
    asked = {"logGroupName": "/aws/lambda/g", "logStreamName": STREAMS[0]}
    token = logs.get_log_events(**asked)["nextForwardToken"]
    assert logs.get_log_events(**asked, nextToken=token)["events"] == []
    with (folder / "g.log").open("a") as file:
        file.write(line(3))
    assert numbers(logs.get_log_events(**asked, nextToken=token)["events"]) == [3]


# FilterLogEvents


def all_filtered(logs: Any, **asked: Any) -> list[dict[str, Any]]:
    pages = logs.get_paginator("filter_log_events").paginate(logGroupName=GROUP, **asked)
    return [event for page in pages for event in page["events"]]


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ({}, range(300)),
        ({"logStreamNames": [STREAMS[0], STREAMS[2]]}, [n for n in range(300) if n % 3 != 1]),
        ({"logStreamNamePrefix": "2026/11/20"}, [n for n in range(300) if n % 3 != 2]),
        ({"filterPattern": "line ERROR"}, [n for n in range(300) if n % 2 and n % 3]),
        ({"filterPattern": "{ $.level = ERROR && $.n > 200 }"}, [n for n in range(201, 300) if n % 2 and not n % 3]),
        ({"filterPattern": "?INFO ?ERROR"}, range(300)),
        ({"filterPattern": "-INFO"}, range(1, 300, 2)),
        ({"startTime": BEGIN_MS + 90, "endTime": BEGIN_MS + 210}, range(90, 211)),
        ({"filterPattern": '"line 7 "'}, [7]),
    ],
)
@pytest.mark.parametrize("page", [7, None])
def test_events_are_filtered(logs: Any, asked: dict[str, Any], wanted: Any, page: int | None) -> None:
    paging = {"PaginationConfig": {"PageSize": page}} if page else {}
    found = all_filtered(logs, **asked, **paging)
    assert numbers(found) == list(wanted)
    assert len({event["eventId"] for event in found}) == len(found)


def test_an_event_has_the_same_id_and_stream_whatever_was_asked(logs: Any) -> None:
    every = {event["timestamp"]: event for event in all_filtered(logs)}
    for event in all_filtered(logs, filterPattern="ERROR", logStreamNames=[STREAMS[1]]):
        assert every[event["timestamp"]] == event
        assert event["logStreamName"] == STREAMS[1]
        assert re.fullmatch(r"\d{56}", event["eventId"])


def test_one_answer_reads_only_so_much_and_says_where_to_go_on(logs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_operations, "_SCAN_BYTES", 10_000)
    answer = logs.filter_log_events(logGroupName=GROUP, filterPattern='"line 298 "')
    assert answer["events"] == []
    assert answer["nextToken"]
    assert numbers(all_filtered(logs, filterPattern='"line 298 "')) == [298]


# Errors


@pytest.mark.parametrize(
    ("operation", "asked", "code", "words"),
    [
        ("get_log_events", {"logGroupName": "/no", "logStreamName": "x"}, "ResourceNotFoundException", "log group"),
        ("get_log_events", {"logGroupName": GROUP, "logStreamName": "x"}, "ResourceNotFoundException", "log stream"),
        ("get_log_events", {"logGroupName": GROUP}, "InvalidParameterException", "logStreamName"),
        ("get_log_events", {"logStreamName": "x"}, "InvalidParameterException", "logGroupName"),
        ("get_log_events", {"logGroupName": "a b", "logStreamName": "x"}, "InvalidParameterException", "a b"),
        ("describe_log_streams", {"logGroupName": "/no"}, "ResourceNotFoundException", "log group"),
        ("describe_log_streams", {"logGroupName": "../f"}, "ResourceNotFoundException", "log group"),
        ("describe_log_streams", {"logGroupName": GROUP, "limit": 51}, "InvalidParameterException", "limit"),
        ("describe_log_streams", {"logGroupName": GROUP, "limit": 0}, "InvalidParameterException", "limit"),
        ("describe_log_streams", {"logGroupName": GROUP, "orderBy": "Size"}, "InvalidParameterException", "orderBy"),
        (
            "describe_log_streams",
            {"logGroupName": GROUP, "orderBy": "LastEventTime", "logStreamNamePrefix": "2"},
            "InvalidParameterException",
            "LastEventTime",
        ),
        ("describe_log_streams", {"logGroupName": GROUP, "nextToken": "x"}, "InvalidParameterException", "nextToken"),
        (
            "describe_log_groups",
            {"logGroupNamePrefix": "a", "logGroupNamePattern": "b"},
            "InvalidParameterException",
            "mutually exclusive",
        ),
        ("filter_log_events", {"logGroupName": GROUP, "nextToken": "f/1"}, "InvalidParameterException", "nextToken"),
        ("filter_log_events", {"logGroupName": GROUP, "limit": 10_001}, "InvalidParameterException", "10000"),
        ("filter_log_events", {"logGroupName": GROUP, "startTime": -1}, "InvalidParameterException", "startTime"),
        (
            "filter_log_events",
            {"logGroupName": GROUP, "startTime": 2, "endTime": 1},
            "InvalidParameterException",
            "End",
        ),
        ("filter_log_events", {"logGroupName": GROUP, "filterPattern": "{ x"}, "InvalidParameterException", "pattern"),
        ("filter_log_events", {"logGroupName": GROUP, "logStreamNames": []}, "InvalidParameterException", "Names"),
        ("filter_log_events", {"logGroupName": GROUP, "logStreamNames": ["x"]}, "ResourceNotFoundException", "stream"),
        (
            "filter_log_events",
            {"logGroupName": GROUP, "logStreamNames": ["x"], "logStreamNamePrefix": "x"},
            "InvalidParameterException",
            "both",
        ),
        (
            "filter_log_events",
            {"logGroupName": GROUP, "logGroupIdentifier": GROUP},
            "InvalidParameterException",
            "Exactly one",
        ),
        ("create_export_task", {"logGroupName": "x"}, "UnknownOperationException", "FilterLogEvents"),
    ],
)
def test_what_is_wrong_is_told(logs: Any, operation: str, asked: dict[str, Any], code: str, words: str) -> None:
    with pytest.raises(ClientError) as caught:
        getattr(logs, operation)(**asked)
    error = caught.value.response["Error"]
    assert error["Code"] == code
    assert words in error["Message"]
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"limit": "5"}', b'{"logGroupName": 5}', b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_request_is_told_in_the_protocols_form(logs: Any, body: bytes) -> None:
    request = urllib.request.Request(
        logs.meta.endpoint_url, data=body, headers={"X-Amz-Target": "Logs_20140328.DescribeLogStreams"}
    )
    with pytest.raises(urllib.error.HTTPError) as caught, urllib.request.urlopen(request, timeout=20):
        pass
    with caught.value as error:
        assert error.status == 400
        assert error.headers["content-type"] == "application/x-amz-json-1.1"
        assert json.loads(error.read())["__type"] == "SerializationException"


# A whole server


def test_what_a_function_logged_is_there_when_its_answer_is(project: Project) -> None:
    project.code("def handler(event, context):\n    print('hello', event)\n    return context.log_stream_name\n")
    project.config('[functions.f]\nhandler = "app.handler"\n')
    with project.up() as server:
        logs = logs_of(server.url)
        since_ms = int(time.time() * 1000)
        stream, error = server.invoke("f", 7)
        assert error is None
        events = logs.get_log_events(logGroupName=GROUP, logStreamName=stream, startFromHead=True)["events"]
        messages = [event["message"] for event in events]
        at = messages.index("hello 7\n")
        assert messages[at - 1].startswith("START RequestId: ")
        assert messages[at + 1].startswith("END RequestId: ")
        assert messages[at + 2].startswith("REPORT RequestId: ")
        assert messages[at + 2].endswith("\t\n")
        assert stream in [s["logStreamName"] for s in logs.describe_log_streams(logGroupName=GROUP)["logStreams"]]
        command = [
            *(sys.executable, "-m", "awscli", "logs", "filter-log-events", "--log-group-name", GROUP),
            *("--filter-pattern", "hello", "--start-time", str(since_ms), "--output", "json"),
            *("--endpoint-url", server.url, "--region", "us-east-1", "--no-sign-request"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
        assert [event["message"] for event in json.loads(done.stdout)["events"]] == ["hello 7\n"]
