"""Resource-based policies of functions and layers. They are stored and shown, but thawd does not enforce them.

Source: AWS Lambda API reference, the operations that the docstrings name.
"""

from __future__ import annotations

import json
from typing import Any

from thawd.control.function_records import Family, Parameters, ResourcePolicy, new_revision
from thawd.control.names import function_arn, parse_function
from thawd.control.registry import Registry, check_revision
from thawd.errors import (
    PolicyLengthExceededException,
    ResourceConflictException,
    ResourceNotFoundException,
)
from thawd.resources import LATEST

MAX_POLICY_BYTES = 20_480


class Permissions:
    """AddPermission, RemovePermission, GetPolicy."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def add(self, parameters: Parameters) -> dict[str, Any]:
        """AddPermission."""
        family, qualifier = self._qualified(parameters)
        policy = family.policies.get(qualifier, ResourcePolicy())
        check_revision(parameters.get("RevisionId"), policy.revision, what="GetPolicy")
        if any(statement["Sid"] == parameters["StatementId"] for statement in policy.statements):
            raise ResourceConflictException(
                f"The statement id ({parameters['StatementId']}) provided already exists. Please provide a new "
                "statement id, or remove the existing statement."
            )
        resource = function_arn(family.name, None if qualifier == LATEST else qualifier)
        made = statement_of(parameters, resource)
        statements = [*policy.statements, made]
        if len(json.dumps(statements)) > MAX_POLICY_BYTES:
            raise PolicyLengthExceededException(f"The final policy size is bigger than the limit ({MAX_POLICY_BYTES}).")
        family.policies[qualifier] = ResourcePolicy(statements, new_revision())
        await self._registry.save(family)
        return {"Statement": json.dumps(made, separators=(",", ":"))}

    async def remove(self, parameters: Parameters) -> None:
        """RemovePermission."""
        family, qualifier = self._qualified(parameters)
        policy = family.policies.get(qualifier, ResourcePolicy())
        check_revision(parameters.get("RevisionId"), policy.revision, what="GetPolicy")
        remaining = [statement for statement in policy.statements if statement["Sid"] != parameters["StatementId"]]
        if len(remaining) == len(policy.statements):
            raise ResourceNotFoundException(f"Statement {parameters['StatementId']} is not found in resource policy.")
        if remaining:
            family.policies[qualifier] = ResourcePolicy(remaining, new_revision())
        else:
            family.policies.pop(qualifier)
        await self._registry.save(family)

    def get(self, parameters: Parameters) -> dict[str, Any]:
        """GetPolicy."""
        family, qualifier = self._qualified(parameters)
        policy = family.policies.get(qualifier)
        if policy is None:
            raise ResourceNotFoundException("The resource you requested does not exist.")
        return {"Policy": policy_document(policy.statements), "RevisionId": policy.revision}

    def _qualified(self, parameters: Parameters) -> tuple[Family, str]:
        name, qualifier = parse_function(parameters["FunctionName"], parameters.get("Qualifier"))
        family = self._registry.family(name)
        return family, self._registry.qualified(name, qualifier)


def statement_of(parameters: Parameters, resource: str) -> dict[str, Any]:
    """The IAM policy statement for the parameters of AddPermission."""
    principal: Any = parameters["Principal"]
    if principal != "*":
        is_service = "." in principal and not principal.startswith("arn:")
        if not is_service and not principal.startswith("arn:"):
            principal = f"arn:aws:iam::{principal}:root"
        principal = {"Service": principal} if is_service else {"AWS": principal}
    made = {
        "Sid": parameters["StatementId"],
        "Effect": "Allow",
        "Principal": principal,
        "Action": parameters["Action"],
        "Resource": resource,
    }
    conditions: dict[str, Any] = {}
    for name, operator, key in (
        ("SourceAccount", "StringEquals", "AWS:SourceAccount"),
        ("SourceArn", "ArnLike", "AWS:SourceArn"),
        ("EventSourceToken", "StringEquals", "lambda:EventSourceToken"),
        ("PrincipalOrgID", "StringEquals", "aws:PrincipalOrgID"),
        ("FunctionUrlAuthType", "StringEquals", "lambda:FunctionUrlAuthType"),
        ("OrganizationId", "StringEquals", "aws:PrincipalOrgID"),
    ):
        if name in parameters:
            conditions.setdefault(operator, {})[key] = parameters[name]
    return {**made, "Condition": conditions} if conditions else made


def policy_document(statements: Any) -> str:
    """The IAM policy document with `statements`, as JSON text."""
    return json.dumps({"Version": "2012-10-17", "Id": "default", "Statement": statements}, separators=(",", ":"))
