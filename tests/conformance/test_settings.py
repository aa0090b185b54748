"""Concurrency, asynchronous invocation, permissions, tags, layers: what AWS documents about operations that succeed."""

from __future__ import annotations

import io
import json
import stat
import threading
import urllib.request
import zipfile
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.integration.conftest import eventually

from .conftest import CODE, HANDLER, Lambda, zipped

ARN = "arn:aws:lambda:us-east-1:000000000000:function:"
HELD = zipped(
    app__py="""
import os, time

def handler(event, context):
    while "gate" in event and not os.path.exists(event["gate"]):
        time.sleep(0.01)
    return 1
"""
)


def code_of(error: pytest.ExceptionInfo[ClientError]) -> str:
    return str(error.value.response["Error"]["Code"])


# Source: API_PutFunctionConcurrency, developer guide "Configuring reserved concurrency"


def test_reserved_concurrency_zero_throttles_everything(aws: Lambda) -> None:
    name = aws.create()
    aws.publish(name)
    made = aws.client.put_function_concurrency(FunctionName=name, ReservedConcurrentExecutions=0)
    assert made["ReservedConcurrentExecutions"] == 0
    with pytest.raises(ClientError) as error:
        aws.invoke(name)
    assert (code_of(error), error.value.response["ResponseMetadata"]["HTTPStatusCode"]) == (
        "TooManyRequestsException",
        429,
    )
    with pytest.raises(ClientError, match="TooManyRequests"):
        aws.invoke(name, Qualifier="1")
    assert error.value.response["Reason"] == "ReservedFunctionConcurrentInvocationLimitExceeded"
    assert aws.client.get_function(FunctionName=name)["Concurrency"] == {"ReservedConcurrentExecutions": 0}
    aws.client.delete_function_concurrency(FunctionName=name)
    assert "ReservedConcurrentExecutions" not in aws.client.get_function_concurrency(FunctionName=name)
    assert aws.invoke(name)["version"] == "$LATEST"
    assert aws.invoke(name, Qualifier="1")["version"] == "1"


def test_reserved_concurrency_counts_all_versions_together(aws: Lambda) -> None:
    name = aws.create(Code={"ZipFile": HELD}, Timeout=30)
    aws.publish(name)
    aws.client.put_function_concurrency(FunctionName=name, ReservedConcurrentExecutions=1)
    gate = aws.running.project.root / "gate"
    try:
        running = threading.Thread(target=aws.invoke, args=(name, {"gate": str(gate)}))
        running.start()
        eventually(lambda: aws.running.function(name)["environments"]["busy"] == 1, what="the invocation")
        with pytest.raises(ClientError) as error:
            aws.invoke(name, Qualifier="1")
        assert code_of(error) == "TooManyRequestsException"
        gate.touch()
        running.join()
        assert aws.invoke(name, Qualifier="1") == 1
    finally:
        gate.touch()
        aws.client.delete_function_concurrency(FunctionName=name)


def test_reserved_concurrency_is_taken_from_the_accounts(aws: Lambda) -> None:
    name = aws.create()
    before = aws.client.get_account_settings()["AccountLimit"]
    aws.client.put_function_concurrency(FunctionName=name, ReservedConcurrentExecutions=2)
    after = aws.client.get_account_settings()["AccountLimit"]
    aws.client.delete_function_concurrency(FunctionName=name)
    assert before["ConcurrentExecutions"] == after["ConcurrentExecutions"] == 12
    assert before["UnreservedConcurrentExecutions"] - after["UnreservedConcurrentExecutions"] == 2


# Source: API_PutProvisionedConcurrencyConfig


def provisioned(aws: Lambda, name: str, qualifier: str) -> dict[str, Any]:
    return dict(aws.client.get_provisioned_concurrency_config(FunctionName=name, Qualifier=qualifier))


