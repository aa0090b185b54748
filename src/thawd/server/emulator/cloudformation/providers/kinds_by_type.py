"""Finds the kind of a resource type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thawd.server.emulator.cloudformation.errors import ResourceError
from thawd.server.emulator.cloudformation.providers import (
    buckets,
    custom_resources,
    documents_in_s3,
    event_rules,
    functions,
    http_apis,
    log_groups,
    moto_models,
    parameters_and_secrets,
    plain_apis,
    queues_and_topics,
    rest_apis,
    roles_and_policies,
    schedules,
    security_groups,
    tables,
    types_without_effect,
    wait_conditions,
)
from thawd.server.emulator.cloudformation.providers.callback_server import Callbacks
from thawd.server.emulator.cloudformation.providers.resource_kind import Kind
from thawd.server.emulator.cloudformation.stack_records import Resource

# Kinds of other services that thawd has, so a resource of theirs that has no kind is not left to moto.
_OURS = ("AWS::Lambda::", "AWS::ApiGateway::", "AWS::ApiGatewayV2::")


class Registry:
    """The kinds of resources.

    Args:
        changing: returns a context in which moto's state may change.
    """

    def __init__(self, changing: moto_models.Changing) -> None:
        callbacks = Callbacks()
        self._kinds: dict[str, Kind] = {
            **functions.KINDS,
            **rest_apis.KINDS,
            **http_apis.KINDS,
            **log_groups.KINDS,
            **schedules.KINDS,
            **event_rules.KINDS,
            **queues_and_topics.KINDS,
            **tables.KINDS,
            **buckets.KINDS,
            **parameters_and_secrets.KINDS,
            **roles_and_policies.KINDS,
            **plain_apis.KINDS,
            **security_groups.KINDS,
            **wait_conditions.kinds(callbacks),
        }
        self._custom = custom_resources.kind_of(callbacks)
        self._moto = moto_models.MotoModels(changing)

    def add(self, kinds: Mapping[str, Kind]) -> None:
        """Add kinds of further types."""
        self._kinds.update(kinds)

    def find(self, kind: str) -> Kind:
        """Return the kind of a type.

        Raises:
            ResourceError: thawd cannot make resources of this type.
        """
        found = self._find(kind)
        if found is not None:
            return found
        if types_without_effect.missing_without(kind) is not None:
            return types_without_effect.KIND
        if kind.startswith("AWS::Serverless::"):
            raise ResourceError(f"{kind} needs the template's line Transform: AWS::Serverless-2016-10-31")
        known = sorted(name for name in self._kinds if name.startswith(kind.rpartition("::")[0] + "::"))
        raise ResourceError(
            f"thawd cannot make resources of the type {kind}"
            + (f"; of this service it knows {', '.join(known)}" if known else "; neither does the emulator")
        )

    def missing(self, kind: str) -> str | None:
        """Return what a stack does not do because resources of this type are only recorded; None or empty: nothing."""
        return types_without_effect.missing_without(kind) if self._find(kind) is None else None

    def attributes(self, resource: Resource) -> Mapping[str, Any]:
        """Return the values of Fn::GetAtt for a resource, by name."""
        return moto_models.attributes_of(resource)

    def _find(self, kind: str) -> Kind | None:
        if custom_resources.is_custom(kind):
            return self._custom
        found = self._kinds.get(kind)
        if found is None and not kind.startswith(_OURS):
            is_needed = types_without_effect.missing_without(kind) is None
            found = self._moto.find(kind, everywhere=is_needed)
        return None if found is None else documents_in_s3.reading(kind, found)
