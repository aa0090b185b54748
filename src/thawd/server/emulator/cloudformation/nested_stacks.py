"""Makes nested stacks: resources of the type AWS::CloudFormation::Stack.

Source: CloudFormation template reference, "AWS::CloudFormation::Stack".
"""

from __future__ import annotations

import time
from typing import Any

from thawd.deploy.templates.refusals import TemplateError
from thawd.server.emulator.cloudformation import capabilities
from thawd.server.emulator.cloudformation.engine import Engine
from thawd.server.emulator.cloudformation.errors import ResourceError, StackError
from thawd.server.emulator.cloudformation.providers.aws_clients import Aws, tags_of
from thawd.server.emulator.cloudformation.providers.resource_kind import Kind, Made, Wanted
from thawd.server.emulator.cloudformation.resource_changes import Services, Steps
from thawd.server.emulator.cloudformation.stack_records import STACK_TYPE, Resource, Settings, Stack, new_stack_id
from thawd.server.emulator.cloudformation.template_urls import fetched
from thawd.server.emulator.cloudformation.templates_shown import transforms_in

Properties = dict[str, Any]


def kinds(engine: Engine, services: Services) -> dict[str, Kind]:
    """Return the kind of nested stacks, by its type. The operation on the parent makes them in its own thread."""

    def settings_of(wanted: Wanted) -> Settings:
        properties, parent = wanted.properties, wanted.stack.settings
        parameters = {
            name: ",".join(map(str, value)) if isinstance(value, list) else _text(value)
            for name, value in (properties.get("Parameters") or {}).items()
        }
        return Settings(
            template=fetched(services.aws, properties["TemplateURL"]),
            parameters=parameters,
            tags={**parent.tags, **(tags_of(properties) or {})},
            notification_arns=properties.get("NotificationARNs") or [],
            role_arn=parent.role_arn,
            capabilities=parent.capabilities,
        )

    def make(aws: Aws, wanted: Wanted) -> Made:
        parent = wanted.stack
        child = Stack(
            id=new_stack_id(parent.region, parent.account, wanted.name),
            name=wanted.name,
            account=parent.account,
            region=parent.region,
            settings=settings_of(wanted),
            created_s=time.time(),
            status="",
            on_failure="DO_NOTHING",
            parent_id=parent.id,
            root_id=parent.root_id or parent.id,
            token=parent.token,
        )
        require_capabilities(child, child.settings)
        Steps(services, child).set("CREATE_IN_PROGRESS", "User Initiated")
        engine.create(child)
        if child.status != "CREATE_COMPLETE":
            reason = child.reason
            Steps(services, child).set("DELETE_IN_PROGRESS")
            engine.delete(child, is_rollback=True)
            raise ResourceError(f"Embedded stack {child.id} was not successfully created: {reason}")
        return made_of(child)

    def require_capabilities(child: Stack, settings: Settings) -> None:
        """Refuse a template that needs capabilities which the request about the outermost stack did not give."""
        try:
            plan, transforms = services.planner.plan(child, settings), transforms_in(settings.template)
        except (StackError, TemplateError):
            return  # the operation on the stack fails with this error, and shows it in the stack's events
        if reason := capabilities.missing_for(plan, settings.capabilities, transforms):
            raise ResourceError(reason)

    def made_of(child: Stack) -> Made:
        attributes = {f"Outputs.{output.key}": output.value for output in child.outputs}
        former = {"template": child.settings.template, "parameters": child.settings.parameters}
        return Made(child.id, attributes, {"name": child.name, **former})

    def change(aws: Aws, resource: Resource, wanted: Wanted) -> Made:
        child = services.store.by_id(resource.physical_id)
        if child is None or child.is_deleted:
            raise ResourceError(f"Stack with id {resource.physical_id} does not exist")
        if child.is_busy:  # the process ended meanwhile
            engine.roll_update_back(child)
        if wanted.former is None:
            settings = settings_of(wanted)
            require_capabilities(child, settings)
        else:
            settings = Settings(
                template=wanted.former["template"],
                parameters=wanted.former["parameters"],
                tags=child.settings.tags,
                notification_arns=child.settings.notification_arns,
                role_arn=child.settings.role_arn,
                capabilities=child.settings.capabilities,
            )
        if settings != child.settings or child.status not in ("CREATE_COMPLETE", "UPDATE_COMPLETE"):
            engine.begin_update(child, settings)
            engine.update(child)
        if child.status not in ("CREATE_COMPLETE", "UPDATE_COMPLETE"):
            reason = next((e.reason for e in reversed(child.events) if e.status.endswith("_FAILED")), child.reason)
            raise ResourceError(f"Embedded stack {child.id} was not successfully updated: {reason}")
        return made_of(child)

    def delete(aws: Aws, resource: Resource) -> None:
        name = resource.facts["name"]
        for child in services.store.all():
            if child.name == name and child.parent_id is not None and not child.is_deleted:
                Steps(services, child).set("DELETE_IN_PROGRESS")
                engine.delete(child)
                if not child.is_deleted:
                    raise ResourceError(f"Embedded stack {child.id} was not successfully deleted: {child.reason}")

    return {
        STACK_TYPE: Kind(make, delete, change, expected=lambda wanted: {"name": wanted.name}),
    }


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
