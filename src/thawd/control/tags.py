"""Tags of functions and event source mappings.

Source: AWS Lambda API reference, the operations that the docstrings name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from thawd.control.event_source_mapping_records import SourceMapping
from thawd.control.function_records import Family, Parameters, new_revision
from thawd.control.names import parse_function
from thawd.control.registry import Registry
from thawd.errors import (
    InvalidParameterValueException,
    ResourceNotFoundException,
    ValidationException,
)
from thawd.resources import LATEST

MAX_TAGS = 50


class Tags:
    """ListTags, TagResource, UntagResource."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def _owner(self, parameters: Parameters) -> Family | SourceMapping:
        """The resource that a request's ARN names: a function, or a mapping that was made through the API."""
        arn = parameters["Resource"]
        if ":event-source-mapping:" in arn:
            mapping = self._registry.mappings.get(arn.rpartition(":")[2])
            if mapping is None:
                raise ResourceNotFoundException(f"Event source mapping not found: {arn}")
            return mapping
        if ":function:" not in arn:
            kind = arn.split(":")[5].replace("-", " ").capitalize()
            raise ResourceNotFoundException(f"{kind} not found: {arn}")
        name, qualifier = parse_function(arn)
        if qualifier is not None:
            raise InvalidParameterValueException(
                "Tags on function aliases and versions are not supported. Please specify a function ARN."
            )
        return self._registry.family(name)

    def list(self, parameters: Parameters) -> dict[str, Any]:
        """ListTags."""
        return {"Tags": self._owner(parameters).tags}

    async def add(self, parameters: Parameters) -> None:
        """TagResource."""
        owner = self._owner(parameters)
        if not parameters["Tags"]:
            raise InvalidParameterValueException("An error occurred and the request cannot be processed.")
        tags = {**owner.tags, **parameters["Tags"]}
        check_number(tags)
        await self._set(owner, tags)

    async def remove(self, parameters: Parameters) -> None:
        """UntagResource."""
        owner = self._owner(parameters)
        if not parameters["TagKeys"]:
            raise ValidationException(
                "1 validation error detected: Value null at 'tagKeys' failed to satisfy constraint: Member must not be "
                "null"
            )
        await self._set(owner, {name: value for name, value in owner.tags.items() if name not in parameters["TagKeys"]})

    async def _set(self, owner: Family | SourceMapping, tags: dict[str, str]) -> None:
        if isinstance(owner, Family):
            owner.tags = tags
            latest = owner.versions[LATEST]
            latest.revision = new_revision()
            await self._registry.save(owner, latest)
        else:
            await self._registry.save_mapping(msgspec.structs.replace(owner, tags=tags))


def check_number(tags: Mapping[str, str]) -> None:
    """Check that a resource may have so many tags.

    Raises:
        InvalidParameterValueException: there are more than `MAX_TAGS` (400).
    """
    if len(tags) > MAX_TAGS:
        raise InvalidParameterValueException("Number of tags exceeds resource tag limit.")
