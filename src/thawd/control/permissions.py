"""Resource-based policies of functions and layers. They are stored and shown, but thawd does not enforce them.

Source: AWS Lambda API reference, the operations that the docstrings name.
"""

from __future__ import annotations

import json
import re
from typing import Any

from thawd.control.function_records import (
    Alias,
    Family,
    Parameters,
    ResourcePolicy,
    VersionRecord,
    assigned,
    new_revision,
    without,
)
from thawd.control.names import function_arn, parse_function
from thawd.control.registry import Registry, check_revision
from thawd.errors import (
    InvalidParameterValueException,
    PolicyLengthExceededException,
    ResourceConflictException,
    ResourceNotFoundException,
)
from thawd.resources import LATEST

# An account, an ARN, the host name of a service, or everybody.
_PRINCIPAL = re.compile(r"\*|\d{12}|arn:.+|[a-zA-Z0-9-]+(\.[a-zA-Z0-9-]+)+")
MAX_POLICY_BYTES = 20_480


class Permissions:
    """AddPermission, RemovePermission, GetPolicy."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def add(self, parameters: Parameters) -> dict[str, Any]:
        """AddPermission."""
        name, qualifier = parse_function(parameters["FunctionName"], parameters.get("Qualifier"))
        if qualifier == LATEST:
            raise InvalidParameterValueException("We currently do not support adding policies for $LATEST.")
        holder = self._holder(name, qualifier)
        family = self._registry.family(name)
        policy = family.policies.get(qualifier or LATEST, ResourcePolicy())
        self._check_revision(parameters, holder, policy)
        if any(statement["Sid"] == parameters["StatementId"] for statement in policy.statements):
            raise ResourceConflictException(
                f"The statement id ({parameters['StatementId']}) provided already exists. Please provide a new "
                "statement id, or remove the existing statement."
            )
        made = statement_of(parameters, function_arn(name, qualifier))
        statements = [*policy.statements, made]
        if len(json.dumps(statements)) > MAX_POLICY_BYTES:
            raise PolicyLengthExceededException(f"The final policy size is bigger than the limit ({MAX_POLICY_BYTES}).")
        await self._store(family, qualifier or LATEST, holder, statements)
        return {"Statement": json.dumps(made, separators=(",", ":"))}

    async def remove(self, parameters: Parameters) -> None:
        """RemovePermission."""
        name, qualifier = parse_function(parameters["FunctionName"], parameters.get("Qualifier"))
        if name not in self._registry.families:
            raise ResourceNotFoundException(f"No policy found for: {function_arn(name, qualifier)}")
        holder = self._holder(name, qualifier)
        family = self._registry.family(name)
        policy = family.policies.get(qualifier or LATEST)
        if policy is None:
            raise ResourceNotFoundException("No policy is associated with the given resource.")
        remaining = [statement for statement in policy.statements if statement["Sid"] != parameters["StatementId"]]
        if len(remaining) == len(policy.statements):
            raise ResourceNotFoundException(f"Statement {parameters['StatementId']} is not found in resource policy.")
        self._check_revision(parameters, holder, policy)
        await self._store(family, qualifier or LATEST, holder, remaining)

    async def _store(
        self, family: Family, qualifier: str, holder: VersionRecord | Alias, statements: list[dict[str, Any]]
    ) -> None:
        """Store the policy of a qualifier. Its function, version or alias gets a new revision id."""
        before, holder.revision = holder.revision, new_revision()
        if statements:
            family.policies = assigned(family.policies, qualifier, ResourcePolicy(statements, holder.revision))
        else:
            family.policies = without(family.policies, qualifier)
        try:
            await self._registry.save(family, *([holder] if isinstance(holder, VersionRecord) else []))
        except BaseException:
            holder.revision = before
            raise

    def get(self, parameters: Parameters) -> dict[str, Any]:
        """GetPolicy."""
        name, qualifier = parse_function(parameters["FunctionName"], parameters.get("Qualifier"))
        family = self._registry.families.get(name)
        policy = None if family is None else family.policies.get(qualifier or LATEST)
        if policy is None:
            raise ResourceNotFoundException("The resource you requested does not exist.")
        return {"Policy": policy_document(policy.statements), "RevisionId": policy.revision}

    def _holder(self, name: str, qualifier: str | None) -> VersionRecord | Alias:
        """The version or alias that a policy belongs to. It gets a new revision id with each change of the policy."""
        if qualifier is None:
            return self._registry.record(name)
        if "$" in qualifier:
            return self._registry.record(name, qualifier)
        record = self._registry.alias_or_version(name, qualifier)
        return self._registry.family(name).aliases.get(qualifier, record)

    def _check_revision(self, parameters: Parameters, holder: VersionRecord | Alias, policy: ResourcePolicy) -> None:
        """A policy has a revision id of its own. Before there is one, that of the version or alias takes its place."""
        check_revision(parameters.get("RevisionId"), policy.revision or holder.revision, what="GetPolicy")


def statement_of(parameters: Parameters, resource: str) -> dict[str, Any]:
    """The IAM policy statement for the parameters of AddPermission."""
    principal: Any = parameters["Principal"]
    if not _PRINCIPAL.fullmatch(principal):
        raise InvalidParameterValueException(
            "The provided principal was invalid. Please check the principal and try again."
        )
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
        ("InvokedViaFunctionUrl", "Bool", "lambda:InvokedViaFunctionUrl"),
        ("OrganizationId", "StringEquals", "aws:PrincipalOrgID"),
    ):
        if name in parameters:
            value = parameters[name]
            conditions.setdefault(operator, {})[key] = str(value).lower() if isinstance(value, bool) else value
    return {**made, "Condition": conditions} if conditions else made


def policy_document(statements: Any) -> str:
    """The IAM policy document with `statements`, as JSON text."""
    return json.dumps({"Version": "2012-10-17", "Id": "default", "Statement": statements}, separators=(",", ":"))
