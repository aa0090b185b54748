"""Log groups that clients make: groups, streams, events, retention, tags, filters, queries, through boto3.

The names of the parts are those of the CloudWatch Logs API reference; the errors' texts are those that AWS answers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients import client_of
from tests.integration.logs_alone import KNOWN, messages, now_ms, printed, put, refused, served

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def logs(folder: Path) -> Iterator[Any]:
    with served(folder, max_bytes=50_000) as url:
        yield client_of(url, "logs", parameter_validation=False)


@pytest.fixture
def group(logs: Any) -> str:
    name = f"made/{next(_numbers)}"
    logs.create_log_group(logGroupName=name)
    logs.create_log_stream(logGroupName=name, logStreamName="s")
    return name


# CreateLogGroup, DeleteLogGroup


def test_a_group_is_made_described_and_deleted(logs: Any) -> None:
    before = now_ms()
    logs.create_log_group(logGroupName="/mine", tags={"team": "a"}, logGroupClass="INFREQUENT_ACCESS")
    with refused("ResourceAlreadyExistsException", "The specified log group already exists"):
        logs.create_log_group(logGroupName="/mine")
    [found] = logs.describe_log_groups(logGroupNamePrefix="/mine")["logGroups"]
    assert found.pop("creationTime") >= before
    arn = "arn:aws:logs:us-east-1:000000000000:log-group:/mine"
    assert found == {
        **{"logGroupName": "/mine", "arn": f"{arn}:*", "logGroupArn": arn, "metricFilterCount": 0},
        **{"storedBytes": 0, "logGroupClass": "INFREQUENT_ACCESS"},
    }
    listed = logs.list_log_groups(logGroupNamePattern="^/min")["logGroups"]
    assert [each["logGroupArn"] for each in listed] == [arn]
    logs.delete_log_group(logGroupName="/mine")
    assert logs.describe_log_groups(logGroupNamePrefix="/mine")["logGroups"] == []
    with refused("ResourceNotFoundException", "The specified log group does not exist."):
        logs.delete_log_group(logGroupName="/mine")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "Value '' at 'logGroupName' failed to satisfy constraint: Member must have length greater than or equal"),
        ("a b", r"Member must satisfy regular expression pattern: [\.\-_/#A-Za-z0-9]+"),
        ("x" * 513, "Member must have length less than or equal to 512"),
        ("aws/mine", "Log groups starting with AWS/ are reserved for AWS."),
        (None, "Value null at 'logGroupName' failed to satisfy constraint: Member must not be null"),
    ],
)
def test_a_name_that_no_group_can_have_is_refused(logs: Any, name: str | None, words: str) -> None:
    with refused("InvalidParameterException", words):
        logs.create_log_group(**({} if name is None else {"logGroupName": name}))


def test_a_group_may_have_the_longest_name_that_is_allowed(logs: Any) -> None:
    name = "long/" + "n" * 507
    logs.create_log_group(logGroupName=name)
    logs.create_log_stream(logGroupName=name, logStreamName="s")
    put(logs, name, (now_ms(), "kept"))
    assert messages(logs.filter_log_events(logGroupName=name)) == ["kept"]
    assert [group["logGroupName"] for group in logs.describe_log_groups(logGroupNamePrefix="long")["logGroups"]] == [
        name
    ]
    logs.delete_log_group(logGroupName=name)


def test_a_protected_group_is_not_deleted(logs: Any, group: str) -> None:
    logs.put_log_group_deletion_protection(logGroupIdentifier=group, deletionProtectionEnabled=True)
    with refused("ValidationException", "deletion protection"):
        logs.delete_log_group(logGroupName=group)
    logs.put_log_group_deletion_protection(logGroupIdentifier=group, deletionProtectionEnabled=False)
    logs.delete_log_group(logGroupName=group)


def test_a_functions_group_can_be_made_until_its_first_invocation(logs: Any, folder: Path) -> None:
    # Source: Lambda developer guide: the group is made when the function is invoked; CDK makes it beside the function.
    printed(folder, "fresh", (now_ms(), "INIT_START Runtime Version: python:3.11"))
    logs.create_log_group(logGroupName="/aws/lambda/fresh", tags={"a": "b"})
    (event,) = logs.filter_log_events(logGroupName="/aws/lambda/fresh")["events"]
    assert event["message"].startswith("INIT_START")
    for name, line in (("text", "START RequestId: 7"), ("document", '{"type": "platform.start"}')):
        printed(folder, name, (now_ms(), "INIT_START"), (now_ms(), line))
        with refused("ResourceAlreadyExistsException", "already exists"):
            logs.create_log_group(logGroupName=f"/aws/lambda/{name}")


def test_a_functions_group_is_deleted_with_its_files_and_comes_back_with_its_next_line(logs: Any, folder: Path) -> None:
    printed(folder, "gone", (now_ms(), "START RequestId: 7 Version: $LATEST"))
    logs.put_retention_policy(logGroupName="/aws/lambda/gone", retentionInDays=7)
    with refused("ResourceAlreadyExistsException", "already exists"):
        logs.create_log_group(logGroupName="/aws/lambda/gone")
    logs.delete_log_group(logGroupName="/aws/lambda/gone")
    assert not (folder / "gone.log").exists()
    printed(folder, "gone", (now_ms(), "new"))
    assert messages(logs.filter_log_events(logGroupName="/aws/lambda/gone")) == ["new\n"]
    [found] = logs.describe_log_groups(logGroupNamePrefix="/aws/lambda/gone")["logGroups"]
    assert "retentionInDays" not in found


# CreateLogStream, DeleteLogStream


def test_streams_are_made_described_and_deleted(logs: Any, group: str) -> None:
    with refused("ResourceAlreadyExistsException", "The specified log stream already exists"):
        logs.create_log_stream(logGroupName=group, logStreamName="s")
    with refused("ResourceNotFoundException", "The specified log group does not exist."):
        logs.create_log_stream(logGroupName="absent", logStreamName="s")
    with refused("InvalidParameterException", "Member must satisfy regular expression pattern: [^:*]*"):
        logs.create_log_stream(logGroupName=group, logStreamName="a:b")
    at = now_ms()
    put(logs, group, (at - 5, "a"), (at, "b"))
    logs.create_log_stream(logGroupName=group, logStreamName="empty")
    empty, full = logs.describe_log_streams(logGroupName=group)["logStreams"]
    assert (full["firstEventTimestamp"], full["lastEventTimestamp"]) == (at - 5, at)
    assert full["lastIngestionTime"] >= full["creationTime"] > 0
    assert "lastEventTimestamp" not in empty
    assert empty["arn"] == f"arn:aws:logs:us-east-1:000000000000:log-group:{group}:log-stream:empty"
    by_time = logs.describe_log_streams(logGroupName=group, orderBy="LastEventTime", descending=True)["logStreams"]
    assert [stream["logStreamName"] for stream in by_time] == ["s", "empty"]
    logs.delete_log_stream(logGroupName=group, logStreamName="s")
    with refused("ResourceNotFoundException", "The specified log stream does not exist."):
        logs.delete_log_stream(logGroupName=group, logStreamName="s")
    assert logs.filter_log_events(logGroupName=group)["events"] == []
    [found] = logs.describe_log_groups(logGroupNamePrefix=group)["logGroups"]
    assert found["storedBytes"] == 0


def test_streams_come_page_by_page_from_files_and_from_clients(logs: Any, folder: Path) -> None:
    name = "/aws/lambda/mixed"
    at = now_ms()
    for index in (1, 3, 5):
        printed(folder, "mixed", (at + index, "x"), stream=f"n{index}")
    for index in (2, 4):
        logs.create_log_stream(logGroupName=name, logStreamName=f"n{index}")
        put(logs, name, (at + index, "x"), stream=f"n{index}")
    for order, descending in itertools.product(("LogStreamName", "LastEventTime"), (True, False)):
        pages = logs.get_paginator("describe_log_streams").paginate(
            logGroupName=name, orderBy=order, descending=descending, PaginationConfig={"PageSize": 2}
        )
        found = [stream["logStreamName"] for page in pages for stream in page["logStreams"]]
        assert found == [f"n{index}" for index in range(1, 6)][:: -1 if descending else 1]


def test_a_functions_stream_is_deleted_and_writes_on(logs: Any, folder: Path) -> None:
    at = now_ms()
    printed(folder, "two", (at - 9, "a"), stream="one")
    printed(folder, "two", (at - 8, "b"), stream="other")
    logs.delete_log_stream(logGroupName="/aws/lambda/two", logStreamName="one")
    assert messages(logs.filter_log_events(logGroupName="/aws/lambda/two")) == ["b\n"]
    printed(folder, "two", (now_ms() + 1000, "c"), stream="one")
    assert messages(logs.filter_log_events(logGroupName="/aws/lambda/two")) == ["b\n", "c\n"]


# PutLogEvents


def test_events_come_back_in_the_order_of_their_times_from_files_and_from_clients(logs: Any, folder: Path) -> None:
    at = now_ms() - 60_000
    name = "/aws/lambda/both"
    printed(folder, "both", (at + 10, "printed 10"), (at + 30, "printed 30"))
    logs.create_log_stream(logGroupName=name, logStreamName="s")
    answer = put(logs, name, (at + 20, "put 20"), (at + 40, "put\t40\nsecond line"))
    assert answer["nextSequenceToken"]
    assert "rejectedLogEventsInfo" not in answer
    put(logs, name, (at + 5, "put 5"))
    expected = ["put 5", "printed 10\n", "put 20", "printed 30\n", "put\t40\nsecond line"]
    assert messages(logs.filter_log_events(logGroupName=name)) == expected
    for size in (1, 2):
        pages = logs.get_paginator("filter_log_events").paginate(logGroupName=name, PaginationConfig={"PageSize": size})
        assert [message for page in pages for message in messages(page)] == expected
    assert messages(logs.filter_log_events(logGroupName=name, filterPattern="put", startTime=at + 20)) == [
        "put 20",
        "put\t40\nsecond line",
    ]


def test_a_stream_is_read_forward_and_backward_page_by_page(logs: Any, group: str) -> None:
    at = now_ms() - 60_000
    put(logs, group, *((at + index, f"m{index}") for index in range(0, 20, 2)))
    put(logs, group, *((at + index, f"m{index}") for index in range(1, 20, 2)))
    wanted = [f"m{index}" for index in range(20)]
    asked = {"logGroupName": group, "logStreamName": "s", "limit": 6}
    found: list[str] = []
    answer = logs.get_log_events(**asked, startFromHead=True)
    while answer["events"]:
        found += messages(answer)
        answer = logs.get_log_events(**asked, nextToken=answer["nextForwardToken"])
    assert found == wanted
    found = []
    answer = logs.get_log_events(**asked)
    last_page = messages(answer)
    while answer["events"]:
        found = messages(answer) + found
        back = logs.get_log_events(**asked, nextToken=answer["nextBackwardToken"])
        if back["events"]:
            again = logs.get_log_events(**asked, nextToken=back["nextForwardToken"])
            assert messages(again)[: len(answer["events"])] == messages(answer)
        answer = back
    assert (found, last_page) == (wanted, wanted[-6:])
    put(logs, group, (at + 99, "later"))
    tail = logs.get_log_events(**asked, nextToken=logs.get_log_events(**asked)["nextForwardToken"])
    assert tail["events"] == []


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([(2, "a"), (1, "b")], "Log events in a single PutLogEvents request must be in chronological order."),
        ([(0, "a"), (DAY_MS + 1, "b")], "cannot span more than 24 hours."),
        ([(0, "x" * 1_048_551)], "Log event too large: 1048577 bytes exceeds limit of 1048576"),
        ([(0, "x" * 600_000), (0, "x" * 600_000)], "Upload too large: 1200052 bytes exceeds limit of 1048576"),
        ([], "Value '[]' at 'logEvents' failed to satisfy constraint: Member must have length greater than or equal"),
        ([(0, "")], "Value '' at 'logEvents.1.member.message' failed to satisfy constraint"),
    ],
)
def test_a_batch_that_breaks_the_rules_is_refused_as_a_whole(
    logs: Any, group: str, events: list[tuple[int, str]], words: str
) -> None:
    begin = now_ms() - DAY_MS
    with refused("InvalidParameterException", words):
        put(logs, group, *((begin + time_ms, message) for time_ms, message in events))
    assert logs.filter_log_events(logGroupName=group)["events"] == []


def test_events_that_are_too_old_or_too_new_are_left_out_and_named(logs: Any, group: str) -> None:
    now = now_ms()
    answer = put(logs, group, (now - 14 * DAY_MS - 5000, "old"), (now - 14 * DAY_MS + 60_000, "kept"))
    assert answer["rejectedLogEventsInfo"] == {"tooOldLogEventEndIndex": 1}
    answer = put(logs, group, (now, "now"), (now + HOUR_MS, "soon"), (now + 2 * HOUR_MS + 60_000, "new"))
    assert answer["rejectedLogEventsInfo"] == {"tooNewLogEventStartIndex": 2}
    logs.put_retention_policy(logGroupName=group, retentionInDays=1)
    answer = put(logs, group, (now - DAY_MS - 1000, "expired"), (now - DAY_MS + 60_000, "kept, too"))
    assert answer["rejectedLogEventsInfo"] == {"expiredLogEventEndIndex": 1}
    assert messages(logs.filter_log_events(logGroupName=group)) == ["kept, too", "now", "soon"]


def test_events_for_a_group_or_stream_that_is_not_there_are_refused(logs: Any, group: str) -> None:
    with refused("ResourceNotFoundException", "The specified log stream does not exist."):
        put(logs, group, (now_ms(), "x"), stream="absent")
    with refused("ResourceNotFoundException", "The specified log group does not exist."):
        put(logs, "absent", (now_ms(), "x"))


def test_a_group_that_grows_too_large_loses_its_oldest_events(logs: Any, group: str) -> None:
    at = now_ms() - HOUR_MS
    for batch in range(6):  # 6 times 50 kB; 200 kB are allowed
        put(logs, group, *((at + batch * 1000 + index, f"{batch} " + "x" * 98) for index in range(400)))
    [found] = logs.describe_log_groups(logGroupNamePrefix=group)["logGroups"]
    pages = logs.get_paginator("filter_log_events").paginate(logGroupName=group)
    kept = [message for page in pages for message in messages(page)]
    assert 0 < found["storedBytes"] == sum(len(message) + 26 for message in kept) <= 200_000
    assert kept[-1].startswith("5 ")
    assert not kept[0].startswith("0 ")


# PutRetentionPolicy, DeleteRetentionPolicy


def test_events_that_are_no_longer_retained_are_not_seen(logs: Any, folder: Path) -> None:
    now = now_ms()
    name = "/aws/lambda/aging"
    printed(folder, "aging", (now - 2 * DAY_MS, "printed old"), (now - 10, "printed new"))
    logs.create_log_stream(logGroupName=name, logStreamName="s")
    put(logs, name, (now - 2 * DAY_MS, "put old"))
    put(logs, name, (now - 5, "put new"))
    logs.put_retention_policy(logGroupName=name, retentionInDays=1)
    [found] = logs.describe_log_groups(logGroupNamePrefix=name)["logGroups"]
    assert found["retentionInDays"] == 1
    assert messages(logs.filter_log_events(logGroupName=name)) == ["printed new\n", "put new"]
    stream = {"logGroupName": name, "logStreamName": "s"}
    assert messages(logs.get_log_events(**stream)) == messages(logs.get_log_events(**stream, startFromHead=True))
    logs.delete_retention_policy(logGroupName=name)
    assert "printed old\n" in messages(logs.filter_log_events(logGroupName=name))


def test_a_retention_that_is_not_offered_is_refused(logs: Any, group: str) -> None:
    with refused("InvalidParameterException", "Value '2' at 'retentionInDays' failed to satisfy constraint: Member mu"):
        logs.put_retention_policy(logGroupName=group, retentionInDays=2)
    with refused("ResourceNotFoundException", "The specified log group does not exist."):
        logs.put_retention_policy(logGroupName="absent", retentionInDays=1)


# TagResource, TagLogGroup


def test_tags_are_put_listed_and_removed(logs: Any, group: str) -> None:
    arn = f"arn:aws:logs:us-east-1:000000000000:log-group:{group}"
    logs.tag_resource(resourceArn=arn, tags={"a": "1", "b": "2"})
    logs.tag_log_group(logGroupName=group, tags={"c": "3"})
    assert logs.list_tags_for_resource(resourceArn=arn)["tags"] == {"a": "1", "b": "2", "c": "3"}
    logs.untag_resource(resourceArn=arn, tagKeys=["a"])
    logs.untag_log_group(logGroupName=group, tags=["b"])
    assert logs.list_tags_log_group(logGroupName=group)["tags"] == {"c": "3"}
    with refused("TooManyTagsException", "50"):
        logs.tag_resource(resourceArn=arn, tags={f"k{index}": "" for index in range(50)})
    with refused("ResourceNotFoundException", "The specified log group does not exist."):
        logs.list_tags_for_resource(resourceArn=f"{arn}-absent")


# PutSubscriptionFilter


def test_subscription_filters_are_put_described_replaced_and_deleted(logs: Any, group: str) -> None:
    asked = {"logGroupName": group, "filterPattern": "ERROR", "destinationArn": KNOWN}
    logs.put_subscription_filter(**asked, filterName="b")
    logs.put_subscription_filter(**asked, filterName="a")
    with refused("LimitExceededException", "Resource limit exceeded."):
        logs.put_subscription_filter(**asked, filterName="c")
    logs.put_subscription_filter(**{**asked, "filterPattern": ""}, filterName="b")
    first, second = logs.describe_subscription_filters(logGroupName=group)["subscriptionFilters"]
    assert first.pop("creationTime") <= now_ms()
    assert first == {**asked, "filterName": "a", "distribution": "ByLogStream"}
    assert (second["filterName"], second["filterPattern"]) == ("b", "")
    pages = logs.get_paginator("describe_subscription_filters").paginate(
        logGroupName=group, PaginationConfig={"PageSize": 1}
    )
    assert [len(page["subscriptionFilters"]) for page in pages] == [1, 1]
    logs.delete_subscription_filter(logGroupName=group, filterName="a")
    with refused("ResourceNotFoundException", "The specified subscription filter does not exist."):
        logs.delete_subscription_filter(logGroupName=group, filterName="a")


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        (
            {"logGroupName": "/aws/lambda/known"},
            "InvalidParameterException",
            "reserved for the function logs",
        ),
        ({"destinationArn": f"{KNOWN}x"}, "InvalidParameterException", "Could not execute the lambda function."),
        ({"roleArn": "arn:aws:iam::0:role/r"}, "InvalidParameterException", "cannot be used with roleArn"),
        ({"filterPattern": "{ x"}, "InvalidParameterException", "Invalid filter pattern"),
        ({"destinationArn": "arn:aws:firehose:x:0:y"}, "InvalidParameterException", "not to arn:aws:firehose"),
        ({"logGroupName": "absent"}, "ResourceNotFoundException", "The specified log group does not exist."),
    ],
)
def test_a_subscription_filter_that_cannot_work_is_refused(
    logs: Any, folder: Path, group: str, changes: dict[str, str], code: str, words: str
) -> None:
    printed(folder, "known", (now_ms(), "x"))
    asked = {"logGroupName": group, "filterName": "f", "filterPattern": "", "destinationArn": KNOWN}
    with refused(code, words):
        logs.put_subscription_filter(**{**asked, **changes})


def test_metric_filters_are_put_described_replaced_and_deleted(logs: Any, group: str) -> None:
    transformation = {"metricName": "m", "metricNamespace": "ns", "metricValue": "$.took", "unit": "Seconds"}
    asked = {"logGroupName": group, "filterPattern": "{ $.took > 1 }", "metricTransformations": [transformation]}
    logs.put_metric_filter(**asked, filterName="f")
    logs.put_metric_filter(**{**asked, "filterPattern": ""}, filterName="f")
    [found] = logs.describe_metric_filters(logGroupName=group)["metricFilters"]
    assert found.pop("creationTime") <= now_ms()
    assert found == {**asked, "filterPattern": "", "filterName": "f"}
    assert logs.describe_metric_filters(metricName="m", metricNamespace="ns")["metricFilters"][0]["filterName"] == "f"
    assert logs.describe_metric_filters(metricName="other", metricNamespace="ns")["metricFilters"] == []
    assert logs.describe_log_groups(logGroupNamePrefix=group)["logGroups"][0]["metricFilterCount"] == 1
    with refused("InvalidParameterException", "Invalid metric transformation"):
        changed = {**asked, "metricTransformations": [{**transformation, "metricValue": "took"}]}
        logs.put_metric_filter(**changed, filterName="g")
    logs.delete_metric_filter(logGroupName=group, filterName="f")
    with refused("ResourceNotFoundException", "The specified metric filter does not exist."):
        logs.delete_metric_filter(logGroupName=group, filterName="f")


def test_a_pattern_is_tried_on_messages(logs: Any) -> None:
    found = logs.test_metric_filter(filterPattern="ERROR", logEventMessages=["an ERROR", "fine", "ERROR too"])
    assert [match["eventNumber"] for match in found["matches"]] == [1, 3]


# What is stored


def test_groups_streams_events_and_filters_are_there_after_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    at = now_ms()
    with served(folder) as url:
        logs = client_of(url, "logs")
        logs.create_log_group(logGroupName="g", tags={"a": "b"})
        logs.put_retention_policy(logGroupName="g", retentionInDays=7)
        logs.create_log_stream(logGroupName="g", logStreamName="s")
        put(logs, "g", (at, "kept"))
        logs.put_subscription_filter(logGroupName="g", filterName="f", filterPattern="x", destinationArn=KNOWN)
    with served(folder) as url:
        logs = client_of(url, "logs")
        [group] = logs.describe_log_groups()["logGroups"]
        assert (group["logGroupName"], group["retentionInDays"], group["storedBytes"]) == ("g", 7, 30)
        assert logs.list_tags_log_group(logGroupName="g")["tags"] == {"a": "b"}
        assert messages(logs.filter_log_events(logGroupName="g")) == ["kept"]
        assert len(logs.describe_subscription_filters(logGroupName="g")["subscriptionFilters"]) == 1
