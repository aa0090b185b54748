"""Makes nested stacks: resources of the type AWS::CloudFormation::Stack.

Source: CloudFormation template reference, "AWS::CloudFormation::Stack".
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import msgspec

from thawd.deploy.templates.refusals import TemplateError
from thawd.server.emulator.cloudformation import capabilities
from thawd.server.emulator.cloudformation.engine import Engine
from thawd.server.emulator.cloudformation.errors import LeftBehind, ResourceError, StackError
from thawd.server.emulator.cloudformation.providers.aws_clients import Aws, tags_of
from thawd.server.emulator.cloudformation.providers.resource_kind import Kind, Made, Wanted
from thawd.server.emulator.cloudformation.resource_changes import Services, Steps
from thawd.server.emulator.cloudformation.stack_records import STACK_TYPE, Resource, Settings, Stack, new_stack_id
from thawd.server.emulator.cloudformation.template_urls import fetched
from thawd.server.emulator.cloudformation.templates_shown import transforms_in

Properties = dict[str, Any]

# A nested stack is changed. What it no longer needs is deleted when its parent's update cannot fail any more.
_CHANGED = "UPDATE_COMPLETE_CLEANUP_IN_PROGRESS"
_SOUND = ("CREATE_COMPLETE", "UPDATE_COMPLETE", _CHANGED)


def kinds(engine: Engine, services: Services) -> dict[str, Kind]:
    """Return the kind of nested stacks, by its type. The operation on the parent makes them in its own thread."""
    nested = _NestedStacks(engine, services)
    return {
        STACK_TYPE: Kind(
            nested.make,
            nested.delete,
            nested.change,
            expected=lambda wanted: {"name": wanted.name},
            differs=nested.differs,
            finish=nested.finish,
        ),
    }


class _NestedStacks:
    def __init__(self, engine: Engine, services: Services) -> None:
        self._engine = engine
        self._services = services

    def make(self, aws: Aws, wanted: Wanted) -> Made:
        parent = wanted.stack
        child = Stack(
            id=new_stack_id(parent.region, parent.account, wanted.name),
            name=wanted.name,
            account=parent.account,
            region=parent.region,
            settings=self._settings_of(wanted),
            created_s=time.time(),
            status="",
            on_failure="DO_NOTHING",
            parent_id=parent.id,
            root_id=parent.root_id or parent.id,
            token=parent.token,
        )
        self._require_capabilities(child, child.settings)
        Steps(self._services, child).set("CREATE_IN_PROGRESS", "User Initiated")
        self._engine.create(child)
        if child.status != "CREATE_COMPLETE":
            reason = child.reason
            Steps(self._services, child).set("DELETE_IN_PROGRESS")
            self._engine.delete(child, is_rollback=True)
            message = f"Embedded stack {child.id} was not successfully created: {reason}"
            raise ResourceError(message) if child.is_deleted else LeftBehind(message)
        return _made_of(child)

    def _require_capabilities(self, child: Stack, settings: Settings) -> None:
        """Refuse a template that needs capabilities which the request about the outermost stack did not give."""
        try:
            plan, transforms = self._services.planner.plan(child, settings), transforms_in(settings.template)
        except (StackError, TemplateError):
            return  # the operation on the stack fails with this error, and shows it in the stack's events
        if reason := capabilities.missing_for(plan, settings.capabilities, transforms):
            raise ResourceError(reason)

    def change(self, aws: Aws, resource: Resource, wanted: Wanted) -> Made:
        child, is_back = self._services.store.by_id(resource.physical_id), wanted.former is not None
        if child is None or child.is_deleted:
            raise ResourceError(f"Stack with id {resource.physical_id} does not exist")
        if child.status == _CHANGED and is_back:  # the parent returns to the state before
            Steps(self._services, child).set("UPDATE_ROLLBACK_IN_PROGRESS")
        if child.is_busy and child.status != _CHANGED:  # also when the process ended meanwhile
            self._engine.roll_update_back(child)
        settings = self._settings_of(wanted) if wanted.former is None else _former_settings(child, wanted.former)
        is_sound = child.status in _SOUND or (is_back and child.status == "UPDATE_ROLLBACK_COMPLETE")
        if is_sound and settings == child.settings and (is_back or not self._has_other_inside(child)):
            return _made_of(child)
        if not is_back:
            self._require_capabilities(child, settings)
        self._engine.begin_update(child, settings)
        self._engine.update(child, is_nested=True)
        if child.status not in _SOUND:
            reason = next((e.reason for e in reversed(child.events) if e.status.endswith("_FAILED")), child.reason)
            raise ResourceError(f"Embedded stack {child.id} was not successfully updated: {reason}")
        return _made_of(child)

    def differs(self, resource: Resource) -> bool:
        """Whether there is another template now at the address of a nested stack, or of one that is nested in it."""
        child = self._services.store.by_id(resource.physical_id)
        if child is None:
            return False
        with contextlib.suppress(StackError):  # it cannot be read any more, so the stack stays as it is
            if fetched(self._services.aws, resource.properties["TemplateURL"]) != child.settings.template:
                return True
        return self._has_other_inside(child)

    def _has_other_inside(self, stack: Stack) -> bool:
        return any(self.differs(one) for one in list(stack.resources.values()) if one.kind == STACK_TYPE)

    def finish(self, resource: Resource) -> None:
        child = self._services.store.by_id(resource.physical_id)
        if child is not None and child.status == _CHANGED:
            self._engine.clean_up(child)

    def delete(self, aws: Aws, resource: Resource) -> None:
        name = resource.facts["name"]
        for child in self._services.store.all():
            is_there = not child.is_deleted or child.clean_up  # what a kill has brought back is on its list
            if child.name == name and child.parent_id is not None and is_there:
                Steps(self._services, child).set("DELETE_IN_PROGRESS")
                self._engine.delete(child)
                if not child.is_deleted:
                    raise ResourceError(f"Embedded stack {child.id} was not successfully deleted: {child.reason}")

    def _settings_of(self, wanted: Wanted) -> Settings:
        properties, parent = wanted.properties, wanted.stack.settings
        parameters = {
            name: ",".join(map(str, value)) if isinstance(value, list) else _text(value)
            for name, value in (properties.get("Parameters") or {}).items()
        }
        return Settings(
            template=fetched(self._services.aws, properties["TemplateURL"]),
            parameters=parameters,
            tags={**parent.tags, **(tags_of(properties) or {})},
            notification_arns=properties.get("NotificationARNs") or [],
            role_arn=parent.role_arn,
            capabilities=parent.capabilities,
        )


def _made_of(child: Stack) -> Made:
    attributes = {f"Outputs.{output.key}": output.value for output in child.outputs}
    former = {"template": child.settings.template, "parameters": child.settings.parameters}
    return Made(child.id, attributes, {"name": child.name, **former})


def _former_settings(child: Stack, former: Properties) -> Settings:
    return msgspec.structs.replace(child.settings, template=former["template"], parameters=former["parameters"])


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
