"""The CloudWatch metrics API: what thawd measured, what functions report, in all protocols of AWS's clients."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from botocore.parsers import create_parser
from botocore.serialize import create_serializer

from tests.clients import client_of
from tests.integration.conftest import DEADLINE_S, Project, Running, eventually

CODE = """
import json
from aws_lambda_powertools import Metrics
from aws_lambda_powertools.metrics import MetricUnit

metrics = Metrics(namespace="shop", service="pay")

def handler(event, context):
    if event == "fail":
        raise ValueError("as asked")
    return event

@metrics.log_metrics
def orders(event, context):
    metrics.add_metric(name="orders", unit=MetricUnit.Count, value=event)
    return event

def talk(event, context):
    print(json.dumps(event))
"""
CONFIG = """
max_environments = 8
[functions.app]
handler = "app.handler"
[functions.counter]
handler = "app.orders"
[functions.talker]
handler = "app.talk"
[functions.closed]
handler = "app.handler"
reserved_concurrency = 0
"""
APP = [{"Name": "FunctionName", "Value": "app"}]


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with tempfile.TemporaryDirectory() as folder:
        project = Project(Path(folder))
        project.code(CODE)
        project.config(CONFIG)
        with project.up() as server:
            for number in range(4):
                server.invoke("app", number)
            server.invoke("app", "fail")
            server.invoke("app", 1, Qualifier="$LATEST")
            server.invoke("counter", 3)
            server.invoke("counter", 4)
            with pytest.raises(ClientError):
                server.invoke("closed", 1)
            yield server


@pytest.fixture(scope="module")
def cloudwatch(running: Running) -> Any:
    return client_of(running.url, "cloudwatch", parameter_validation=False)


def lately() -> dict[str, datetime]:
    now = datetime.now(UTC)
    return {"StartTime": now - timedelta(minutes=30), "EndTime": now + timedelta(minutes=1)}


def point(cloudwatch: Any, metric: str, statistic: str, *, dimensions: Any = APP, namespace: str = "AWS/Lambda") -> Any:
    """The value of a statistic over half an hour; None if there is none."""
    answer = cloudwatch.get_metric_statistics(
        Namespace=namespace, MetricName=metric, Dimensions=dimensions, Period=3600, Statistics=[statistic], **lately()
    )
    found = answer["Datapoints"]
    return found[0][statistic] if found else None


# GetMetricStatistics


@pytest.mark.parametrize(
    ("metric", "statistic", "value"),
    [
        ("Invocations", "Sum", 6.0),
        ("Errors", "Sum", 1.0),
        ("Errors", "SampleCount", 6.0),
        ("Errors", "Average", pytest.approx(1 / 6)),
        ("Duration", "SampleCount", 6.0),
        ("Throttles", "Sum", 0.0),
        ("ConcurrentExecutions", "Maximum", 1.0),
    ],
)
def test_a_functions_metrics_are_what_happened(cloudwatch: Any, metric: str, statistic: str, value: Any) -> None:
    assert point(cloudwatch, metric, statistic) == value


def test_metrics_are_told_apart_by_resource_and_added_for_all_functions(cloudwatch: Any) -> None:
    def resource(name: str) -> Any:
        return point(cloudwatch, "Invocations", "Sum", dimensions=[*APP, {"Name": "Resource", "Value": name}])

    assert (resource("app"), resource("app:$LATEST"), resource("app:7")) == (5.0, 1.0, None)
    assert point(cloudwatch, "Invocations", "Sum", dimensions=[]) == 8.0
    assert point(cloudwatch, "Throttles", "Sum", dimensions=[{"Name": "FunctionName", "Value": "closed"}]) == 1.0
    assert point(cloudwatch, "Invocations", "Sum", dimensions=[{"Name": "FunctionName", "Value": "absent"}]) is None
    assert point(cloudwatch, "Invocations", "Sum", dimensions=[{"Name": "Other", "Value": "app"}]) is None


def test_durations_have_percentiles_and_a_unit(cloudwatch: Any) -> None:
    answer = cloudwatch.get_metric_statistics(
        Namespace="AWS/Lambda",
        MetricName="Duration",
        Dimensions=APP,
        Period=3600,
        Statistics=["Minimum", "Maximum"],
        ExtendedStatistics=["p50", "p100"],
        **lately(),
    )
    [found] = answer["Datapoints"]
    extended = found["ExtendedStatistics"]
    assert found["Unit"] == "Milliseconds"
    assert 0 < found["Minimum"] <= extended["p50"] <= extended["p100"] == pytest.approx(found["Maximum"], rel=0.02)
    assert answer["Label"] == "Duration"


# GetMetricData


def test_expressions_are_computed_from_metrics(cloudwatch: Any) -> None:
    def query(name: str, metric: str, **more: Any) -> dict[str, Any]:
        described = {"Namespace": "AWS/Lambda", "MetricName": metric, "Dimensions": APP}
        return {"Id": name, "MetricStat": {"Metric": described, "Period": 3600, "Stat": "Sum"}, **more}

    answer = cloudwatch.get_metric_data(
        MetricDataQueries=[
            query("e", "Errors", ReturnData=False),
            query("i", "Invocations", Label="calls"),
            {"Id": "rate", "Expression": "100 * e / i"},
            {"Id": "none", "Expression": "FILL(METRICS('x'), 0)"},
        ],
        **lately(),
    )
    calls, rate = answer["MetricDataResults"]
    assert (calls["Id"], calls["Label"], calls["Values"], calls["StatusCode"]) == ("i", "calls", [6.0], "Complete")
    assert (rate["Label"], rate["Values"]) == ("rate", [pytest.approx(100 / 6)])
    assert calls["Timestamps"][0].minute == 0


def test_data_points_come_page_by_page_in_the_order_asked_for(cloudwatch: Any) -> None:
    begin = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=10)
    cloudwatch.put_metric_data(
        Namespace="paged",
        MetricData=[
            {"MetricName": "m", "Value": float(minute), "Timestamp": begin + timedelta(minutes=minute)}
            for minute in range(5)
        ],
    )
    stat = {"Metric": {"Namespace": "paged", "MetricName": "m"}, "Period": 60, "Stat": "Maximum"}
    for order, values in (("TimestampDescending", [4, 3, 2, 1, 0]), ("TimestampAscending", [0, 1, 2, 3, 4])):
        pages = cloudwatch.get_paginator("get_metric_data").paginate(
            MetricDataQueries=[{"Id": "m", "MetricStat": stat}], ScanBy=order, MaxDatapoints=2, **lately()
        )
        found = [page["MetricDataResults"][0] for page in pages]
        assert [value for result in found for value in result["Values"]] == values
        assert [result["StatusCode"] for result in found] == ["PartialData", "PartialData", "Complete"]


# ListMetrics


def test_metrics_are_listed_by_namespace_name_and_dimensions(cloudwatch: Any) -> None:
    def listed(**asked: Any) -> set[tuple[str, ...]]:
        pages = cloudwatch.get_paginator("list_metrics").paginate(**asked)
        return {
            (metric["MetricName"], *(f"{each['Name']}={each['Value']}" for each in metric["Dimensions"]))
            for page in pages
            for metric in page["Metrics"]
        }

    assert listed(Namespace="shop") == {("orders", "service=pay")}
    found = listed(Namespace="AWS/Lambda", MetricName="Errors", Dimensions=[{"Name": "FunctionName", "Value": "app"}])
    assert found == {
        ("Errors", "FunctionName=app"),
        ("Errors", "FunctionName=app", "Resource=app"),
        ("Errors", "FunctionName=app", "Resource=app:$LATEST"),
    }
    assert ("Invocations",) in listed(Namespace="AWS/Lambda")


# PutMetricData, embedded metrics


def test_what_powertools_writes_into_the_log_is_a_metric(cloudwatch: Any) -> None:
    dimensions = [{"Name": "service", "Value": "pay"}]
    assert point(cloudwatch, "orders", "Sum", dimensions=dimensions, namespace="shop") == 7.0
    assert point(cloudwatch, "orders", "SampleCount", dimensions=dimensions, namespace="shop") == 2.0


def test_values_counts_and_statistics_can_be_put_also_compressed(cloudwatch: Any) -> None:
    many = [{"MetricName": "a", "Values": [1.0, 2.0], "Counts": [3.0, 1.0], "Unit": "Seconds"} for _ in range(200)]
    cloudwatch.put_metric_data(Namespace="put", MetricData=many)  # botocore compresses this request
    statistics = {"SampleCount": 4, "Sum": 10.0, "Minimum": 1.0, "Maximum": 4.0}
    cloudwatch.put_metric_data(Namespace="put", MetricData=[{"MetricName": "b", "StatisticValues": statistics}])
    assert point(cloudwatch, "a", "Sum", dimensions=[], namespace="put") == 1000.0
    assert point(cloudwatch, "b", "Average", dimensions=[], namespace="put") == 2.5


def test_metric_filters_make_metrics_of_what_functions_print_and_clients_put(running: Running, cloudwatch: Any) -> None:
    logs = client_of(running.url, "logs")
    group = "/aws/lambda/talker"
    dimensions = {"who": "$.who"}
    for name, value, more in (("took", "$.took", {"dimensions": dimensions}), ("lines", "1", {"defaultValue": 0.0})):
        transformation = {"metricName": name, "metricNamespace": "made", "metricValue": value, **more}
        if name == "took":
            running.invoke("talker", {"who": "before", "took": 1})
        logs.put_metric_filter(
            logGroupName=group, filterName=name, filterPattern="{ $.who = * }", metricTransformations=[transformation]
        )
    running.invoke("talker", {"who": "a", "took": 2.5})
    logs.create_log_stream(logGroupName=group, logStreamName="s")
    event = {"timestamp": int(time.time() * 1000), "message": '{"who": "a", "took": 4}'}
    logs.put_log_events(logGroupName=group, logStreamName="s", logEvents=[event])
    who = [{"Name": "who", "Value": "a"}]
    eventually(lambda: point(cloudwatch, "took", "Sum", dimensions=who, namespace="made") == 6.5, what="the metric")
    assert point(cloudwatch, "lines", "Sum", dimensions=[], namespace="made") == 2.0
    assert point(cloudwatch, "lines", "SampleCount", dimensions=[], namespace="made") > 2.0


# Errors


def refused(code: str, words: str, call: Any, **asked: Any) -> None:
    with pytest.raises(ClientError) as caught:
        call(**asked)
    answer = caught.value.response
    assert (answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]) == (code, 400)
    assert words in answer["Error"]["Message"]


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"Period": 61}, "InvalidParameterValue", "Period"),
        ({"Period": 60, "StartTime": datetime(2026, 1, 1, tzinfo=UTC)}, "InvalidParameterCombination", "1,440"),
        ({"Statistics": ["Median"]}, "ValidationError", "SampleCount, Average, Sum, Minimum, Maximum"),
        ({"Statistics": []}, "ValidationError", "statistics"),
        ({"Statistics": None, "ExtendedStatistics": ["q5"]}, "InvalidParameterValue", "q5"),
        ({"Namespace": None}, "ValidationError", "Value null at 'namespace'"),
        ({"StartTime": datetime(2099, 1, 1, tzinfo=UTC)}, "InvalidParameterValue", "StartTime"),
    ],
)
def test_statistics_that_cannot_be_computed_are_refused(
    cloudwatch: Any, changes: dict[str, Any], code: str, words: str
) -> None:
    asked = {"Namespace": "n", "MetricName": "m", "Period": 60, "Statistics": ["Sum"], **lately(), **changes}
    given = {name: value for name, value in asked.items() if value is not None}
    refused(code, words, cloudwatch.get_metric_statistics, **given)


STAT = {"Metric": {"Namespace": "n", "MetricName": "m"}, "Period": 60, "Stat": "Sum"}


@pytest.mark.parametrize(
    ("queries", "words"),
    [
        ([{"Id": "M", "MetricStat": STAT}], "[a-z][a-zA-Z0-9_]*"),
        ([{"Id": "m"}], "mutually exclusive"),
        ([{"Id": "m", "MetricStat": STAT}, {"Id": "m", "MetricStat": STAT}], "unique"),
        ([{"Id": "m", "MetricStat": {**STAT, "Stat": "Middle"}}], "Middle"),
        ([{"Id": "e", "Expression": "m + 1"}], "unknown or circular ids: m"),
        ([{"Id": "e", "Expression": "1 +"}], "Error in expression 'e'"),
        ([{"Id": "e", "Expression": "f"}, {"Id": "f", "Expression": "e"}], "circular"),
        ([], "MetricDataQueries"),
    ],
)
def test_queries_that_make_no_sense_are_refused(cloudwatch: Any, queries: Any, words: str) -> None:
    refused("ValidationError", words, cloudwatch.get_metric_data, MetricDataQueries=queries, **lately())


@pytest.mark.parametrize(
    ("datum", "code", "words"),
    [
        ({}, "MissingParameter", "MetricData.member.1.Value is required"),
        ({"Value": 1.0, "Values": [1.0]}, "InvalidParameterCombination", "mutually exclusive"),
        ({"Values": [1.0], "Counts": [1.0, 2.0]}, "InvalidParameterValue", "same size"),
        ({"Value": 1.0, "Timestamp": datetime(2020, 1, 1, tzinfo=UTC)}, "InvalidParameterValue", "Timestamp"),
        ({"Value": 1.0, "Unit": "Miles"}, "ValidationError", "unit"),
    ],
)
def test_data_that_cannot_be_stored_is_refused(cloudwatch: Any, datum: dict[str, Any], code: str, words: str) -> None:
    refused(code, words, cloudwatch.put_metric_data, Namespace="n", MetricData=[{"MetricName": "m", **datum}])
    own = {"Namespace": "AWS/X", "MetricData": [{"MetricName": "m", "Value": 1.0}]}
    refused("InvalidParameterValue", "AWS/", cloudwatch.put_metric_data, **own)


def test_another_operation_is_refused(cloudwatch: Any) -> None:
    refused("InvalidAction", "DescribeAlarms", cloudwatch.describe_alarms)


# Protocols


def asked_by(running: Running, protocol: str, operation: str, given: dict[str, Any]) -> dict[str, Any]:
    """Send a request in a protocol, and return what botocore reads in the answer."""
    model = client_of(running.url, "cloudwatch").meta.service_model.operation_model(operation)
    request = create_serializer(protocol, include_validation=False).serialize_to_request(given, model)
    body = request["body"]
    if isinstance(body, dict):
        body = "&".join(f"{name}={urllib.parse.quote(str(value))}" for name, value in body.items()).encode()
    claim = "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/monitoring/aws4_request, SignedHeaders=host, Signature=0"
    url = running.url + request["url_path"]
    sent = urllib.request.Request(url, data=body, headers={**request["headers"], "Authorization": claim})
    try:
        with urllib.request.urlopen(sent, timeout=DEADLINE_S) as answer:
            status, headers, content = answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        with error:
            status, headers, content = error.code, dict(error.headers), error.read()
    raw = {"status_code": status, "headers": {name.lower(): value for name, value in headers.items()}, "body": content}
    return dict(create_parser(protocol).parse(raw, model.output_shape))


@pytest.mark.parametrize("protocol", ["smithy-rpc-v2-cbor", "json", "query"])
def test_each_protocol_gets_the_same_answers(running: Running, protocol: str) -> None:
    namespace = f"by-{protocol}"
    dimensions = [{"Name": "a", "Value": "b & <c>"}]
    datum = {"MetricName": "m", "Value": 2.5, "Unit": "Bytes", "Dimensions": dimensions}
    asked_by(running, protocol, "PutMetricData", {"Namespace": namespace, "MetricData": [datum]})
    described = {"Namespace": namespace, "MetricName": "m", "Dimensions": dimensions}
    assert asked_by(running, protocol, "ListMetrics", {"Namespace": namespace})["Metrics"] == [described]
    [found] = asked_by(
        running, protocol, "GetMetricStatistics", {**described, "Period": 3600, "Statistics": ["Sum"], **lately()}
    )["Datapoints"]
    assert (found["Sum"], found["Unit"]) == (2.5, "Bytes")
    assert abs(found["Timestamp"].timestamp() - time.time()) < 7200
    query = {"Id": "q", "MetricStat": {"Metric": described, "Period": 3600, "Stat": "Sum"}}
    answer = asked_by(running, protocol, "GetMetricData", {"MetricDataQueries": [query], **lately()})
    assert answer["MetricDataResults"][0]["Values"] == [2.5]
    assert answer["MetricDataResults"][0]["Timestamps"][0].timestamp() % 3600 == 0
    failed = asked_by(running, protocol, "GetMetricStatistics", {**described, "Period": 61, **lately()})
    assert failed["Error"]["Code"] in ("MissingParameter", "MissingRequiredParameterException")
    assert failed["Error"]["Message"]


def test_the_aws_cli_shows_what_was_measured(running: Running) -> None:
    command = [
        *(sys.executable, "-m", "awscli", "cloudwatch", "get-metric-statistics", "--namespace", "AWS/Lambda"),
        *("--metric-name", "Invocations", "--dimensions", "Name=FunctionName,Value=app", "--period", "3600"),
        *("--statistics", "Sum", "--start-time", lately()["StartTime"].isoformat()),
        *("--end-time", lately()["EndTime"].isoformat(), "--output", "json"),
        *("--endpoint-url", running.url, "--region", "us-east-1"),
    ]
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=DEADLINE_S, check=True, env={**os.environ, **keys}
    )
    [found] = json.loads(done.stdout)["Datapoints"]
    assert (found["Sum"], found["Unit"]) == (6.0, "Count")


# What is stored


def test_metrics_are_there_after_a_restart_and_add_up(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.code("def handler(event, context):\n    return event\n")
    project.config('[functions.app]\nhandler = "app.handler"\n')
    for count in (1, 2):
        with project.up() as server:
            server.invoke("app", 1)
            server.client().invoke(FunctionName="app", InvocationType="Event", Payload=b"1")
            cloudwatch = client_of(server.url, "cloudwatch")
            eventually(lambda c=cloudwatch, n=count: point(c, "Invocations", "Sum") == 2.0 * n, what="both invocations")
            assert point(cloudwatch, "AsyncEventsReceived", "Sum") == float(count)
