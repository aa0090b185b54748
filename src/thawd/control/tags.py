"""Tags of functions.

Source: AWS Lambda API reference, the operations named.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thawd.control.names import parse_function
from thawd.control.records import Family
from thawd.control.registry import Registry
from thawd.errors import (
    InvalidParameterValueException,
    ResourceNotFoundException,
)

Given = Mapping[str, Any]
MAX_TAGS = 50


class Tags:
    """ListTags, TagResource, UntagResource; functions only."""

    def __init__(self, known: Registry) -> None:
        self._registry = known

    def _family(self, given: Given) -> Family:
        arn = given["Resource"]
        if ":function:" not in arn:
            raise ResourceNotFoundException(f"There is nothing with tags under {arn}; functions have them")
        name, qualifier = parse_function(arn)
        if qualifier is not None:
            raise InvalidParameterValueException("Tags on function aliases and versions are not supported.")
        return self._registry.family(name)

    def list(self, given: Given) -> dict[str, Any]:
        """ListTags."""
        return {"Tags": self._family(given).tags}

    async def add(self, given: Given) -> None:
        """TagResource."""
        family = self._family(given)
        tags = {**family.tags, **given["Tags"]}
        if len(tags) > MAX_TAGS:
            raise InvalidParameterValueException(f"The maximum number of tags for a resource is {MAX_TAGS}")
        await self._set(family, tags)

    async def remove(self, given: Given) -> None:
        """UntagResource."""
        family = self._family(given)
        await self._set(family, {name: value for name, value in family.tags.items() if name not in given["TagKeys"]})

    async def _set(self, family: Family, tags: dict[str, str]) -> None:
        family.tags = tags
        await self._registry.save(family)
