"""Logs Insights queries through boto3. The names of the parts are those of the CloudWatch Logs API reference."""

from __future__ import annotations

import base64
import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.clients import client_of
from tests.integration.conftest import eventually
from tests.integration.logs_alone import now_ms, printed, put, refused, served

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def logs(folder: Path) -> Iterator[Any]:
    with served(folder) as url:
        yield client_of(url, "logs", parameter_validation=False)


@pytest.fixture
def group(logs: Any) -> str:
    name = f"made/{next(_numbers)}"
    logs.create_log_group(logGroupName=name)
    logs.create_log_stream(logGroupName=name, logStreamName="s")
    return name


def queried(logs: Any, query: str, **asked: Any) -> dict[str, Any]:
    now = int(time.time())
    given = {"startTime": now - 7200, "endTime": now + 60, **asked}
    identifier = logs.start_query(queryString=query, **given)["queryId"]

    def ended() -> Any:
        answer = logs.get_query_results(queryId=identifier)
        return answer if answer["status"] not in ("Scheduled", "Running") else None

    return dict(eventually(ended, what="the query's end"))


def rows(answer: dict[str, Any]) -> list[dict[str, str]]:
    return [
        {field["field"]: field["value"] for field in result if field["field"] != "@ptr"} for result in answer["results"]
    ]


def test_a_query_reads_files_and_events_of_clients_of_several_groups(logs: Any, folder: Path, group: str) -> None:
    at = now_ms() - 60_000
    printed(folder, "queried", (at, '{"took": 5, "ok": true}'), (at + 1, '{"took": 7}'), (at + 2, "other"))
    put(logs, group, (at + 3, '{"took": 30}'))
    groups = ["/aws/lambda/queried", group]
    answer = queried(logs, "filter ispresent(took) | fields took, @log", logGroupNames=groups)
    assert answer["status"] == "Complete"
    assert [row["took"] for row in rows(answer)] == ["30", "7", "5"]
    assert rows(answer)[0]["@log"] == f"000000000000:{group}"
    statistics = answer["statistics"]
    assert (statistics["recordsMatched"], statistics["recordsScanned"]) == (3.0, 4.0)
    assert statistics["bytesScanned"] > 30
    answer = queried(logs, "stats sum(took) as s, count(*) as c by @log | sort c desc", logGroupNames=groups)
    assert rows(answer) == [
        {"@log": "000000000000:/aws/lambda/queried", "s": "12", "c": "3"},
        {"@log": f"000000000000:{group}", "s": "30", "c": "1"},
    ]


def test_a_result_leads_to_its_whole_event(logs: Any, group: str) -> None:
    at = now_ms() - 1000
    put(logs, group, (at, "before"), (at, '{"a": {"b": 1}}'), (at + 1, "after"))
    answer = queried(logs, "filter a.b = 1", logGroupName=group)
    [pointer] = [field["value"] for field in answer["results"][0] if field["field"] == "@ptr"]
    record = logs.get_log_record(logRecordPointer=pointer)["logRecord"]
    assert (record["@message"], record["a.b"], record["@logStream"]) == ('{"a": {"b": 1}}', "1", "s")


def test_results_come_page_by_page_and_queries_are_listed(logs: Any, group: str) -> None:
    at = now_ms() - 1000
    put(logs, group, *((at + index, f"m{index}") for index in range(5)))
    text = f"fields @message # {group}"
    queried(logs, text, logGroupName=group, limit=4)
    [found] = logs.describe_queries(logGroupName=group)["queries"]
    assert (found["queryString"], found["status"], found["logGroupName"]) == (text, "Complete", group)
    assert found["queryDuration"] > 0
    pages = [logs.get_query_results(queryId=found["queryId"], maxItems=3)]
    pages.append(logs.get_query_results(queryId=found["queryId"], maxItems=3, nextToken=pages[0]["nextToken"]))
    assert [len(page["results"]) for page in pages] == [3, 1]
    with refused("InvalidParameterException", "Query is not in running state"):
        logs.stop_query(queryId=found["queryId"])


def test_a_query_that_takes_long_is_stopped_and_others_run_meanwhile(logs: Any, group: str) -> None:
    put(logs, group, (now_ms(), "a" * 5000 + "b"))
    now = int(time.time())
    slow = logs.start_query(
        logGroupName=group, startTime=now - 60, endTime=now + 60, queryString="filter @message like /(a+)+$/"
    )["queryId"]
    assert rows(queried(logs, "stats count(*) as c", logGroupName=group)) == [{"c": "1"}]
    assert logs.get_query_results(queryId=slow)["status"] == "Running"
    assert logs.stop_query(queryId=slow)["success"]
    assert logs.get_query_results(queryId=slow)["status"] == "Cancelled"


def test_a_query_that_is_not_understood_is_refused_with_its_place(logs: Any, group: str) -> None:
    with pytest.raises(ClientError) as caught:
        queried(logs, "fields @message | bogus 1", logGroupName=group)
    error = caught.value.response
    assert error["Error"]["Code"] == "MalformedQueryException"
    assert error["Error"]["Message"] == "unexpected symbol found bogus at line 1 and position 19"
    assert error["queryCompileError"]["location"] == {"startCharOffset": 18, "endCharOffset": 23}


@pytest.mark.parametrize(
    ("asked", "code", "words"),
    [
        ({}, "InvalidParameterException", "Exactly one of"),
        ({"logGroupName": "absent"}, "ResourceNotFoundException", "The specified log group does not exist."),
        ({"logGroupName": "a", "startTime": 5, "endTime": 4}, "InvalidParameterException", "End time should not be"),
        ({"logGroupName": "a", "queryLanguage": "SQL"}, "InvalidParameterException", "CWLI"),
        ({"logGroupNames": ["a"] * 51}, "InvalidParameterException", "50"),
    ],
)
def test_a_query_that_cannot_start_is_refused(logs: Any, asked: dict[str, Any], code: str, words: str) -> None:
    with refused(code, words):
        queried(logs, "fields @message", **asked)
    with refused("ResourceNotFoundException", "does not exist"):
        logs.get_query_results(queryId="absent")


@pytest.mark.parametrize("place", [(0, -5, 0, 0), (1 << 63, 1 << 70, 0, 0), (0, 0, 1 << 70, 0), (0, 0, 0, -(1 << 70))])
def test_a_pointer_that_no_query_has_made_is_refused(logs: Any, group: str, place: tuple[int, ...]) -> None:
    pointer = base64.urlsafe_b64encode(json.dumps([group, *place, "id"]).encode()).decode()
    with refused("InvalidParameterException", "The specified logRecordPointer is invalid."):
        logs.get_log_record(logRecordPointer=pointer)
