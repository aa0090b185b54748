"""Whether a request acknowledges what its template can do: change permissions, or contain more than it shows.

Source: CloudFormation API reference, CreateStack, "Capabilities"; the words are those of recorded answers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from thawd.deploy.templates.preparation import Prepared
from thawd.server.emulator.cloudformation.errors import StackError

IAM, NAMED_IAM, AUTO_EXPAND = "CAPABILITY_IAM", "CAPABILITY_NAMED_IAM", "CAPABILITY_AUTO_EXPAND"
_NAMED = {
    "AWS::IAM::Role": "RoleName",
    "AWS::IAM::User": "UserName",
    "AWS::IAM::Group": "GroupName",
    "AWS::IAM::ManagedPolicy": "ManagedPolicyName",
    "AWS::IAM::InstanceProfile": "InstanceProfileName",
}
TYPES = frozenset({*_NAMED, "AWS::IAM::Policy", "AWS::IAM::AccessKey", "AWS::IAM::UserToGroupAddition"})
"""The types of resources that need a capability."""


def needed(resources: Iterable[tuple[str, Mapping[str, Any]]], transforms: Collection[str]) -> list[str]:
    """The capabilities that a template needs.

    Args:
        resources: type and properties of each resource.
        transforms: names of the template's transforms that have yet to be acknowledged.
    """
    found = [(kind, properties) for kind, properties in resources if kind in TYPES]
    names_them = any(_NAMED.get(kind, "") in properties for kind, properties in found)
    needs = ([NAMED_IAM] if names_them else [IAM]) if found else []
    return [*needs, AUTO_EXPAND] if transforms else needs


def missing(given: Collection[str], needs: Iterable[str]) -> str | None:
    """Return CloudFormation's message about missing capabilities; None if none is missing.

    `NAMED_IAM` includes `IAM`.
    """
    has = {*given, IAM} if NAMED_IAM in given else {*given}
    lacking = [name for name in needs if name not in has]
    return f"Requires capabilities : [{', '.join(lacking)}]" if lacking else None


def missing_for(plan: Prepared, given: Collection[str], transforms: Collection[str] = ()) -> str | None:
    """Return the message about capabilities missing for a plan's resources and for its `transforms`; or None."""
    resources = ((resource.type, resource.raw_properties) for resource in plan.resources.values())
    return missing(given, needed(resources, transforms))


def require(reason: str | None) -> None:
    """Refuse a request for what `missing` or `missing_for` has said.

    Raises:
        StackError: `reason` is not None.
    """
    if reason is not None:
        raise StackError(reason, "InsufficientCapabilitiesException")
