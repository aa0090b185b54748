"""Functions, versions and aliases: what AWS documents about operations that succeed."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from botocore.exceptions import ClientError

from .conftest import CODE, HANDLER, OTHER_CODE, ROLE, RUNTIME, Lambda, zipped

ARN = "arn:aws:lambda:us-east-1:000000000000:function:"
SHA = base64.b64encode(hashlib.sha256(CODE).digest()).decode()


def code_of(error: pytest.ExceptionInfo[ClientError]) -> str:
    return str(error.value.response["Error"]["Code"])


# Source: API_CreateFunction


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("Version", "$LATEST"),
        ("Timeout", 3),
        ("MemorySize", 128),
        ("Description", ""),
        ("PackageType", "Zip"),
        ("Architectures", ["x86_64"]),
        ("EphemeralStorage", {"Size": 512}),
        ("TracingConfig", {"Mode": "PassThrough"}),
        ("SnapStart", {"ApplyOn": "None", "OptimizationStatus": "Off"}),
        ("CodeSha256", SHA),
        ("CodeSize", len(CODE)),
        ("State", "Active"),
        ("LastUpdateStatus", "Successful"),
        ("Role", ROLE),
        ("Handler", "app.handler"),
        ("Runtime", RUNTIME),
        ("FunctionArn", f"{ARN}shared"),
        ("Environment", {"Variables": {"COLOUR": "red"}}),
    ],
)
def test_a_function_has_the_defaults_of_aws(aws: Lambda, shared: str, field: str, value: Any) -> None:
    assert aws.client.get_function_configuration(FunctionName=shared)[field] == value


def test_a_new_function_is_pending_until_it_can_be_invoked(aws: Lambda) -> None:
    name = aws.name()
    made = aws.client.create_function(
        FunctionName=name, Runtime=RUNTIME, Role=ROLE, Handler="app.handler", Code={"ZipFile": CODE}
    )
    assert made["ResponseMetadata"]["HTTPStatusCode"] == 201
    assert (made["State"], made["StateReasonCode"]) == ("Pending", "Creating")
    aws.client.get_waiter("function_active").wait(FunctionName=name, WaiterConfig={"Delay": 1})
    assert aws.invoke(name, {"n": 1})["event"] == {"n": 1}


def test_an_invocation_waits_for_a_function_that_is_being_created(aws: Lambda) -> None:
    name = aws.name()
    aws.client.create_function(
        FunctionName=name, Runtime=RUNTIME, Role=ROLE, Handler="app.handler", Code={"ZipFile": CODE}
    )
    assert aws.invoke(name)["version"] == "$LATEST"


def test_publish_at_creation_gives_version_1(aws: Lambda) -> None:
    name = aws.name()
    made = aws.client.create_function(
        FunctionName=name, Runtime=RUNTIME, Role=ROLE, Handler="app.handler", Code={"ZipFile": CODE}, Publish=True
    )
    assert (made["Version"], made["FunctionArn"]) == ("1", f"{ARN}{name}"), "observed on AWS"
    assert aws.invoke(name, Qualifier="1")["version"] == "1"


def test_what_is_given_is_shown(aws: Lambda) -> None:
    given = {
        "Description": "classifies",
        "Timeout": 900,
        "MemorySize": 10_240,
        "TracingConfig": {"Mode": "Active"},
        "EphemeralStorage": {"Size": 10_240},
        "Architectures": ["arm64"],
        "KMSKeyArn": "arn:aws:kms:us-east-1:000000000000:key/1",
        "DeadLetterConfig": {"TargetArn": "arn:aws:sqs:us-east-1:000000000000:dead"},
        "LoggingConfig": {"LogFormat": "JSON", "LogGroup": "/mine"},
    }
    shown = aws.client.get_function_configuration(FunctionName=aws.create(**given))
    expected = {
        **given,
        "LoggingConfig": {**given["LoggingConfig"], "ApplicationLogLevel": "INFO", "SystemLogLevel": "INFO"},
    }  # type: ignore[dict-item]
    assert {field: shown[field] for field in given} == expected


def test_code_may_lie_in_a_bucket(aws: Lambda) -> None:
    aws.make_client("s3", s3={"addressing_style": "path"}).put_object(Bucket="code", Key="apps/a b.zip", Body=CODE)
    name = aws.create(Code={"S3Bucket": "code", "S3Key": "apps/a b.zip"})
    assert aws.client.get_function_configuration(FunctionName=name)["CodeSha256"] == SHA


def test_a_function_whose_init_fails_is_active_and_its_callers_are_told(aws: Lambda) -> None:
    name = aws.create(Code={"ZipFile": zipped(app__py="raise RuntimeError('no model')")})
    answer = aws.client.invoke(FunctionName=name)
    assert answer["FunctionError"] == "Unhandled"
    assert json.loads(answer["Payload"].read())["errorMessage"] == "no model"


@pytest.mark.parametrize(
    "given", ["{name}", "000000000000:function:{name}", f"{ARN}{{name}}", "function:{name}", "{name}:$LATEST"]
)
def test_a_function_goes_by_name_partial_and_full_arn(aws: Lambda, shared: str, given: str) -> None:
    answer = aws.client.get_function(FunctionName=given.format(name=shared))
    assert answer["Configuration"]["FunctionName"] == shared
    assert aws.client.invoke(FunctionName=given.format(name=shared))["ExecutedVersion"] == "$LATEST"


# Source: API_GetFunction


def test_the_code_can_be_fetched_for_a_while_without_a_key(aws: Lambda, shared: str) -> None:
    answer = aws.client.get_function(FunctionName=shared)
    location = answer["Code"]["Location"]
    with urllib.request.urlopen(location, timeout=30) as fetched:
        assert fetched.read() == CODE
    assert answer["Code"]["RepositoryType"] == "S3"
    assert answer["Tags"] == {"team": "vision"}
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(re.sub(r"Signature=.", "Signature=x", location), timeout=30)
    assert refused.value.code == 403
    refused.value.close()


def test_a_version_is_shown_with_its_own_arn_and_an_alias_with_its(aws: Lambda, shared: str) -> None:
    for qualifier in ("1", "live"):
        shown = aws.client.get_function_configuration(FunctionName=shared, Qualifier=qualifier)
        assert (shown["FunctionArn"], shown["Version"]) == (f"{ARN}{shared}:{qualifier}", "1")


# Source: API_UpdateFunctionCode, API_UpdateFunctionConfiguration


def test_new_code_serves_once_the_update_is_done(aws: Lambda) -> None:
    name = aws.create()
    before = aws.client.get_function_configuration(FunctionName=name)
    changed = aws.client.update_function_code(
        FunctionName=name, ZipFile=zipped(app__py="def handler(event, context):\n    return 'new'\n")
    )
    assert changed["LastUpdateStatus"] == "InProgress"
    assert changed["RevisionId"] != before["RevisionId"]
    assert aws.updated(name)["LastUpdateStatus"] == "Successful"
    assert aws.invoke(name) == "new"


def test_new_code_whose_init_fails_is_what_callers_meet(aws: Lambda) -> None:
    name = aws.create()
    assert aws.invoke(name)["version"] == "$LATEST"
    aws.client.update_function_code(FunctionName=name, ZipFile=zipped(app__py="raise RuntimeError('no model')"))
    assert aws.updated(name)["LastUpdateStatus"] == "Successful"
    answer = aws.client.invoke(FunctionName=name)
    assert (answer["FunctionError"], json.loads(answer["Payload"].read())["errorMessage"]) == ("Unhandled", "no model")
    aws.client.update_function_code(FunctionName=name, ZipFile=CODE)
    aws.updated(name)
    assert aws.invoke(name)["version"] == "$LATEST"


def test_an_update_during_an_update_is_a_conflict(aws: Lambda) -> None:
    gate = aws.running.project.root / "gate-of-init"
    slow = zipped(app__py=f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\n" + HANDLER)
    # With SnapStart, an update runs init, which waits here.
    name = aws.create(Timeout=30, SnapStart={"ApplyOn": "PublishedVersions"})
    aws.client.update_function_code(FunctionName=name, ZipFile=slow)
    refused: list[str] = []
    for change in (
        lambda: aws.client.update_function_configuration(FunctionName=name, Timeout=9),
        lambda: aws.client.update_function_code(FunctionName=name, ZipFile=CODE),
        lambda: aws.client.publish_version(FunctionName=name),
    ):
        with pytest.raises(ClientError) as error:
            change()
        refused.append(code_of(error))
    assert refused == ["ResourceConflictException"] * 3
    gate.touch()
    aws.updated(name)
    assert aws.update(name, Timeout=9)["Timeout"] == 9


def test_a_dry_run_changes_nothing(aws: Lambda) -> None:
    name = aws.create()
    shown = aws.client.update_function_code(FunctionName=name, ZipFile=OTHER_CODE, DryRun=True)
    assert shown["CodeSha256"] != SHA
    assert aws.client.get_function_configuration(FunctionName=name)["CodeSha256"] == SHA


def test_variables_take_effect_and_others_stay_as_they_were(aws: Lambda) -> None:
    name = aws.create(Environment={"Variables": {"COLOUR": "red"}}, MemorySize=256)
    shown = aws.update(name, Environment={"Variables": {"COLOUR": "blue"}})
    assert shown["MemorySize"] == 256
    assert aws.invoke(name)["variable"] == "blue"
    assert aws.update(name, Environment={"Variables": {}})["Environment"] == {"Variables": {}}, "observed on AWS"
    assert aws.invoke(name)["variable"] is None


def test_the_right_revision_is_taken_and_only_once(aws: Lambda) -> None:
    name = aws.create()
    revision = aws.client.get_function_configuration(FunctionName=name)["RevisionId"]
    aws.update(name, Timeout=4, RevisionId=revision)
    with pytest.raises(ClientError) as error:
        aws.update(name, Timeout=5, RevisionId=revision)
    assert code_of(error) == "PreconditionFailedException"


# Source: API_PublishVersion, API_ListVersionsByFunction


def test_publishing_twice_without_a_change_gives_the_same_version(aws: Lambda) -> None:
    name = aws.create()
    assert [aws.publish(name), aws.publish(name)] == ["1", "1"]
    aws.update(name, Timeout=4)
    assert aws.publish(name) == "2"
    aws.update(name, Description="other words")
    assert [aws.publish(name), aws.publish(name)] == ["3", "3"]
    assert aws.publish(name, Description="its own") == "3", "a description in the request alone makes no version"


def test_a_version_stays_as_it_was_published(aws: Lambda) -> None:
    name = aws.create(Environment={"Variables": {"COLOUR": "red"}})
    aws.publish(name, Description="the red one")
    aws.update(name, Environment={"Variables": {"COLOUR": "blue"}})
    aws.client.update_function_code(FunctionName=name, ZipFile=zipped(app__py="def handler(e, c):\n    return 'new'\n"))
    aws.updated(name)
    assert aws.invoke(name, Qualifier="1")["variable"] == "red"
    assert aws.client.get_function_configuration(FunctionName=name, Qualifier="1")["Description"] == "the red one"


def test_versions_are_listed_from_latest_on_in_pages(aws: Lambda) -> None:
    name = aws.create()
    for timeout in range(4, 16):
        aws.publish(name)
        aws.update(name, Timeout=timeout)
    pages = aws.client.get_paginator("list_versions_by_function").paginate(
        FunctionName=name, PaginationConfig={"PageSize": 5}
    )
    listed = [version["Version"] for page in pages for version in page["Versions"]]
    assert listed == ["$LATEST", *map(str, range(1, 13))]


def test_numbers_of_deleted_versions_are_not_given_again(aws: Lambda) -> None:
    name = aws.create()
    aws.publish(name)
    aws.client.delete_function(FunctionName=name, Qualifier="1")
    with pytest.raises(ClientError) as error:
        aws.invoke(name, Qualifier="1")
    assert code_of(error) == "ResourceNotFoundException"
    assert aws.publish(name) == "2"


def test_the_checksum_guards_a_publication(aws: Lambda) -> None:
    name = aws.create()
    assert aws.publish(name, CodeSha256=SHA) == "1"


# Source: developer guide, "Improving startup performance with Lambda SnapStart"


def test_snap_start_means_a_snapshot_of_the_version(aws: Lambda) -> None:
    name = aws.create(SnapStart={"ApplyOn": "PublishedVersions"})
    number = aws.publish(name)
    shown = aws.client.get_function_configuration(FunctionName=name, Qualifier=number)
    assert shown["SnapStart"] == {"ApplyOn": "PublishedVersions", "OptimizationStatus": "On"}
    assert aws.invoke(name, Qualifier=number)["initialization"] == "snap-start"
    assert aws.running.function(name)["versions"][number]["start"] == "thaw"


def test_without_snap_start_each_environment_runs_init(aws: Lambda) -> None:
    name = aws.create()
    number = aws.publish(name)
    assert aws.invoke(name, Qualifier=number)["initialization"] == "on-demand"
    assert aws.running.function(name)["versions"][number]["start"] == "cold"


def test_a_version_with_snap_start_whose_init_fails_has_failed(aws: Lambda) -> None:
    broken = zipped(app__py="raise RuntimeError('no model')")
    name = aws.create(Code={"ZipFile": broken}, SnapStart={"ApplyOn": "PublishedVersions"})
    aws.client.publish_version(FunctionName=name)

    def state() -> dict[str, Any]:
        return dict(aws.client.get_function_configuration(FunctionName=name, Qualifier="1"))

    from tests.integration.conftest import eventually

    eventually(lambda: state()["State"] == "Failed", what="the failure")
    assert "no model" in state()["StateReason"]


# Source: API_CreateAlias, developer guide "Implement Lambda canary deployments using a weighted alias"


def test_an_alias_stands_for_a_version_and_can_be_moved(aws: Lambda) -> None:
    name = aws.create()
    aws.publish(name)
    aws.update(name, Timeout=4)
    aws.publish(name)
    made = aws.client.create_alias(FunctionName=name, Name="prod", FunctionVersion="1", Description="d")
    assert (made["AliasArn"], made["FunctionVersion"], made["Description"]) == (f"{ARN}{name}:prod", "1", "d")
    answer = aws.invoke(name, Qualifier="prod")
    assert (answer["version"], answer["arn"]) == ("1", f"{ARN}{name}:prod")
    moved = aws.client.update_alias(FunctionName=name, Name="prod", FunctionVersion="2")
    assert (moved["FunctionVersion"], moved["Description"]) == ("2", "d")
    assert moved["RevisionId"] != made["RevisionId"]
    assert aws.invoke(f"{name}:prod")["version"] == "2"
    assert aws.client.get_alias(FunctionName=name, Name="prod")["FunctionVersion"] == "2"
    aws.client.delete_alias(FunctionName=name, Name="prod")
    aws.client.delete_alias(FunctionName=name, Name="prod")
    with pytest.raises(ClientError) as error:
        aws.invoke(name, Qualifier="prod")
    assert code_of(error) == "ResourceNotFoundException"


def test_an_alias_of_two_versions_shares_invocations_by_weight(aws: Lambda) -> None:
    name = aws.create()
    aws.publish(name)
    aws.update(name, Timeout=4)
    aws.publish(name)
    weights = {"AdditionalVersionWeights": {"2": 0.5}}
    made = aws.client.create_alias(FunctionName=name, Name="canary", FunctionVersion="1", RoutingConfig=weights)
    assert made["RoutingConfig"] == weights
    with ThreadPoolExecutor(4) as threads:
        versions = list(threads.map(lambda _: aws.invoke(name, Qualifier="canary")["version"], range(120)))
    # This is like 120 coin tosses: fewer than 25 of one side happen once in 10^10 runs.
    assert min(versions.count("1"), versions.count("2")) >= 25
    whole = aws.client.update_alias(FunctionName=name, Name="canary", RoutingConfig={"AdditionalVersionWeights": {}})
    assert "RoutingConfig" not in whole
    assert {aws.invoke(name, Qualifier="canary")["version"] for _ in range(8)} == {"1"}


def test_aliases_are_listed_by_version_and_in_pages(aws: Lambda) -> None:
    name = aws.create()
    aws.publish(name)
    for alias in ("a", "b", "c"):
        aws.client.create_alias(FunctionName=name, Name=alias, FunctionVersion="1" if alias < "c" else "$LATEST")
    first = aws.client.list_aliases(FunctionName=name, MaxItems=2)
    assert [alias["Name"] for alias in first["Aliases"]] == ["a", "b"]
    rest = aws.client.list_aliases(FunctionName=name, Marker=first["NextMarker"])
    assert ([alias["Name"] for alias in rest["Aliases"]], "NextMarker" in rest) == (["c"], False)
    only = aws.client.list_aliases(FunctionName=name, FunctionVersion="1")["Aliases"]
    assert [alias["Name"] for alias in only] == ["a", "b"]


# Source: API_DeleteFunction, API_ListFunctions


def test_a_deleted_function_is_gone_with_all_its_versions(aws: Lambda) -> None:
    name = aws.create()
    aws.publish(name)
    answer = aws.client.delete_function(FunctionName=name)
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 204
    for qualifier in ({}, {"Qualifier": "1"}):
        with pytest.raises(ClientError) as error:
            aws.client.invoke(FunctionName=name, **qualifier)
        assert code_of(error) == "ResourceNotFoundException"
    aws.create(name)
    assert aws.publish(name) == "1"


def test_functions_are_listed_in_pages_and_with_all_versions(aws: Lambda, shared: str) -> None:
    listed = [
        one["FunctionName"]
        for page in aws.client.get_paginator("list_functions").paginate(PaginationConfig={"PageSize": 2})
        for one in page["Functions"]
    ]
    assert {shared, "configured"} <= set(listed)
    assert len(listed) == len(set(listed))
    everything = [
        one["FunctionArn"]
        for page in aws.client.get_paginator("list_functions").paginate(FunctionVersion="ALL")
        for one in page["Functions"]
    ]
    assert {f"{ARN}{shared}:$LATEST", f"{ARN}{shared}:1"} <= set(everything)


def test_a_function_of_the_configuration_can_be_published_and_aliased(aws: Lambda) -> None:
    shown = aws.client.get_function(FunctionName="configured")["Configuration"]
    assert (shown["State"], shown["Handler"]) == ("Active", "own.handler")
    number = aws.publish("configured")
    aws.client.create_alias(FunctionName="configured", Name="live", FunctionVersion=number)
    assert aws.invoke("configured", Qualifier="live") == "configured"


def test_many_threads_that_create_and_delete_leave_no_half_function(aws: Lambda) -> None:
    names = [aws.name() for _ in range(3)]
    barrier = threading.Barrier(6)

    def work(index: int) -> list[str]:
        barrier.wait()
        seen = []
        for name in names:
            try:
                aws.client.create_function(
                    FunctionName=name, Runtime=RUNTIME, Role=ROLE, Handler="app.handler", Code={"ZipFile": CODE}
                )
                seen.append("created")
            except ClientError as error:
                seen.append(error.response["Error"]["Code"])
        return seen

    with ThreadPoolExecutor(6) as threads:
        outcomes = list(threads.map(work, range(6)))
    for column in zip(*outcomes, strict=True):
        assert sorted(column) == ["ResourceConflictException"] * 5 + ["created"]