def test_provisioned_environments_are_initialised_before_they_are_needed(aws: Lambda) -> None:
    name = aws.create()
    aws.publish(name)
    made = aws.client.put_provisioned_concurrency_config(
        FunctionName=name, Qualifier="1", ProvisionedConcurrentExecutions=2
    )
    assert made["ResponseMetadata"]["HTTPStatusCode"] == 202
    assert (made["Status"], made["RequestedProvisionedConcurrentExecutions"]) == ("IN_PROGRESS", 2)
    eventually(lambda: provisioned(aws, name, "1")["Status"] == "READY", what="the environments")
    assert provisioned(aws, name, "1")["AvailableProvisionedConcurrentExecutions"] == 2
    assert aws.running.function(name)["versions"]["1"]["environments"]["idle"] == 2
    assert aws.invoke(name, Qualifier="1")["initialization"] == "provisioned-concurrency"
    (listed,) = aws.client.list_provisioned_concurrency_configs(FunctionName=name)["ProvisionedConcurrencyConfigs"]
    assert listed["FunctionArn"] == f"{ARN}{name}:1"
    aws.client.delete_provisioned_concurrency_config(FunctionName=name, Qualifier="1")
    with pytest.raises(ClientError) as error:
        provisioned(aws, name, "1")
    assert code_of(error) == "ProvisionedConcurrencyConfigNotFoundException"


def test_provisioned_concurrency_of_an_alias_moves_with_it(aws: Lambda) -> None:
    name = aws.create()
    aws.publish(name)
    aws.update(name, Timeout=4)
    aws.publish(name)
    aws.client.create_alias(FunctionName=name, Name="live", FunctionVersion="1")
    aws.client.put_provisioned_concurrency_config(
        FunctionName=name, Qualifier="live", ProvisionedConcurrentExecutions=1
    )
    eventually(lambda: provisioned(aws, name, "live")["Status"] == "READY", what="the environment")
    aws.client.update_alias(FunctionName=name, Name="live", FunctionVersion="2")
    eventually(
        lambda: aws.running.function(name)["versions"]["2"]["environments"]["idle"] == 1, what="the other environment"
    )
    assert aws.invoke(name, Qualifier="live")["initialization"] == "provisioned-concurrency"
    aws.client.delete_provisioned_concurrency_config(FunctionName=name, Qualifier="live")


def test_provisioned_environments_of_a_function_whose_init_fails_have_failed(aws: Lambda) -> None:
    name = aws.create(Code={"ZipFile": zipped(app__py="raise RuntimeError('no model')")})
    aws.client.publish_version(FunctionName=name)
    aws.client.put_provisioned_concurrency_config(FunctionName=name, Qualifier="1", ProvisionedConcurrentExecutions=1)
    eventually(lambda: provisioned(aws, name, "1")["Status"] == "FAILED", what="the failure")
    assert provisioned(aws, name, "1")["StatusReason"] == "FUNCTION_ERROR_INIT_FAILURE"
    aws.client.delete_provisioned_concurrency_config(FunctionName=name, Qualifier="1")


def test_a_function_whose_provisioned_init_fails_is_served_on_demand(aws: Lambda) -> None:
    code = (
        "import os\nkind = os.environ['AWS_LAMBDA_INITIALIZATION_TYPE']\n"
        "if kind == 'provisioned-concurrency':\n    raise RuntimeError('not here')\n"
        "def handler(event, context):\n    return kind\n"
    )
    name = aws.create(Code={"ZipFile": zipped(app__py=code)})
    aws.publish(name)
    aws.client.put_provisioned_concurrency_config(FunctionName=name, Qualifier="1", ProvisionedConcurrentExecutions=1)
    eventually(lambda: provisioned(aws, name, "1")["Status"] == "FAILED", what="the failure")
    assert aws.invoke(name, Qualifier="1") == "on-demand"


def test_reserved_concurrency_that_is_all_provisioned_leaves_none_for_the_latest_version(aws: Lambda) -> None:
    name = aws.create()
    aws.publish(name)
    aws.client.put_function_concurrency(FunctionName=name, ReservedConcurrentExecutions=1)
    aws.client.put_provisioned_concurrency_config(FunctionName=name, Qualifier="1", ProvisionedConcurrentExecutions=1)
    eventually(lambda: provisioned(aws, name, "1")["Status"] == "READY", what="the provisioned environment")
    assert aws.invoke(name, Qualifier="1")["initialization"] == "provisioned-concurrency"
    with pytest.raises(ClientError) as throttled:
        aws.client.invoke(FunctionName=name)
    response = throttled.value.response
    assert (response["Error"]["Code"], response["Reason"]) == (
        "TooManyRequestsException",
        "ReservedFunctionConcurrentInvocationLimitExceeded",
    )
    aws.client.delete_provisioned_concurrency_config(FunctionName=name, Qualifier="1")
    assert aws.invoke(name)["version"] == "$LATEST"


