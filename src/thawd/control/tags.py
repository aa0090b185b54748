"""Tags of functions and event source mappings.

Source: AWS Lambda API reference, the operations that the docstrings name.
"""

from __future__ import annotations

from typing import Any

import msgspec

from thawd.control.event_source_mapping_records import SourceMapping
from thawd.control.function_records import Family, Parameters
from thawd.control.names import parse_function
from thawd.control.registry import Registry
from thawd.errors import (
    InvalidParameterValueException,
    ResourceNotFoundException,
)

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
                raise ResourceNotFoundException("The resource you requested does not exist.")
            return mapping
        if ":function:" not in arn:
            raise ResourceNotFoundException(f"{arn} is not a function or an event source mapping; only these have tags")
        name, qualifier = parse_function(arn)
        if qualifier is not None:
            raise InvalidParameterValueException("Tags on function aliases and versions are not supported.")
        return self._registry.family(name)

    def list(self, parameters: Parameters) -> dict[str, Any]:
        """ListTags."""
        return {"Tags": self._owner(parameters).tags}

    async def add(self, parameters: Parameters) -> None:
        """TagResource."""
        owner = self._owner(parameters)
        tags = {**owner.tags, **parameters["Tags"]}
        if len(tags) > MAX_TAGS:
            raise InvalidParameterValueException(f"The maximum number of tags for a resource is {MAX_TAGS}")
        await self._set(owner, tags)

    async def remove(self, parameters: Parameters) -> None:
        """UntagResource."""
        owner = self._owner(parameters)
        await self._set(owner, {name: value for name, value in owner.tags.items() if name not in parameters["TagKeys"]})

    async def _set(self, owner: Family | SourceMapping, tags: dict[str, str]) -> None:
        if isinstance(owner, Family):
            owner.tags = tags
            await self._registry.save(owner)
        else:
            await self._registry.save_mapping(msgspec.structs.replace(owner, tags=tags))
