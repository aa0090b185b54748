"""CloudFormation's engine for unit tests: resources are entries of a dictionary, and operations run in the caller."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from thawd.server.emulator.cloudformation import nested_stacks
from thawd.server.emulator.cloudformation.api import StackOperations
from thawd.server.emulator.cloudformation.change_sets import ChangeSets
from thawd.server.emulator.cloudformation.engine import Engine
from thawd.server.emulator.cloudformation.errors import LeftBehind, ResourceError
from thawd.server.emulator.cloudformation.providers.aws_clients import Aws
from thawd.server.emulator.cloudformation.providers.kinds_by_type import Registry
from thawd.server.emulator.cloudformation.providers.resource_kind import Kind, Made, Wanted
from thawd.server.emulator.cloudformation.resource_changes import Services
from thawd.server.emulator.cloudformation.stack_files import StackStore
from thawd.server.emulator.cloudformation.stack_records import Resource, Stack
from thawd.server.emulator.cloudformation.template_plans import Planner

PLACE = ("123456789012", "us-east-1")
Properties = dict[str, Any]


class _World(Aws):
    """What exists: things by name, templates by their URL, parameters by name."""

    def __init__(self) -> None:
        super().__init__(lambda service, **more: None)
        self.things: dict[str, Properties] = {}
        self.templates: dict[str, str] = {}
        self.parameters: dict[str, str] = {}

    def call(self, service: str, method: str, given: Mapping[str, Any]) -> Properties:
        if service == "ssm":
            return {"Parameter": {"Value": self.parameters[given["Name"]]}}
        text = self.templates[f"s3://{given['Bucket']}/{given['Key']}"]
        return {"Body": io.BytesIO(text.encode())}


class _Inline(Engine):
    """Runs operations in the caller, when it is told to."""

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self._waiting: list[tuple[Stack, Callable[[Stack], None]]] = []

    def start(self, stack: Stack, work: Callable[[Stack], None]) -> None:
        self._waiting.append((stack, work))

    def run(self) -> None:
        """Run the operations that have been started."""
        while self._waiting:
            self._run(*self._waiting.pop(0))


class Cloud:
    """An engine with its records.

    A thing has the properties that its template gives. ``Fixed`` replaces it, ``Fail`` makes its creation or change
    fail, ``HalfMade`` makes its creation fail and leaves it there, ``Stays`` makes its deletion fail.

    Args:
        folder: folder for the records.

    Attributes:
        things: the things that exist, by their physical ids.
        saved: the things as they were when the services' state was saved last.
        calls: what happened to things: ``make A``, ``change A``, ``delete A``, with their logical ids.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.calls, self.lines = folder, list[str](), list[str]()
        self.world = _World()
        self.saved: dict[str, Properties] = {}
        self._numbers = 0
        self._start()

    def _start(self) -> None:
        registry = Registry(contextlib.nullcontext)
        store = StackStore(self.folder, self.lines.append)
        services = Services(
            store=store,
            planner=Planner(store, self.world, registry),
            registry=registry,
            aws=self.world,
            settle=self._settle,
            notify=lambda stack, event: None,
            complain=self.lines.append,
            ending=threading.Event(),
        )
        self.store, self.engine = store, _Inline(services)
        registry.add(nested_stacks.kinds(self.engine, services))
        registry.add({"Test::Thing": self._kind(), "Test::Other": self._kind()})
        self.stacks, self.change_sets = StackOperations(services, self.engine), ChangeSets(services, self.engine)

    def restart(self) -> None:
        """End without a warning, and start again: things that were changed since the last save are as they were."""
        self.world.things = copy.deepcopy(self.saved)
        self._start()
        self.engine.find_interrupted()
        self.engine.resume()
        self.engine.run()

    @property
    def things(self) -> dict[str, Properties]:
        return self.world.things

    def _settle(self) -> None:
        self.saved = copy.deepcopy(self.world.things)

    def _kind(self) -> Kind:
        def make(aws: Aws, wanted: Wanted) -> Made:
            self.calls.append(f"make {wanted.logical_id}")
            self._numbers += 1
            name = wanted.properties.get("Name") or f"{wanted.logical_id}-{self._numbers}"
            if wanted.properties.get("HalfMade"):
                self.things[name] = {}
                raise LeftBehind("half made", name)
            _refuse(wanted.properties)
            self.things[name] = dict(wanted.properties)
            secrets = frozenset([wanted.properties["Secret"]]) if "Secret" in wanted.properties else frozenset[str]()
            return Made(name, {"Secret": wanted.properties.get("Secret", "")}, {"name": name}, secrets)

        def change(aws: Aws, resource: Resource, wanted: Wanted) -> None:
            self.calls.append(f"change {wanted.logical_id}")
            _refuse(wanted.properties)
            self.things[resource.physical_id] = dict(wanted.properties)

        def delete(aws: Aws, resource: Resource) -> None:
            self.calls.append(f"delete {resource.logical_id}")
            if self.things.get(resource.physical_id, {}).get("Stays"):
                raise ResourceError("it stays")
            self.things.pop(resource.physical_id or resource.name, None)

        return Kind(
            make,
            delete,
            change,
            fixed=frozenset({"Fixed"}),
            named="Name",
            expected=lambda wanted: {"name": wanted.name},
            exists=lambda aws, facts: facts["name"] in self.things,
        )

    # Requests

    def create(self, name: str, body: str, **given: Any) -> str:
        """Create a stack; returns its status."""
        made = self.stacks.create_stack(PLACE, {"StackName": name, "TemplateBody": body, **given})
        self.engine.run()
        return self.status(made["StackId"])

    def update(self, name: str, body: str, **given: Any) -> str:
        """Update a stack; returns its status."""
        self.stacks.update_stack(PLACE, {"StackName": name, "TemplateBody": body, **given})
        self.engine.run()
        return self.status(name)

    def delete(self, name: str, **given: Any) -> str:
        """Delete a stack; returns its status."""
        identifier = self.stack(name).id
        self.stacks.delete_stack(PLACE, {"StackName": name, **given})
        self.engine.run()
        return self.status(identifier)

    def stack(self, name: str) -> Stack:
        """The record of a stack."""
        return self.store.get(*PLACE, name)

    def status(self, name: str) -> str:
        """The status of a stack."""
        return self.stack(name).status

    def named(self) -> dict[str, Any]:
        """The things' property ``Value``, by the beginning of their physical ids."""
        return {name.partition("-")[0]: properties.get("Value") for name, properties in self.things.items()}


class StoppedError(BaseException):
    """The process ends at this point."""


def _refuse(properties: Properties) -> None:
    if properties.get("Dies"):
        raise StoppedError
    if properties.get("Fail"):
        raise ResourceError(str(properties["Fail"]))


def thing(*needs: str, kind: str = "Test::Thing", **properties: Any) -> Properties:
    """A thing in a template."""
    return {"Type": kind, "Properties": properties, "DependsOn": list(needs)}


def body(outputs: Properties | None = None, parameters: Properties | None = None, **resources: Any) -> str:
    """A template."""
    return json.dumps({"Resources": resources, "Outputs": outputs or {}, "Parameters": parameters or {}})


def child(url: str = "s3://b/child", **parameters: Any) -> Properties:
    """A nested stack in a template."""
    return {"Type": "AWS::CloudFormation::Stack", "Properties": {"TemplateURL": url, "Parameters": parameters}}
