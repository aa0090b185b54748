"""Reads the parameters of requests that create or change stacks.

Source: CloudFormation API reference, CreateStack, UpdateStack and CreateChangeSet.
"""

from __future__ import annotations

import re
from typing import Any

from thawd.server.emulator.cloudformation.errors import StackError
from thawd.server.emulator.cloudformation.providers.aws_clients import Aws
from thawd.server.emulator.cloudformation.stack_records import Settings, Stack
from thawd.server.emulator.cloudformation.template_urls import fetched

_STACK_NAME = re.compile(r"[a-zA-Z][-a-zA-Z0-9]{0,127}")

Parameters = dict[str, Any]


def require_name(name: Any) -> str:
    """Return the name of a new stack.

    Raises:
        StackError: no stack can have this name.
    """
    if not isinstance(name, str) or not _STACK_NAME.fullmatch(name):
        raise StackError(
            f"1 validation error detected: Value '{name}' at 'stackName' failed to satisfy constraint: Member must "
            "satisfy regular expression pattern: [a-zA-Z][-a-zA-Z0-9]*"
        )
    return name


def is_true(value: Any) -> bool:
    """Return a truth value of a request."""
    return str(value).lower() == "true"


def template_of(aws: Aws, given: Parameters, former: Stack | None) -> str:
    """Return the template of a request.

    Args:
        aws: has the objects that TemplateURL names.
        given: the request.
        former: the stack whose template UsePreviousTemplate means.

    Raises:
        StackError: there is none, or more than one.
    """
    body, url, previous = given.get("TemplateBody"), given.get("TemplateURL"), is_true(given.get("UsePreviousTemplate"))
    if previous and (body or url):
        raise StackError("You cannot specify both usePreviousTemplate and Template Body/Template URL.")
    if body and url:
        raise StackError("Either Template URL or Template Body must be specified, but not both.")
    if previous and former is not None and former.settings.template:
        return former.settings.template
    if url:
        return fetched(aws, str(url))
    if not body:
        raise StackError("Either Template URL or Template Body must be specified.")
    return str(body)


def settings_of(aws: Aws, given: Parameters, former: Stack | None = None) -> Settings:
    """Return the settings that a request gives a stack.

    Args:
        aws: has the objects that TemplateURL names.
        given: the request.
        former: the stack whose previous values the request may use.

    Raises:
        StackError: the request contradicts itself, or names something that does not exist.
    """
    old = former.settings if former is not None else None
    values: dict[str, str] = {}
    for one in given.get("Parameters") or []:
        name = one["ParameterKey"]
        if is_true(one.get("UsePreviousValue")):
            if one.get("ParameterValue"):
                raise StackError(
                    f"Invalid input for parameter key {name}. Cannot specify usePreviousValue as true and non empty "
                    "value for a parameter"
                )
            if old is not None and name in old.parameters:
                values[name] = old.parameters[name]
        else:
            values[name] = str(one.get("ParameterValue", ""))
    tags = {one["Key"]: str(one.get("Value", "")) for one in given.get("Tags") or []}
    return Settings(
        template=template_of(aws, given, former),
        parameters=values,
        tags=tags if "Tags" in given or old is None else old.tags,
        notification_arns=list(given.get("NotificationARNs") or (old.notification_arns if old else [])),
        role_arn=given.get("RoleARN") or (old.role_arn if old else None),
        capabilities=list(given.get("Capabilities") or []),
    )


def require_updatable(stack: Stack) -> None:
    """Refuse an update of a stack whose status does not allow one.

    Raises:
        StackError: the stack cannot be updated.
    """
    status = stack.status
    if status in ("CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE", "IMPORT_COMPLETE", "UPDATE_FAILED"):
        return
    if status == "CREATE_FAILED" and stack.on_failure == "DO_NOTHING":
        return
    raise StackError(f"Stack:{stack.id} is in {status} state and can not be updated.")