def test_the_size_of_all_code_follows_functions_versions_and_layers(aws: Lambda) -> None:
    def total() -> int:
        return int(aws.client.get_account_settings()["AccountUsage"]["TotalCodeSize"])

    before, size = total(), len(CODE)
    name = aws.create()
    assert total() == before + size
    aws.update(name, Description="no more code")
    assert total() == before + size
    aws.publish(name)
    assert total() == before + 2 * size
    for number in (1, 2):
        aws.client.publish_layer_version(LayerName=name, Content={"ZipFile": CODE})
        assert total() == before + (2 + number) * size
    aws.client.delete_layer_version(LayerName=name, VersionNumber=1)
    aws.client.delete_function(FunctionName=name)
    assert total() == before + size


# Source: API_PutFunctionEventInvokeConfig


def test_asynchronous_invocation_is_configured_by_qualifier(aws: Lambda) -> None:
    name = aws.create()
    aws.publish(name)
    table = "arn:aws:dynamodb:us-east-1:000000000000:table/results"
    made = aws.client.put_function_event_invoke_config(
        FunctionName=name,
        Qualifier="1",
        MaximumRetryAttempts=0,
        MaximumEventAgeInSeconds=60,
        DestinationConfig={"OnSuccess": {"Destination": table}},
    )
    assert made["FunctionArn"] == f"{ARN}{name}:1"
    changed = aws.client.update_function_event_invoke_config(FunctionName=name, Qualifier="1", MaximumRetryAttempts=1)
    assert (changed["MaximumRetryAttempts"], changed["MaximumEventAgeInSeconds"]) == (1, 60)
    replaced = aws.client.put_function_event_invoke_config(
        FunctionName=name, Qualifier="1", DestinationConfig={"OnSuccess": {"Destination": table}}
    )
    assert "MaximumRetryAttempts" not in replaced
    (listed,) = aws.client.list_function_event_invoke_configs(FunctionName=name)["FunctionEventInvokeConfigs"]
    assert listed["DestinationConfig"]["OnSuccess"] == {"Destination": table}

    def stored() -> int:
        with urllib.request.urlopen(f"{aws.running.url}/_thawd/tables/results", timeout=30) as answer:
            return int(json.load(answer)["count"])

    before = stored()
    accepted = aws.client.invoke(FunctionName=name, Qualifier="1", InvocationType="Event", Payload=b'{"n": 1}')
    assert accepted["StatusCode"] == 202
    eventually(lambda: stored() == before + 1, what="the result")
    aws.client.delete_function_event_invoke_config(FunctionName=name, Qualifier="1")


DESTINATIONS = {
    "queue": "arn:aws:sqs:eu-west-1:123456789012:done",
    "topic": "arn:aws:sns:us-east-1:000000000000:done",
    "bus": "arn:aws:events:us-east-1:000000000000:event-bus/default",
    "function": f"{ARN}configured",
    "alias": f"{ARN}shared:live",
    "table": "arn:aws:dynamodb:us-east-1:000000000000:table/results",
    "bucket": "arn:aws:s3:::code",
}


@pytest.mark.parametrize("kind", DESTINATIONS)
def test_destinations_of_every_kind_are_kept_as_they_were_given(aws: Lambda, shared: str, kind: str) -> None:
    name, arn = aws.create(), DESTINATIONS[kind]
    outcomes = {"OnFailure": {"Destination": arn}}
    if kind != "bucket":
        outcomes["OnSuccess"] = {"Destination": arn}
    aws.client.put_function_event_invoke_config(FunctionName=name, DestinationConfig=outcomes)
    kept = aws.client.get_function_event_invoke_config(FunctionName=name)["DestinationConfig"]
    assert kept == {"OnSuccess": {}, **outcomes}, "observed on AWS"
    aws.client.delete_function_event_invoke_config(FunctionName=name)


