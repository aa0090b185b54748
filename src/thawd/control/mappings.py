"""Event source mappings: thawd reads none of AWS's polled sources yet, and says so.

Source: AWS Lambda API reference, the operations named.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thawd.control.names import parse_function
from thawd.control.registry import Registry
from thawd.errors import InvalidParameterValueException, ResourceNotFoundException

Given = Mapping[str, Any]


class Mappings:
    """The operations on event source mappings."""

    def __init__(self, known: Registry) -> None:
        self._registry = known

    def create(self, given: Given) -> dict[str, Any]:
        """CreateEventSourceMapping: refused, as there is nothing that it could read.

        Raises:
            InvalidParameterValueException: always (400).
        """
        self._registry.family(parse_function(given["FunctionName"]).name)
        source = given.get("EventSourceArn", "none")
        raise InvalidParameterValueException(
            f"Unrecognized event source: {source}. thawd polls no queues and streams yet; have a bucket of thawd.toml "
            "notify the function, or invoke it"
        )

    def find(self, given: Given) -> dict[str, Any]:
        """GetEventSourceMapping, UpdateEventSourceMapping, DeleteEventSourceMapping.

        Raises:
            ResourceNotFoundException: always (404).
        """
        raise ResourceNotFoundException("The resource you requested does not exist.")

    def list(self, given: Given) -> dict[str, Any]:
        """ListEventSourceMappings."""
        if "FunctionName" in given:
            self._registry.family(parse_function(given["FunctionName"]).name)
        return {"EventSourceMappings": []}
