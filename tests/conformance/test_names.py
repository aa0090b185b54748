"""Functions by name, partial ARN and ARN, with and without a qualifier: what each operation makes of them.

Source: AWS Lambda API reference, `FunctionName` and `Qualifier` of each operation; the refusals were observed on AWS.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from .conftest import CODE, ROLE, RUNTIME, Lambda
from .wire import Wire, operation

ACCOUNT, REGION = "000000000000", "us-east-1"
ARN = f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:"
NEW = {"Runtime": RUNTIME, "Role": ROLE, "Handler": "app.handler", "Code": {"ZipFile": CODE}}
NOT_FOUND, VALUE = ("ResourceNotFoundException", 404), ("InvalidParameterValueException", 400)
DERIVED = "The derived qualifier from the function name does not match the specified qualifier."
LONG = "a" * 65


@pytest.fixture(scope="module")
def wire(aws: Lambda) -> Iterator[Wire]:
    """A connection to the server."""
    connection = Wire(aws.running.url)
    yield connection
    connection.close()


def pattern_of(name: str, member: str) -> str:
    """Return what AWS says of a value that does not match the pattern of a member."""
    shape = operation(name).input_shape.members[member]
    return f"failed to satisfy constraint: Member must satisfy regular expression pattern: {shape.metadata['pattern']}"


# Values that no function can have as its name, or that name none: what GetFunction, DeleteFunction, Invoke and
# CreateFunction say. A code of "pattern" stands for a validation error about the pattern of the member that follows.
Said = tuple[str, str]
PATTERN: Said = ("pattern", "FunctionName")
PATTERN_OF_QUALIFIER: Said = ("pattern", "Qualifier")
ODD: list[tuple[str, dict[str, str], dict[str, Said]]] = [
    ("an-exclamation-mark", {"FunctionName": "my-function!"},
     {"GetFunction": PATTERN, "DeleteFunction": PATTERN, "Invoke": PATTERN, "CreateFunction": PATTERN}),
    ("an-asterisk", {"FunctionName": "*"},
     {"GetFunction": PATTERN, "DeleteFunction": PATTERN, "Invoke": PATTERN, "CreateFunction": PATTERN}),
    ("a-bad-qualifier", {"FunctionName": "my-function", "Qualifier": "invalid!"},
     {"GetFunction": PATTERN_OF_QUALIFIER, "DeleteFunction": PATTERN_OF_QUALIFIER, "Invoke": PATTERN_OF_QUALIFIER}),
    ("a-bad-account", {"FunctionName": "invalid-account:function:my-function"},
     {"GetFunction": PATTERN, "DeleteFunction": PATTERN, "Invoke": PATTERN, "CreateFunction": PATTERN}),
    ("a-bad-region", {"FunctionName": f"arn:aws:lambda:invalid-region:{ACCOUNT}:function:my-function"},
     {"GetFunction": PATTERN, "DeleteFunction": PATTERN, "Invoke": PATTERN, "CreateFunction": PATTERN}),
    ("another-service", {"FunctionName": f"arn:aws:ec2:{REGION}:{ACCOUNT}:instance:i-1234567890abcdef0"},
     {"GetFunction": PATTERN, "DeleteFunction": PATTERN, "Invoke": PATTERN, "CreateFunction": PATTERN}),
    ("65-characters", {"FunctionName": LONG}, {
        "GetFunction": (NOT_FOUND[0], f"Function not found: {ARN}{LONG}"),
        "DeleteFunction": (NOT_FOUND[0], f"Function not found: {ARN}{LONG}"),
        "Invoke": (NOT_FOUND[0], f"Function not found: {ARN}{LONG}:$LATEST"),
        "CreateFunction": (
            VALUE[0],
            f"1 validation error detected: Value '{LONG}' at 'functionName' failed to satisfy constraint: Member must "
            "have length less than or equal to 64",
        ),
    }),
    ("two-qualifiers", {"FunctionName": f"{ARN}my-function:1:2"},
     {"GetFunction": PATTERN, "DeleteFunction": PATTERN, "Invoke": PATTERN, "CreateFunction": PATTERN}),
    ("an-arn-without-a-name", {"FunctionName": ARN.removesuffix(":")}, {
        "GetFunction": (NOT_FOUND[0], f"Function not found: {ARN}function"),
        "DeleteFunction": (NOT_FOUND[0], f"Function not found: {ARN}function"),
        "Invoke": (NOT_FOUND[0], f"Function not found: {ARN}function:$LATEST"),
    }),
    ("a-third-part", {"FunctionName": "function:my-function:$LATEST:extra"},
     {"GetFunction": PATTERN, "DeleteFunction": PATTERN, "Invoke": PATTERN, "CreateFunction": PATTERN}),
    ("two-different-qualifiers", {"FunctionName": f"{ARN}my-function:$LATEST", "Qualifier": "1"},
     {"GetFunction": (VALUE[0], DERIVED), "DeleteFunction": (VALUE[0], DERIVED), "Invoke": (VALUE[0], DERIVED)}),
    ("latest-in-small-letters", {"FunctionName": f"{ARN}my-function", "Qualifier": "$latest"}, {
        "GetFunction": (NOT_FOUND[0], f"Function not found: {ARN}my-function:$latest"),
        "DeleteFunction": (NOT_FOUND[0], f"Function not found: {ARN}my-function"),
        "Invoke": (NOT_FOUND[0], f"Function not found: {ARN}my-function:$latest"),
    }),
    ("no-region", {"FunctionName": f"arn:aws:lambda::{ACCOUNT}:function:my-function"},
     {"GetFunction": PATTERN, "DeleteFunction": PATTERN, "Invoke": PATTERN, "CreateFunction": PATTERN}),
    ("no-account", {"FunctionName": f"arn:aws:lambda:{REGION}::function:my-function"},
     {"GetFunction": PATTERN, "DeleteFunction": PATTERN, "Invoke": PATTERN, "CreateFunction": PATTERN}),
    ("latest-misspelt", {"FunctionName": f"{ARN}my-function:$LATES"},
     {"GetFunction": PATTERN, "DeleteFunction": PATTERN, "Invoke": PATTERN, "CreateFunction": PATTERN}),
    ("a-long-alias", {"FunctionName": "my-function", "Qualifier": LONG}, {
        "GetFunction": (NOT_FOUND[0], f"Function not found: {ARN}my-function:{LONG}"),
        "DeleteFunction": (VALUE[0], "Deletion of aliases is not currently supported."),
        "Invoke": (NOT_FOUND[0], f"Function not found: {ARN}my-function:{LONG}"),
    }),
    ("an-absent-version", {"FunctionName": "shared", "Qualifier": "1221"}, {
        "GetFunction": (NOT_FOUND[0], f"Function not found: {ARN}shared:1221"),
        "GetFunctionConfiguration": (NOT_FOUND[0], f"Function not found: {ARN}shared:1221"),
        "GetFunctionEventInvokeConfig": (
            NOT_FOUND[0], f"The function {ARN}shared:1221 doesn't have an EventInvokeConfig",
        ),
        "GetProvisionedConcurrencyConfig": (NOT_FOUND[0], f"Function not found: {ARN}shared:1221"),
        "DeleteProvisionedConcurrencyConfig": (NOT_FOUND[0], f"Function not found: {ARN}shared:1221"),
    }),
    ("latest-of-an-absent-function", {"FunctionName": "some-function", "Qualifier": "$LATEST"}, {
        "GetFunction": (NOT_FOUND[0], f"Function not found: {ARN}some-function:$LATEST"),
        "GetFunctionConfiguration": (NOT_FOUND[0], f"Function not found: {ARN}some-function:$LATEST"),
        "DeleteFunction": (VALUE[0], "$LATEST version cannot be deleted without deleting the function."),
    }),
    ("latest-in-name-and-parameter", {"FunctionName": f"{ARN}some-function:$LATEST", "Qualifier": "$LATEST"}, {
        "GetFunction": (NOT_FOUND[0], f"Function not found: {ARN}some-function:$LATEST"),
        "DeleteFunction": (VALUE[0], "$LATEST version cannot be deleted without deleting the function."),
    }),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "parameters", "said"),
    [(name, given, said) for _, given, all_said in ODD for name, said in all_said.items()],
    ids=[f"{label}-{name}" for label, _, all_said in ODD for name in all_said],
)
def test_a_name_that_no_function_has_is_refused(
    wire: Wire, shared: str, name: str, parameters: dict[str, str], said: Said
) -> None:
    answer = wire.call(name, {**parameters, **(NEW if name == "CreateFunction" else {})})
    code, message = said
    if code == "pattern":
        # Invoke's input has no place in the file of operations; its name has the same pattern as GetFunction's.
        code, at = "ValidationException", f"{message[0].lower()}{message[1:]}"
        limit = pattern_of(name, message)
        message = f"1 validation error detected: Value '{parameters[message]}' at '{at}' {limit}"
    assert (answer.code, answer.message) == (code, message)


FORMS = {
    "name": "{name}",
    "with-function": "function:{name}",
    "partial-arn": f"{ACCOUNT}:function:{{name}}",
    "arn": f"{ARN}{{name}}",
}
QUALIFIED_FORMS = {f"{label}-qualified": f"{form}:{{qualifier}}" for label, form in FORMS.items()}
# Operations that read something of a function, which all of its names must lead to: with no qualifier, and with one.
READ: dict[str, dict[str, Any]] = {
    "GetFunction": {},
    "GetFunctionConfiguration": {},
    "GetFunctionConcurrency": {},
    "GetFunctionCodeSigningConfig": {},
    "GetFunctionRecursionConfig": {},
    "GetRuntimeManagementConfig": {},
    "GetAlias": {"Name": "live"},
    "GetPolicy": {},
    "ListAliases": {},
    "ListVersionsByFunction": {},
    "ListFunctionEventInvokeConfigs": {},
    "ListFunctionUrlConfigs": {},
    "ListProvisionedConcurrencyConfigs": {},
    "ListEventSourceMappings": {},
    "Invoke": {},
    "InvokeAsync": {},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", READ)
def test_each_form_of_a_name_leads_to_the_function(wire: Wire, shared: str, name: str, form: str) -> None:
    given = FORMS[form].format(name=shared)
    if name in ("Invoke", "InvokeAsync"):
        answer = wire.call(name, {"FunctionName": given})
    else:
        answer = wire.call(name, {"FunctionName": given, **READ[name]})
        plain = wire.call(name, {"FunctionName": shared, **READ[name]})
        assert {**answer.document, "Code": None} == {**plain.document, "Code": None}
    assert answer.status == operation(name).http["responseCode"], answer.body


QUALIFIED = ("GetFunction", "GetFunctionConfiguration", "GetRuntimeManagementConfig", "Invoke")


@pytest.mark.parametrize("qualifier", ["$LATEST", "1", "live"])
@pytest.mark.parametrize("form", QUALIFIED_FORMS)
@pytest.mark.parametrize("name", QUALIFIED)
def test_a_qualifier_may_be_in_the_name_or_beside_it(
    wire: Wire, shared: str, name: str, form: str, qualifier: str
) -> None:
    given = QUALIFIED_FORMS[form].format(name=shared, qualifier=qualifier)
    in_name = wire.call(name, {"FunctionName": given})
    assert in_name.status == 200, in_name.body
    beside = wire.call(name, {"FunctionName": shared, "Qualifier": qualifier})
    both = wire.call(name, {"FunctionName": given, "Qualifier": qualifier})
    for other in (beside, both):
        if name == "Invoke":
            found = [answer.document["arn"] for answer in (in_name, other)]
            assert in_name.headers["x-amz-executed-version"] == ("1" if qualifier == "live" else qualifier)
        else:
            found = [{**answer.document, "Code": None} for answer in (in_name, other)]
        assert found[0] == found[1]


# Operations on the whole function, which refuse a version or an alias.
ONLY_FUNCTIONS: dict[str, dict[str, Any]] = {
    "PutFunctionConcurrency": {"ReservedConcurrentExecutions": 1},
    "UpdateFunctionCode": {"ZipFile": CODE},
    "UpdateFunctionConfiguration": {"Timeout": 5},
    "PublishVersion": {},
}


@pytest.mark.parametrize("qualifier", ["1", "live"])
@pytest.mark.parametrize("name", ONLY_FUNCTIONS)
def test_what_concerns_a_whole_function_is_refused_for_a_version(
    wire: Wire, shared: str, name: str, qualifier: str
) -> None:
    answer = wire.call(name, {"FunctionName": f"{ARN}{shared}:{qualifier}", **ONLY_FUNCTIONS[name]})
    assert (answer.code, answer.status) == VALUE
    assert answer.message == (
        "This operation is permitted on Lambda functions only. Aliases and versions do not support this operation. "
        "Please specify either a function name or an unqualified function ARN."
    )