# Source: API_CreateFunction, DeadLetterConfig


def test_a_dead_letter_queue_is_kept_and_taken_away_by_an_empty_arn(aws: Lambda) -> None:
    queue = "arn:aws:sqs:us-east-1:000000000000:dead"
    name = aws.create(DeadLetterConfig={"TargetArn": queue})
    assert aws.client.get_function_configuration(FunctionName=name)["DeadLetterConfig"] == {"TargetArn": queue}
    updated = aws.update(name, DeadLetterConfig={"TargetArn": ""})
    assert not updated.get("DeadLetterConfig", {}).get("TargetArn")


def test_an_event_for_an_alias_that_is_deleted_meanwhile_is_given_up_and_nothing_hangs(aws: Lambda) -> None:
    name = aws.create(Code={"ZipFile": HELD}, Timeout=30)
    aws.publish(name)
    aws.client.create_alias(FunctionName=name, Name="gone", FunctionVersion="1")
    aws.invoke(name, Qualifier="gone")
    aws.client.put_function_concurrency(FunctionName=name, ReservedConcurrentExecutions=0)
    aws.client.invoke(FunctionName=name, Qualifier="gone", InvocationType="Event", Payload=b"{}")
    aws.client.delete_alias(FunctionName=name, Name="gone")
    aws.client.delete_function_concurrency(FunctionName=name)
    eventually(lambda: aws.running.function(name)["dead"] == 1, what="the dead letter")


# Source: API_AddPermission, API_GetPolicy


def test_a_policy_is_kept_as_iam_writes_it(aws: Lambda) -> None:
    name = aws.create()
    made = aws.client.add_permission(
        FunctionName=name,
        StatementId="bucket",
        Action="lambda:InvokeFunction",
        Principal="s3.amazonaws.com",
        SourceArn="arn:aws:s3:::uploads",
        SourceAccount="000000000000",
    )
    statement = json.loads(made["Statement"])
    assert statement == {
        "Sid": "bucket",
        "Effect": "Allow",
        "Principal": {"Service": "s3.amazonaws.com"},
        "Action": "lambda:InvokeFunction",
        "Resource": f"{ARN}{name}",
        "Condition": {
            "StringEquals": {"AWS:SourceAccount": "000000000000"},
            "ArnLike": {"AWS:SourceArn": "arn:aws:s3:::uploads"},
        },
    }
    policy = aws.client.get_policy(FunctionName=name)
    assert json.loads(policy["Policy"])["Statement"] == [statement]
    aws.client.remove_permission(FunctionName=name, StatementId="bucket", RevisionId=policy["RevisionId"])
    with pytest.raises(ClientError) as error:
        aws.client.get_policy(FunctionName=name)
    assert code_of(error) == "ResourceNotFoundException"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("*", "*"),
        ("123456789012", {"AWS": "arn:aws:iam::123456789012:root"}),
        ("arn:aws:iam::123456789012:user/x", {"AWS": "arn:aws:iam::123456789012:user/x"}),
        ("events.amazonaws.com", {"Service": "events.amazonaws.com"}),
    ],
)
def test_principals_of_every_kind(aws: Lambda, given: str, kept: Any) -> None:
    name = aws.create()
    made = aws.client.add_permission(
        FunctionName=name, StatementId="s", Action="lambda:InvokeFunction", Principal=given
    )
    assert json.loads(made["Statement"])["Principal"] == kept


def test_a_policy_larger_than_20_kb_is_refused(aws: Lambda) -> None:
    name = aws.create()
    with pytest.raises(ClientError) as error:
        for number in range(200):
            aws.client.add_permission(
                FunctionName=name,
                StatementId=f"s{number}",
                Action="lambda:InvokeFunction",
                Principal="s3.amazonaws.com",
            )
    assert code_of(error) == "PolicyLengthExceededException"


# Source: API_TagResource


