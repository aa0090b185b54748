"""The values that templates evaluate to: JSON values, `Unknown` values, and the value of ``AWS::NoValue``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from thawd.deploy.templates.dynamic_references import DynamicReference


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that is known only once resources exist. In a plan it stands for a text, a list or a map.

    Attributes:
        references: the resources and attributes on which the value depends, such as ``{"Table", "Queue.Arn"}``.
    """

    references: frozenset[str]


class _NoValue:
    """The value of ``AWS::NoValue``: the property, item or argument that has it is left out."""

    def __repr__(self) -> str:
        return "AWS::NoValue"


NO_VALUE = _NoValue()


@dataclass(frozen=True, slots=True)
class Made:
    """A resource that exists.

    Attributes:
        physical_id: the value of ``Ref``.
        attributes: the values of ``Fn::GetAtt``, by name; ``Outputs.Name`` is an output of a nested stack.
    """

    physical_id: str
    attributes: Mapping[str, Any] = field(default_factory=dict)


def _no_export(_name: str) -> str | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class StackContext:
    """The values of a template's pseudo parameters and look-ups.

    Attributes:
        account_id: 12 digits.
        region: name of the region, for example ``eu-central-1``.
        stack_name: the stack's name.
        stack_id: the stack's ARN.
        partition: ``aws``, unless the region belongs to another one.
        url_suffix: the domain of AWS's services.
        notification_arns: topics that get the stack's events.
        availability_zones: returns the zones of a region; by default three, named after the region.
        exports: returns the value exported with a name, or None.
        resolve: returns the text behind a dynamic reference or behind an SSM parameter. Raises KeyError if there is
            none. Without it, both are refused.
        read: returns the text of a snippet for the macro AWS::Include, by its address in S3 or its path. Raises
            KeyError if there is none. Without it, the macro is refused.
    """

    account_id: str
    region: str
    stack_name: str
    stack_id: str
    partition: str = "aws"
    url_suffix: str = "amazonaws.com"
    notification_arns: tuple[str, ...] = ()
    availability_zones: Callable[[str], list[str]] = lambda region: [region + letter for letter in "abc"]
    exports: Callable[[str], str | None] = _no_export
    resolve: Callable[[DynamicReference], str] | None = None
    read: Callable[[str], str] | None = None

    def pseudo_parameters(self) -> dict[str, Any]:
        """Return the values of the pseudo parameters, by their names.

        Source: CloudFormation template reference, "Pseudo parameters".
        """
        return {
            "AWS::AccountId": self.account_id,
            "AWS::NotificationARNs": list(self.notification_arns),
            "AWS::NoValue": NO_VALUE,
            "AWS::Partition": self.partition,
            "AWS::Region": self.region,
            "AWS::StackId": self.stack_id,
            "AWS::StackName": self.stack_name,
            "AWS::URLSuffix": self.url_suffix,
        }


def unknown_in(values: Iterable[Any]) -> Unknown | None:
    """Return the unknown value that a text made of `values` would be, or None if all of them are known."""
    found: set[str] = set()
    for value in values:
        if isinstance(value, Unknown):
            found |= value.references
        elif isinstance(value, list | dict):
            inner = unknown_in(value.values() if isinstance(value, dict) else value)
            found |= inner.references if inner else set()
    return Unknown(frozenset(found)) if found else None


def is_scalar(value: Any) -> bool:
    """Return whether a value is a text, a number or a truth value."""
    return isinstance(value, str | bool | int | float)


def text_of(value: str | float) -> str:
    """Return a scalar as CloudFormation writes it into a text: ``true``, ``8``, ``0.5``."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
