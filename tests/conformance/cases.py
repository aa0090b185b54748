"""What the cases of `test_refusals` are made of: a call that is refused, and the operations on a function."""

from __future__ import annotations

from typing import Any, NamedTuple

from .conftest import CODE, ROLE, RUNTIME

API = "https://docs.aws.amazon.com/lambda/latest/api/API_"
ABSENT = "absent"
ARN = "arn:aws:lambda:us-east-1:000000000000:function:"


class Case(NamedTuple):
    """A call that is refused.

    Attributes:
        operation: name of the API operation; the AWS page is named API_ and this name.
        parameters: the operation's parameters; `SHARED` stands for the shared function.
        code: error code.
        status: HTTP status.
        words: text that the message contains.
    """

    operation: str
    parameters: dict[str, Any]
    code: str
    status: int
    words: str = ""

    @property
    def page(self) -> str:
        """Return the AWS page that documents the case."""
        return f"{API}{self.operation}.html"


SHARED = "shared"
NAMED = {"FunctionName": SHARED}
NEW = {"FunctionName": "new", "Runtime": RUNTIME, "Role": ROLE, "Handler": "app.handler", "Code": {"ZipFile": CODE}}
VALID, VALUE = ("ValidationException", 400), ("InvalidParameterValueException", 400)
MISSING, CONFLICT = ("ResourceNotFoundException", 404), ("ResourceConflictException", 409)
FOREIGN = ("AccessDeniedException", 403)
TYPE, STALE = ("SerializationException", 400), ("PreconditionFailedException", 412)


def new(**parameters: Any) -> dict[str, Any]:
    return {name: value for name, value in {**NEW, **parameters}.items() if value is not None}


def named(**parameters: Any) -> dict[str, Any]:
    return {**NAMED, **parameters}


QUEUE = "arn:aws:sqs:us-east-1:000000000000:refused"


def mapped(**parameters: Any) -> dict[str, Any]:
    return named(**{"EventSourceArn": QUEUE, **parameters})


def filters(*patterns: str) -> dict[str, Any]:
    return {"Filters": [{"Pattern": pattern} for pattern in patterns]}


OPERATIONS_ON_A_FUNCTION: dict[str, dict[str, Any]] = {
    "GetFunction": {},
    "GetFunctionConfiguration": {},
    "DeleteFunction": {},
    "UpdateFunctionCode": {"ZipFile": CODE},
    "UpdateFunctionConfiguration": {"Description": "x"},
    "PublishVersion": {},
    "ListVersionsByFunction": {},
    "CreateAlias": {"Name": "a", "FunctionVersion": "1"},
    "UpdateAlias": {"Name": "a"},
    "GetAlias": {"Name": "a"},
    "ListAliases": {},
    "DeleteAlias": {"Name": "a"},
    "PutFunctionConcurrency": {"ReservedConcurrentExecutions": 1},
    "GetFunctionConcurrency": {},
    "DeleteFunctionConcurrency": {},
    "PutProvisionedConcurrencyConfig": {"Qualifier": "1", "ProvisionedConcurrentExecutions": 1},
    "GetProvisionedConcurrencyConfig": {"Qualifier": "1"},
    "DeleteProvisionedConcurrencyConfig": {"Qualifier": "1"},
    "ListProvisionedConcurrencyConfigs": {},
    "PutFunctionEventInvokeConfig": {"MaximumRetryAttempts": 1},
    "UpdateFunctionEventInvokeConfig": {"MaximumRetryAttempts": 1},
    "GetFunctionEventInvokeConfig": {},
    "DeleteFunctionEventInvokeConfig": {},
    "ListFunctionEventInvokeConfigs": {},
    "AddPermission": {"StatementId": "s", "Action": "lambda:InvokeFunction", "Principal": "*"},
    "RemovePermission": {"StatementId": "s"},
    "GetPolicy": {},
    "CreateFunctionUrlConfig": {"AuthType": "NONE"},
    "UpdateFunctionUrlConfig": {},
    "GetFunctionUrlConfig": {},
    "DeleteFunctionUrlConfig": {},
    "ListFunctionUrlConfigs": {},
    "PutFunctionRecursionConfig": {"RecursiveLoop": "Allow"},
    "GetFunctionRecursionConfig": {},
    "PutRuntimeManagementConfig": {"UpdateRuntimeOn": "Auto"},
    "GetRuntimeManagementConfig": {},
    "Invoke": {},
}