def test_tags_come_and_go(aws: Lambda) -> None:
    name = aws.create(Tags={"a": "1", "b": "2"})
    aws.client.tag_resource(Resource=f"{ARN}{name}", Tags={"b": "3", "c": ""})
    aws.client.untag_resource(Resource=f"{ARN}{name}", TagKeys=["a", "none"])
    assert aws.client.list_tags(Resource=f"{ARN}{name}")["Tags"] == {"b": "3", "c": ""}
    assert aws.client.get_function(FunctionName=name)["Tags"] == {"b": "3", "c": ""}


# Source: API_PublishLayerVersion, developer guide "Layer paths for each Lambda runtime"


def test_a_function_imports_from_its_layers_and_keeps_them(aws: Lambda) -> None:
    one = zipped(python___shared__py="NAME = 'one'\n", python___first__py="FIRST = 1\n", bin___tool="#!/bin/sh\n")
    two = zipped(python___shared__py="NAME = 'two'\n")
    arns = []
    for layer, content in (("one", one), ("two", two)):
        made = aws.client.publish_layer_version(
            LayerName=layer, Content={"ZipFile": content}, CompatibleRuntimes=["python3.11"], Description="d"
        )
        assert (made["Version"], made["Content"]["CodeSize"]) == (1, len(content))
        arns.append(made["LayerVersionArn"])
    code = zipped(app__py="import first, shared\ndef handler(event, context):\n    return [first.FIRST, shared.NAME]\n")
    name = aws.create(Code={"ZipFile": code}, Layers=arns)
    assert aws.invoke(name) == [1, "two"], "a later layer covers an earlier one"
    shown = aws.client.get_function_configuration(FunctionName=name)["Layers"]
    assert shown == [{"Arn": arn, "CodeSize": len(content)} for arn, content in zip(arns, (one, two), strict=True)]
    aws.client.delete_layer_version(LayerName="one", VersionNumber=1)
    with pytest.raises(ClientError):
        aws.client.get_layer_version(LayerName="one", VersionNumber=1)
    aws.update(name, Environment={"Variables": {"COLOUR": "red"}})
    assert aws.invoke(name) == [1, "two"]
    again = aws.client.publish_layer_version(LayerName="one", Content={"ZipFile": one})
    assert again["Version"] == 2
    assert "Layers" not in aws.update(name, Layers=[])


def test_layers_are_listed_by_what_they_fit(aws: Lambda) -> None:
    for runtime in ("python3.11", "nodejs20.x"):
        aws.client.publish_layer_version(
            LayerName="fits", Content={"ZipFile": CODE}, CompatibleRuntimes=[runtime], LicenseInfo="MIT"
        )
    versions = aws.client.list_layer_versions(LayerName="fits")["LayerVersions"]
    assert [version["Version"] for version in versions] == [2, 1]
    (only,) = aws.client.list_layer_versions(LayerName="fits", CompatibleRuntime="python3.11")["LayerVersions"]
    assert (only["Version"], only["LicenseInfo"]) == (1, "MIT")
    listed = {layer["LayerName"]: layer for layer in aws.client.list_layers()["Layers"]}
    assert listed["fits"]["LatestMatchingVersion"]["Version"] == 2
    by_arn = aws.client.get_layer_version_by_arn(Arn=listed["fits"]["LatestMatchingVersion"]["LayerVersionArn"])
    with urllib.request.urlopen(by_arn["Content"]["Location"], timeout=30) as fetched:
        assert fetched.read() == CODE
    assert aws.client.list_layer_versions(LayerName="none")["LayerVersions"] == []


def test_two_versions_of_a_layer_do_not_go_together(aws: Lambda) -> None:
    for _ in range(2):
        made = aws.client.publish_layer_version(LayerName="twice", Content={"ZipFile": CODE})
    arns = [made["LayerArn"] + ":1", made["LayerArn"] + ":2"]
    with pytest.raises(ClientError) as error:
        aws.create(Layers=arns)
    assert "Two different versions of the same layer" in error.value.response["Error"]["Message"]


