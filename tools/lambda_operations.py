"""Writes the files that describe the inputs of the API operations of Lambda, CloudWatch Logs and CloudWatch metrics.

    .venv/bin/python tools/lambda_operations.py           # run it when a new version of botocore is installed

For each operation of Lambda the file has the HTTP method, the path and the status. For each input of every service it
has the location in the request, the type and the limits. If the installed botocore has the version that a file was made
with, a test compares the file with what this program would write.

Source: the service models that AWS publishes with botocore (`lambda/2015-03-31`, `logs/2014-03-28`,
`cloudwatch/2010-08-01`).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import botocore
from botocore.model import OperationModel, Shape
from botocore.session import get_session

_GATEWAY = Path(__file__).parents[1] / "src" / "thawd" / "gateway"
TARGET = _GATEWAY / "lambda_api" / "lambda_operations.json"
OTHER_TARGETS = {
    "logs": _GATEWAY / "logs" / "logs_operations.json",
    "cloudwatch": _GATEWAY / "metrics" / "metrics_operations.json",
}
"""The files of the services whose operations have no path of their own, by botocore's name of the service."""
OPERATIONS: list[str] = (  # noqa: SIM905 - a list of quoted words reads worse
    "AddLayerVersionPermission AddPermission CreateAlias CreateCodeSigningConfig CreateEventSourceMapping "
    "CreateFunction CreateFunctionUrlConfig DeleteAlias DeleteCodeSigningConfig DeleteEventSourceMapping "
    "DeleteFunction DeleteFunctionCodeSigningConfig DeleteFunctionConcurrency DeleteFunctionEventInvokeConfig "
    "DeleteFunctionUrlConfig DeleteLayerVersion DeleteProvisionedConcurrencyConfig GetAccountSettings GetAlias "
    "GetCodeSigningConfig GetEventSourceMapping GetFunction GetFunctionCodeSigningConfig GetFunctionConcurrency "
    "GetFunctionConfiguration GetFunctionEventInvokeConfig GetFunctionRecursionConfig GetFunctionScalingConfig "
    "GetFunctionUrlConfig GetLayerVersion GetLayerVersionByArn GetLayerVersionPolicy GetPolicy "
    "GetProvisionedConcurrencyConfig GetRuntimeManagementConfig InvokeAsync ListAliases ListCodeSigningConfigs "
    "ListEventSourceMappings ListFunctionEventInvokeConfigs ListFunctionUrlConfigs ListFunctions "
    "ListFunctionsByCodeSigningConfig ListLayerVersions ListLayers ListProvisionedConcurrencyConfigs ListTags "
    "ListVersionsByFunction PublishLayerVersion PublishVersion PutFunctionCodeSigningConfig "
    "PutFunctionConcurrency PutFunctionEventInvokeConfig PutFunctionRecursionConfig PutFunctionScalingConfig "
    "PutProvisionedConcurrencyConfig PutRuntimeManagementConfig RemoveLayerVersionPermission RemovePermission "
    "TagResource UntagResource UpdateAlias UpdateCodeSigningConfig UpdateEventSourceMapping UpdateFunctionCode "
    "UpdateFunctionConfiguration UpdateFunctionEventInvokeConfig UpdateFunctionUrlConfig"
).split()
OTHER_OPERATIONS: dict[str, list[str]] = {
    "logs": (  # noqa: SIM905
        "CreateLogGroup CreateLogStream DeleteLogGroup DeleteLogStream DeleteMetricFilter DeleteRetentionPolicy "
        "DeleteSubscriptionFilter DescribeLogGroups DescribeLogStreams DescribeMetricFilters DescribeQueries "
        "DescribeSubscriptionFilters FilterLogEvents GetLogEvents GetLogRecord GetQueryResults ListLogGroups "
        "ListTagsForResource ListTagsLogGroup PutLogEvents PutLogGroupDeletionProtection PutMetricFilter "
        "PutRetentionPolicy PutSubscriptionFilter StartLiveTail StartQuery StopQuery TagLogGroup TagResource "
        "TestMetricFilter UntagLogGroup UntagResource"
    ).split(),
    "cloudwatch": ["GetMetricData", "GetMetricStatistics", "ListMetrics", "PutMetricData"],
}
# The Lambda service itself checks the runtime of these inputs and answers with another error than for other enums.
_RUNTIME_CHECKED_LATER = ("CreateFunctionRequest", "UpdateFunctionConfigurationRequest")
_LIMITS = ("min", "max", "pattern", "sensitive")


def shape(described: Shape) -> dict[str, Any]:
    """Return the type and limits of a shape, which is botocore's word for a type in the service model.

    A structure includes its members, a list or map the shapes of its contents.
    """
    facts: dict[str, Any] = {"type": described.type_name}
    facts |= {name: described.metadata[name] for name in _LIMITS if name in described.metadata}
    if described.type_name == "string" and described.enum:
        facts["enum"] = list(described.enum)
    if described.type_name == "structure":
        facts["members"] = {name: member(value, described) for name, value in described.members.items()}
    elif described.type_name == "list":
        facts["member"] = shape(described.member)
    elif described.type_name == "map":
        facts["key"], facts["value"] = shape(described.key), shape(described.value)
    return facts


def member(described: Shape, parent: Shape) -> dict[str, Any]:
    """Return a member of the structure `parent`: its shape, its location in the request, whether it is required."""
    facts = shape(described)
    name = next(name for name, value in parent.members.items() if value is described)
    if "location" in described.serialization:
        facts["location"] = described.serialization["location"]
        facts["locationName"] = described.serialization["name"]
    if parent.name in _RUNTIME_CHECKED_LATER and name == "Runtime":
        del facts["enum"]
    if name in parent.required_members:
        facts["required"] = True
    return facts


def operation(described: OperationModel) -> dict[str, Any]:
    """Return the HTTP method, path and status of an operation, and its input."""
    no_input = {"type": "structure", "members": {}}
    return {
        "method": described.http["method"],
        "path": described.http["requestUri"],
        "status": described.http["responseCode"],
        "input": shape(described.input_shape) if described.input_shape is not None else no_input,
    }


def document() -> str:
    """Return the whole file's contents."""
    model = get_session().get_service_model("lambda")
    operations = {name: operation(model.operation_model(name)) for name in OPERATIONS}
    facts = {"botocore": botocore.__version__, "operations": operations}
    return json.dumps(facts, separators=(",", ":")).replace('},"', '},\n"') + "\n"


def other_document(service: str) -> str:
    """Return the whole contents of the file of `service`, one of `OTHER_TARGETS`: only the inputs."""
    model = get_session().get_service_model(service)
    operations = {name: shape(model.operation_model(name).input_shape) for name in OTHER_OPERATIONS[service]}
    facts = {"botocore": botocore.__version__, "operations": operations}
    return json.dumps(facts, separators=(",", ":")).replace('},"', '},\n"') + "\n"


if __name__ == "__main__":
    TARGET.write_text(document())
    print(f"{TARGET.relative_to(Path.cwd())}: {len(OPERATIONS)} operations", file=sys.stderr)
    for service, target in OTHER_TARGETS.items():
        target.write_text(other_document(service))
        print(f"{target.relative_to(Path.cwd())}: {len(OTHER_OPERATIONS[service])} operations", file=sys.stderr)
