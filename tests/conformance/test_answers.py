"""Answers that are no errors: each field as AWS's recorded answers have it, and no other fields.

Source: AWS Lambda API reference, "Response Syntax" of each operation; which fields an answer really has was observed on
AWS.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from .conftest import CODE, ROLE, RUNTIME, Lambda
from .wire import Answer, Wire, operation

ARN = "arn:aws:lambda:us-east-1:000000000000:"
SHA = base64.b64encode(hashlib.sha256(CODE).digest()).decode()
NAME = "answers"
QUEUE = "arn:aws:sqs:us-east-1:000000000000:answers"
SIGNER = "arn:aws:signer:us-east-1:000000000000:/signing-profiles/answers/0123456789"


class Any_(str):  # noqa: N801 - stands for typing.Any in the tables below
    """A value that matches a regular expression."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and re.fullmatch(str(self), other) is not None

    __hash__ = str.__hash__


UUID = Any_("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
TIME = Any_(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+0000")
RUNTIME_ARN = Any_(r"arn:aws:lambda:us-east-1::runtime:[0-9a-f]{64}")
LINK = Any_(r"http://127\.0\.0\.1:\d+/_thawd/code/.*")
URL = Any_(r"http://.*/")
BASE: dict[str, Any] = {
    "Architectures": ["x86_64"],
    "CodeSha256": SHA,
    "CodeSize": len(CODE),
    "Description": "",
    "EphemeralStorage": {"Size": 512},
    "FunctionArn": f"{ARN}function:{NAME}",
    "FunctionName": NAME,
    "Handler": "app.handler",
    "LastModified": TIME,
    "LoggingConfig": {"LogFormat": "Text", "LogGroup": f"/aws/lambda/{NAME}"},
    "MemorySize": 128,
    "PackageType": "Zip",
    "RevisionId": UUID,
    "Role": ROLE,
    "Runtime": RUNTIME,
    "SnapStart": {"ApplyOn": "None", "OptimizationStatus": "Off"},
    "Timeout": 3,
    "TracingConfig": {"Mode": "PassThrough"},
    "Version": "$LATEST",
}
"""A function as lists show it."""
WHOLE = {**BASE, "RuntimeVersionConfig": {"RuntimeVersionArn": RUNTIME_ARN}}
CREATING = {"StateReason": "The function is being created.", "StateReasonCode": "Creating"}
ACTIVE = {**WHOLE, "State": "Active", "LastUpdateStatus": "Successful"}
UPDATING = {
    **ACTIVE,
    "LastUpdateStatus": "InProgress",
    "LastUpdateStatusReason": "The function is being created.",
    "LastUpdateStatusReasonCode": "Creating",
}
ENVIRONMENT = {"Environment": {"Variables": {"COLOUR": "red"}}}
ALIAS = {
    "AliasArn": f"{ARN}function:{NAME}:live",
    "Description": "",
    "FunctionVersion": "1",
    "Name": "live",
    "RevisionId": UUID,
}
STATEMENT = {
    "Sid": "s3",
    "Effect": "Allow",
    "Principal": {"Service": "s3.amazonaws.com"},
    "Action": "lambda:InvokeFunction",
    "Resource": f"{ARN}function:{NAME}",
    "Condition": {
        "StringEquals": {"AWS:SourceAccount": "000000000000"},
        "ArnLike": {"AWS:SourceArn": "arn:aws:s3:::uploads"},
    },
}
EVENTS = {
    "DestinationConfig": {"OnFailure": {}, "OnSuccess": {}},
    "FunctionArn": f"{ARN}function:{NAME}:$LATEST",
    "LastModified": float,
    "MaximumRetryAttempts": 1,
}
URL_CONFIG = {
    "AuthType": "NONE",
    "CreationTime": TIME,
    "FunctionArn": f"{ARN}function:{NAME}",
    "FunctionUrl": URL,
}
LAYER = {
    "CompatibleArchitectures": ["x86_64"],
    "CompatibleRuntimes": ["python3.12"],
    "CreatedDate": TIME,
    "Description": "",
    "LayerVersionArn": f"{ARN}layer:{NAME}:1",
    "LicenseInfo": "MIT",
    "Version": 1,
}
LAYER_WITH_CONTENT = {
    **LAYER,
    "Content": {"CodeSha256": SHA, "CodeSize": len(CODE), "Location": LINK},
    "LayerArn": f"{ARN}layer:{NAME}",
}
LAYER_STATEMENT = {
    "Sid": "s1",
    "Effect": "Allow",
    "Principal": "*",
    "Action": "lambda:GetLayerVersion",
    "Resource": f"{ARN}layer:{NAME}:1",
}
MAPPING = {
    "BatchSize": 10,
    "EventSourceArn": QUEUE,
    "EventSourceMappingArn": Any_(f"{ARN}event-source-mapping:.*"),
    "FunctionArn": f"{ARN}function:{NAME}",
    "FunctionResponseTypes": [],
    "LastModified": float,
    "MaximumBatchingWindowInSeconds": 0,
    "State": Any_("Creating|Enabled|Updating|Deleting"),
    "StateTransitionReason": "USER_INITIATED",
    "UUID": UUID,
}
SIGNING = {
    "AllowedPublishers": {"SigningProfileVersionArns": [SIGNER]},
    "CodeSigningConfigArn": Any_(f"{ARN}code-signing-config:csc-[0-9a-z]{{17}}"),
    "CodeSigningConfigId": Any_("csc-[0-9a-z]{17}"),
    "CodeSigningPolicies": {"UntrustedArtifactOnDeployment": "Warn"},
    "Description": "",
    "LastModified": TIME,
}
PROVISIONED = {
    "AllocatedProvisionedConcurrentExecutions": int,
    "AvailableProvisionedConcurrentExecutions": int,
    "LastModified": TIME,
    "RequestedProvisionedConcurrentExecutions": 1,
    "Status": Any_("IN_PROGRESS|READY"),
}
NAMED = {"FunctionName": NAME}
LAYER_1 = {"LayerName": NAME, "VersionNumber": 1}
CREATE = {**NAMED, "Runtime": RUNTIME, "Role": ROLE, "Handler": "app.handler", "Code": {"ZipFile": CODE}}
PUBLISHED = {**ACTIVE, **ENVIRONMENT, "FunctionArn": f"{ARN}function:{NAME}:1", "Version": "1", "Description": "first"}
PUT_EVENTS = {**NAMED, "MaximumRetryAttempts": 1}
PERMISSION = {
    **NAMED,
    "StatementId": "s3",
    "Action": "lambda:InvokeFunction",
    "Principal": "s3.amazonaws.com",
    "SourceArn": "arn:aws:s3:::uploads",
    "SourceAccount": "000000000000",
}
LAYER_PERMISSION = {**LAYER_1, "StatementId": "s1", "Action": "lambda:GetLayerVersion", "Principal": "*"}
LIVE = {**NAMED, "Name": "live"}
WEIGHTS = {"RoutingConfig": {"AdditionalVersionWeights": {"2": 0.25}}}
FOR_ALIAS = {**NAMED, "Qualifier": "live"}
COUNT = {"ReservedConcurrentExecutions": 2}
# The calls, in this order: a label, the operation, its parameters, the status and the fields of the answer. In the
# parameters, `{uuid}` and `{csc}` stand for identifiers that earlier answers gave.
CALLS: list[tuple[str, str, dict[str, Any], int, Any]] = [
    ("create", "CreateFunction", CREATE, 201, {**WHOLE, "State": "Pending", **CREATING}),
    ("get", "GetFunction", NAMED, 200, {"Configuration": ACTIVE, "Code": {"RepositoryType": "S3", "Location": LINK}}),
    ("get-configuration", "GetFunctionConfiguration", NAMED, 200, ACTIVE),
    ("update", "UpdateFunctionConfiguration", {**NAMED, **ENVIRONMENT}, 200, {**UPDATING, **ENVIRONMENT}),
    ("updated", "GetFunctionConfiguration", NAMED, 200, {**ACTIVE, **ENVIRONMENT}),
    ("dry-run", "UpdateFunctionCode", {**NAMED, "ZipFile": CODE, "DryRun": True}, 200, {**ACTIVE, **ENVIRONMENT}),
    ("publish", "PublishVersion", {**NAMED, "Description": "first"}, 201, PUBLISHED),
    ("publish-again", "PublishVersion", NAMED, 201, PUBLISHED),
    ("get-version", "GetFunctionConfiguration", {**NAMED, "Qualifier": "1"}, 200, PUBLISHED),
    ("versions", "ListVersionsByFunction", NAMED, 200, {"Versions": list}),
    ("create-alias", "CreateAlias", {**LIVE, "FunctionVersion": "1"}, 201, ALIAS),
    ("get-alias", "GetAlias", LIVE, 200, ALIAS),
    ("update-alias", "UpdateAlias", {**LIVE, "Description": "d"}, 200, {**ALIAS, "Description": "d"}),
    ("aliases", "ListAliases", NAMED, 200, {"Aliases": [{**ALIAS, "Description": "d"}]}),
    ("get-by-alias", "GetFunctionConfiguration", FOR_ALIAS, 200,
     {**PUBLISHED, "FunctionArn": f"{ARN}function:{NAME}:live"}),
    ("reserve", "PutFunctionConcurrency", {**NAMED, **COUNT}, 200, COUNT),
    ("reserved", "GetFunctionConcurrency", NAMED, 200, COUNT),
    ("unreserve", "DeleteFunctionConcurrency", NAMED, 204, None),
    ("unreserved", "GetFunctionConcurrency", NAMED, 200, {}),
    ("provision", "PutProvisionedConcurrencyConfig", {**FOR_ALIAS, "ProvisionedConcurrentExecutions": 1}, 202,
     PROVISIONED),
    ("provisioned", "GetProvisionedConcurrencyConfig", FOR_ALIAS, 200, PROVISIONED),
    ("provisioned-list", "ListProvisionedConcurrencyConfigs", NAMED, 200,
     {"ProvisionedConcurrencyConfigs": [{**PROVISIONED, "FunctionArn": f"{ARN}function:{NAME}:live"}]}),
    ("unprovision", "DeleteProvisionedConcurrencyConfig", FOR_ALIAS, 204, None),
    ("put-events", "PutFunctionEventInvokeConfig", PUT_EVENTS, 200, EVENTS),
    ("update-events", "UpdateFunctionEventInvokeConfig", {**NAMED, "MaximumEventAgeInSeconds": 60}, 200,
     {**EVENTS, "MaximumEventAgeInSeconds": 60}),
    ("get-events", "GetFunctionEventInvokeConfig", NAMED, 200, {**EVENTS, "MaximumEventAgeInSeconds": 60}),
    ("list-events", "ListFunctionEventInvokeConfigs", NAMED, 200,
     {"FunctionEventInvokeConfigs": [{**EVENTS, "MaximumEventAgeInSeconds": 60}]}),
    ("delete-events", "DeleteFunctionEventInvokeConfig", NAMED, 204, None),
    ("no-events", "ListFunctionEventInvokeConfigs", NAMED, 200, {"FunctionEventInvokeConfigs": []}),
    ("permit", "AddPermission", PERMISSION, 201, {"Statement": STATEMENT}),
    ("policy", "GetPolicy", NAMED, 200,
     {"Policy": {"Version": "2012-10-17", "Id": "default", "Statement": [STATEMENT]}, "RevisionId": UUID}),
    ("forbid", "RemovePermission", {**NAMED, "StatementId": "s3"}, 204, None),
    ("tag", "TagResource", {"Resource": f"{ARN}function:{NAME}", "Tags": {"a": "1", "b": ""}}, 204, None),
    ("tags", "ListTags", {"Resource": f"{ARN}function:{NAME}"}, 200, {"Tags": {"a": "1", "b": ""}}),
    ("get-tagged", "GetFunction", NAMED, 200,
     {"Configuration": {**ACTIVE, **ENVIRONMENT}, "Code": dict, "Tags": {"a": "1", "b": ""}}),
    ("untag", "UntagResource", {"Resource": f"{ARN}function:{NAME}", "TagKeys": ["a", "b"]}, 204, None),
    ("untagged", "ListTags", {"Resource": f"{ARN}function:{NAME}"}, 200, {"Tags": {}}),
    ("create-url", "CreateFunctionUrlConfig", {**NAMED, "AuthType": "NONE"}, 201, URL_CONFIG),
    ("get-url", "GetFunctionUrlConfig", NAMED, 200, {**URL_CONFIG, "InvokeMode": "BUFFERED", "LastModifiedTime": TIME}),
    ("update-url", "UpdateFunctionUrlConfig", {**NAMED, "AuthType": "AWS_IAM"}, 200,
     {**URL_CONFIG, "AuthType": "AWS_IAM", "LastModifiedTime": TIME}),
    ("update-url-mode", "UpdateFunctionUrlConfig", {**NAMED, "InvokeMode": "RESPONSE_STREAM"}, 200,
     {**URL_CONFIG, "AuthType": "AWS_IAM", "LastModifiedTime": TIME, "InvokeMode": "RESPONSE_STREAM"}),
    ("urls", "ListFunctionUrlConfigs", NAMED, 200, {"FunctionUrlConfigs": [
        {**URL_CONFIG, "AuthType": "AWS_IAM", "InvokeMode": "RESPONSE_STREAM", "LastModifiedTime": TIME}]}),
    ("delete-url", "DeleteFunctionUrlConfig", NAMED, 204, None),
    ("no-urls", "ListFunctionUrlConfigs", NAMED, 200, {"FunctionUrlConfigs": []}),
    ("layer", "PublishLayerVersion", {"LayerName": NAME, "Content": {"ZipFile": CODE}, "LicenseInfo": "MIT",
     "CompatibleRuntimes": ["python3.12"], "CompatibleArchitectures": ["x86_64"]}, 201, LAYER_WITH_CONTENT),
    ("layer-plain", "PublishLayerVersion", {"LayerName": f"{NAME}-2", "Content": {"ZipFile": CODE}}, 201,
     {**{name: value for name, value in LAYER_WITH_CONTENT.items() if not name.startswith(("Compat", "License"))},
      "LayerVersionArn": f"{ARN}layer:{NAME}-2:1", "LayerArn": f"{ARN}layer:{NAME}-2"}),
    ("layer-empty-lists", "PublishLayerVersion", {"LayerName": f"{NAME}-3", "Content": {"ZipFile": CODE},
     "CompatibleRuntimes": [], "CompatibleArchitectures": []}, 201,
     {**{name: value for name, value in LAYER_WITH_CONTENT.items() if name != "LicenseInfo"}, "CompatibleRuntimes": [],
      "CompatibleArchitectures": [], "LayerVersionArn": f"{ARN}layer:{NAME}-3:1", "LayerArn": f"{ARN}layer:{NAME}-3"}),
    ("get-layer", "GetLayerVersion", LAYER_1, 200, LAYER_WITH_CONTENT),
    ("get-layer-by-arn", "GetLayerVersionByArn", {"Arn": f"{ARN}layer:{NAME}:1"}, 200, LAYER_WITH_CONTENT),
    ("layer-versions", "ListLayerVersions", {"LayerName": NAME}, 200, {"LayerVersions": [LAYER]}),
    ("no-layer-versions", "ListLayerVersions", {"LayerName": "none"}, 200, {"LayerVersions": []}),
    ("permit-layer", "AddLayerVersionPermission", LAYER_PERMISSION, 201,
     {"Statement": LAYER_STATEMENT, "RevisionId": UUID}),
    ("layer-policy", "GetLayerVersionPolicy", LAYER_1, 200,
     {"Policy": {"Version": "2012-10-17", "Id": "default", "Statement": [LAYER_STATEMENT]}, "RevisionId": UUID}),
    ("forbid-layer", "RemoveLayerVersionPermission", {**LAYER_1, "StatementId": "s1"}, 204, None),
    ("use-layer", "UpdateFunctionConfiguration", {**NAMED, "Layers": [f"{ARN}layer:{NAME}:1"]}, 200,
     {**UPDATING, **ENVIRONMENT, "Layers": [{"Arn": f"{ARN}layer:{NAME}:1", "CodeSize": len(CODE)}]}),
    ("delete-layer", "DeleteLayerVersion", LAYER_1, 204, None),
    ("delete-layer-again", "DeleteLayerVersion", LAYER_1, 204, None),
    ("map", "CreateEventSourceMapping", {**NAMED, "EventSourceArn": QUEUE}, 202, MAPPING),
    ("get-map", "GetEventSourceMapping", {"UUID": "{uuid}"}, 200, MAPPING),
    ("update-map", "UpdateEventSourceMapping", {"UUID": "{uuid}", "BatchSize": 5}, 202, {**MAPPING, "BatchSize": 5}),
    ("maps", "ListEventSourceMappings", NAMED, 200, {"EventSourceMappings": [{**MAPPING, "BatchSize": 5}]}),
    ("delete-map", "DeleteEventSourceMapping", {"UUID": "{uuid}"}, 202, {**MAPPING, "BatchSize": 5}),
    ("sign", "CreateCodeSigningConfig", {"AllowedPublishers": {"SigningProfileVersionArns": [SIGNER]}}, 201,
     {"CodeSigningConfig": SIGNING}),
    ("get-sign", "GetCodeSigningConfig", {"CodeSigningConfigArn": "{csc}"}, 200, {"CodeSigningConfig": SIGNING}),
    ("put-sign", "PutFunctionCodeSigningConfig", {**NAMED, "CodeSigningConfigArn": "{csc}"}, 200,
     {"CodeSigningConfigArn": SIGNING["CodeSigningConfigArn"], "FunctionName": NAME}),
    ("function-sign", "GetFunctionCodeSigningConfig", NAMED, 200,
     {"CodeSigningConfigArn": SIGNING["CodeSigningConfigArn"], "FunctionName": NAME}),
    ("signed-functions", "ListFunctionsByCodeSigningConfig", {"CodeSigningConfigArn": "{csc}"}, 200,
     {"FunctionArns": [f"{ARN}function:{NAME}"]}),
    ("unsign", "DeleteFunctionCodeSigningConfig", NAMED, 204, None),
    ("no-function-sign", "GetFunctionCodeSigningConfig", NAMED, 200, {}),
    ("delete-sign", "DeleteCodeSigningConfig", {"CodeSigningConfigArn": "{csc}"}, 204, None),
    ("recursion", "PutFunctionRecursionConfig", {**NAMED, "RecursiveLoop": "Allow"}, 200, {"RecursiveLoop": "Allow"}),
    ("get-recursion", "GetFunctionRecursionConfig", NAMED, 200, {"RecursiveLoop": "Allow"}),
    ("runtime", "PutRuntimeManagementConfig", {**NAMED, "UpdateRuntimeOn": "FunctionUpdate"}, 200,
     {"UpdateRuntimeOn": "FunctionUpdate", "FunctionArn": f"{ARN}function:{NAME}:$LATEST"}),
    ("get-runtime", "GetRuntimeManagementConfig", NAMED, 200,
     {"UpdateRuntimeOn": "FunctionUpdate", "FunctionArn": f"{ARN}function:{NAME}:$LATEST"}),
    ("scaling", "GetFunctionScalingConfig", {**NAMED, "Qualifier": "1"}, 200,
     {"FunctionArn": f"{ARN}function:{NAME}:1"}),
    ("account", "GetAccountSettings", {}, 200, {
        "AccountLimit": {"TotalCodeSize": int, "CodeSizeUnzipped": 262_144_000, "CodeSizeZipped": 52_428_800,
                         "ConcurrentExecutions": 12, "UnreservedConcurrentExecutions": 12},
        "AccountUsage": {"TotalCodeSize": int, "FunctionCount": int}}),
    ("delete-alias", "DeleteAlias", LIVE, 204, None),
    ("delete-alias-again", "DeleteAlias", LIVE, 204, None),
    ("delete-version", "DeleteFunction", {**NAMED, "Qualifier": "1"}, 204, None),
    ("delete", "DeleteFunction", NAMED, 204, None),
]  # fmt: skip
EXPECTED = {label: (name, status, fields) for label, name, _, status, fields in CALLS}
FIELDS = [
    (label, field)
    for label, (_, _, fields) in EXPECTED.items()
    for field in (fields["Configuration"] if label in ("get", "get-tagged") else fields or {})
]


@pytest.fixture(scope="module")
def answers(aws: Lambda) -> Iterator[Mapping[str, Answer]]:
    """All answers, by label."""
    wire, found, known = Wire(aws.running.url), {}, {"{uuid}": "", "{csc}": ""}
    for label, name, parameters, _, _ in CALLS:
        given = {key: known.get(value, value) if isinstance(value, str) else value for key, value in parameters.items()}
        answer = found[label] = wire.call(name, given)
        if label in ("create", "update", "use-layer"):
            aws.client.get_waiter("function_active_v2").wait(FunctionName=NAME, WaiterConfig={"Delay": 0.05})
            aws.updated(NAME)
        if label in ("map", "update-map"):
            known["{uuid}"] = answer.document["UUID"]
            aws.mapped(answer.document["UUID"])
        if label == "sign":
            known["{csc}"] = answer.document["CodeSigningConfig"]["CodeSigningConfigArn"]
    yield found
    wire.close()


def matches(found: Any, wanted: Any) -> bool:
    """Return whether a value is as wanted: equal, of the wanted type, or with the same fields that are as wanted."""
    if isinstance(wanted, type):
        return isinstance(found, wanted)
    if isinstance(wanted, dict):
        return (
            isinstance(found, dict)
            and found.keys() == wanted.keys()
            and all(matches(found[key], wanted[key]) for key in wanted)
        )
    if isinstance(wanted, list):
        return isinstance(found, list) and len(found) == len(wanted) and all(map(matches, found, wanted))
    return bool(wanted == found)


def shown(answer: Answer) -> Any:
    """Return the document of an answer, with policies as documents."""
    document = answer.document
    return {key: json.loads(value) if key in ("Statement", "Policy") else value for key, value in document.items()}


@pytest.mark.parametrize(("label", "field"), FIELDS, ids=lambda value: value)
def test_a_field_is_as_on_aws(answers: Mapping[str, Answer], label: str, field: str) -> None:
    _, _, fields = EXPECTED[label]
    document = shown(answers[label])
    if label in ("get", "get-tagged"):
        document, fields = document["Configuration"], fields["Configuration"]
    assert field in document
    assert matches(document[field], fields[field]), document[field]


@pytest.mark.parametrize("label", EXPECTED)
def test_an_answer_has_the_status_and_the_fields_of_aws_and_no_others(
    answers: Mapping[str, Answer], label: str
) -> None:
    name, status, fields = EXPECTED[label]
    answer = answers[label]
    assert answer.status == status, answer.body
    assert answer.headers["x-amzn-requestid"]
    assert set(answer.document) == set(fields or {})
    if status == 204:
        assert answer.body == b""
    else:
        assert answer.headers["content-type"] == "application/json"
        model = operation(name).output_shape
        assert model is not None
        assert set(answer.document) <= set(model.members)