def test_the_policy_of_a_layer(aws: Lambda) -> None:
    made = aws.client.publish_layer_version(LayerName="policy", Content={"ZipFile": CODE})
    version = {"LayerName": "policy", "VersionNumber": made["Version"]}
    added = aws.client.add_layer_version_permission(
        **version, StatementId="s", Action="lambda:GetLayerVersion", Principal="*"
    )
    policy = aws.client.get_layer_version_policy(**version)
    assert json.loads(policy["Policy"])["Statement"] == [json.loads(added["Statement"])]
    aws.client.remove_layer_version_permission(**version, StatementId="s")
    with pytest.raises(ClientError):
        aws.client.get_layer_version_policy(**version)


# Source: API_PutFunctionRecursionConfig, API_PutRuntimeManagementConfig


def test_recursion_and_runtime_management_are_kept(aws: Lambda) -> None:
    name = aws.create()
    assert aws.client.get_function_recursion_config(FunctionName=name)["RecursiveLoop"] == "Terminate"
    aws.client.put_function_recursion_config(FunctionName=name, RecursiveLoop="Allow")
    assert aws.client.get_function_recursion_config(FunctionName=name)["RecursiveLoop"] == "Allow"
    assert aws.client.get_runtime_management_config(FunctionName=name)["UpdateRuntimeOn"] == "Auto"
    changed = aws.client.put_runtime_management_config(FunctionName=name, UpdateRuntimeOn="FunctionUpdate")
    assert (changed["UpdateRuntimeOn"], changed["FunctionArn"]) == ("FunctionUpdate", f"{ARN}{name}:$LATEST")


# Zip files from other tools


def archive(*entries: tuple[str, bytes, int]) -> bytes:
    """Make a zip file of entries: name, content, mode."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as made:
        for name, content, mode in entries:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            made.writestr(info, content)
    return buffer.getvalue()


LINK, FILE = stat.S_IFLNK | 0o777, stat.S_IFREG | 0o644
UNSAFE: dict[str, Callable[[], bytes]] = {
    "a name with ..": lambda: archive(("../evil.py", b"x", FILE)),
    "a name with .. in the middle": lambda: archive(("a/../../evil.py", b"x", FILE)),
    "an absolute name": lambda: archive(("/tmp/evil.py", b"x", FILE)),
    "a name with backslashes": lambda: archive(("..\\evil.py", b"x", FILE)),
    "a link out of the folder": lambda: archive(("link", b"../../..", LINK)),
    "an absolute link": lambda: archive(("link", b"/etc/passwd", LINK)),
    "a link through a link": lambda: archive(("a", b".", LINK), ("b", b"a/../..", LINK)),
    "a file below a link": lambda: archive(("link", b"elsewhere", LINK), ("link/x", b"x", FILE)),
    "links in a circle": lambda: archive(("a", b"b", LINK), ("b", b"a", LINK)),
    "a file below a file": lambda: archive(("a", b"x", FILE), ("a/b", b"x", FILE)),
    "more than 250 MB": lambda: archive(("zeros", b"\0" * 262_144_001, FILE)),
    "cut off": lambda: CODE[: len(CODE) // 2],
}


@pytest.mark.parametrize("what", UNSAFE)
def test_a_zip_file_that_cannot_be_unpacked_safely_is_refused(aws: Lambda, what: str) -> None:
    """Source: API_CreateFunction, "ZipFile"; Lambda quotas, "Deployment package"."""
    with pytest.raises(ClientError) as error:
        aws.create(Code={"ZipFile": UNSAFE[what]()})
    assert code_of(error) == "InvalidParameterValueException"
    assert not list(aws.running.project.root.rglob("evil.py"))
    assert not [path for path in (aws.running.project.data / "packages").iterdir() if path.name.startswith(".")]


def test_links_within_the_folder_and_permissions_are_kept(aws: Lambda) -> None:
    code = archive(
        ("app.py", HANDLER.encode() + b"\nimport linked, os\nassert os.access('tool', os.X_OK)\n", FILE),
        ("real/module.py", b"x = 1\n", FILE),
        ("linked.py", b"real/module.py", LINK),
        ("tool", b"#!/bin/sh\n", stat.S_IFREG | 0o755),
        (".hidden", b"x", FILE),
        ("unreadable", b"x", stat.S_IFREG | 0o200),
    )
    assert aws.invoke(aws.create(Code={"ZipFile": code}))["version"] == "$LATEST"
