"""Writes src/thawd/gateway/lambda_api/lambda_operations.json: the input of Lambda API operations, from botocore.

    .venv/bin/python tools/lambda_operations.py           # after a new botocore

The file has only facts: method, path, status, and for each input its place, type and limits. Source: the model that AWS
publishes with botocore (`lambda/2015-03-31`). A test compares the file with the model of the installed botocore.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import botocore
from botocore.model import OperationModel, Shape
from botocore.session import get_session

TARGET = Path(__file__).parents[1] / "src" / "thawd" / "gateway" / "lambda_api" / "lambda_operations.json"
OPERATIONS: list[str] = (  # noqa: SIM905 - a list of quoted words reads worse
    "AddLayerVersionPermission AddPermission CreateAlias CreateEventSourceMapping CreateFunction "
    "CreateFunctionUrlConfig DeleteAlias DeleteEventSourceMapping DeleteFunction DeleteFunctionConcurrency "
    "DeleteFunctionEventInvokeConfig DeleteFunctionUrlConfig DeleteLayerVersion DeleteProvisionedConcurrencyConfig "
    "GetAccountSettings GetAlias GetEventSourceMapping GetFunction GetFunctionConcurrency GetFunctionConfiguration "
    "GetFunctionEventInvokeConfig GetFunctionRecursionConfig GetFunctionUrlConfig GetLayerVersion GetLayerVersionByArn "
    "GetLayerVersionPolicy GetPolicy GetProvisionedConcurrencyConfig GetRuntimeManagementConfig InvokeAsync "
    "ListAliases ListEventSourceMappings ListFunctionEventInvokeConfigs ListFunctionUrlConfigs ListFunctions "
    "ListLayerVersions ListLayers ListProvisionedConcurrencyConfigs ListTags ListVersionsByFunction "
    "PublishLayerVersion PublishVersion PutFunctionConcurrency PutFunctionEventInvokeConfig "
    "PutFunctionRecursionConfig PutProvisionedConcurrencyConfig PutRuntimeManagementConfig "
    "RemoveLayerVersionPermission RemovePermission TagResource UntagResource UpdateAlias UpdateEventSourceMapping "
    "UpdateFunctionCode UpdateFunctionConfiguration UpdateFunctionEventInvokeConfig UpdateFunctionUrlConfig"
).split()
_LIMITS = ("min", "max", "pattern")


def shape(of: Shape) -> dict[str, Any]:
    """Return type and limits of a shape; for a structure, those of all its members."""
    facts: dict[str, Any] = {"type": of.type_name}
    facts |= {name: of.metadata[name] for name in _LIMITS if name in of.metadata}
    if of.type_name == "string" and of.enum:
        facts["enum"] = list(of.enum)
    if of.type_name == "structure":
        facts["members"] = {name: member(value, of) for name, value in of.members.items()}
    elif of.type_name == "list":
        facts["member"] = shape(of.member)
    elif of.type_name == "map":
        facts["key"], facts["value"] = shape(of.key), shape(of.value)
    return facts


def member(of: Shape, parent: Shape) -> dict[str, Any]:
    """Return a member of a structure: its shape, its place in the request, and whether it is required."""
    facts = shape(of)
    name = next(name for name, value in parent.members.items() if value is of)
    if "location" in of.serialization:
        facts["location"] = of.serialization["location"]
        facts["locationName"] = of.serialization["name"]
    if name in parent.required_members:
        facts["required"] = True
    return facts


def operation(of: OperationModel) -> dict[str, Any]:
    """Return one operation."""
    return {
        "method": of.http["method"],
        "path": of.http["requestUri"],
        "status": of.http["responseCode"],
        "input": shape(of.input_shape) if of.input_shape is not None else {"type": "structure", "members": {}},
    }


def document() -> str:
    """Return the whole file's contents."""
    model = get_session().get_service_model("lambda")
    operations = {name: operation(model.operation_model(name)) for name in OPERATIONS}
    facts = {"botocore": botocore.__version__, "operations": operations}
    return json.dumps(facts, separators=(",", ":")).replace('},"', '},\n"') + "\n"


if __name__ == "__main__":
    TARGET.write_text(document())
    print(f"{TARGET.relative_to(Path.cwd())}: {len(OPERATIONS)} operations", file=sys.stderr)
