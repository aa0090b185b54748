"""Computes what an update of a stack would change, without changing anything.

Change sets show the result. An update for which it is empty fails with "No updates are to be performed".
"""

from __future__ import annotations

from typing import Any

from thawd.deploy.templates.preparation import Prepared
from thawd.deploy.templates.values import Made, Unknown
from thawd.server.emulator.cloudformation.errors import ResourceError, StackError
from thawd.server.emulator.cloudformation.providers.kinds_by_type import Registry
from thawd.server.emulator.cloudformation.replacement import shown_replacement
from thawd.server.emulator.cloudformation.stack_records import Change, Resource, Settings, Stack
from thawd.server.emulator.cloudformation.template_plans import Planner

Properties = dict[str, Any]


def changes_of(stack: Stack, plan: Prepared, planner: Planner, registry: Registry) -> list[Change]:
    """Return the changes that an update would make to a stack's resources, in the order of their dependencies.

    Raises:
        TemplateError: a function of the template fails.
        StackError: a resource has another type than before.
    """
    others = [
        name
        for name, declared in plan.resources.items()
        if (old := stack.resources.get(name)) is not None and old.physical_id and old.kind != declared.type
    ]
    if others:
        raise StackError(
            "Update of resource type is not permitted. The new template modifies resource type of the following "
            f"resources: [{', '.join(others)}]"
        )
    made: dict[str, Made] = dict(planner.made(stack).items())
    found: list[Change] = []
    for logical_id in plan.order():
        change = _change_of(stack, plan, logical_id, made, registry)
        if change is None:
            continue
        found.append(change)
        if change.action == "Modify" and change.replacement != "False":
            made.pop(logical_id, None)  # resources that refer to it also change
    for logical_id, resource in stack.resources.items():
        if logical_id not in plan.resources and resource.exists:
            found.append(
                Change(
                    "Remove",
                    logical_id,
                    resource.kind,
                    resource.physical_id,
                    before=resource.shown_properties,
                    policy=resource.deletion_policy.removesuffix("ExceptOnCreate"),
                )
            )
    return found


def _change_of(
    stack: Stack, plan: Prepared, logical_id: str, made: dict[str, Made], registry: Registry
) -> Change | None:
    declared, old = plan.resources[logical_id], stack.resources.get(logical_id)
    after = plan.planned(logical_id, made)
    if old is None or not old.physical_id:
        return Change("Add", logical_id, declared.type, after=known(after))
    before = old.shown_properties  # a dynamic reference is compared, and not its value, as on AWS
    names = sorted(name for name in before.keys() | after.keys() if not _is_equal(before.get(name), after.get(name)))
    scope = ["Properties"] if names or _differs(old, registry) else []
    if (dict(declared.metadata) or None) != old.metadata:
        scope.append("Metadata")
    if (declared.deletion_policy or "Delete") != old.deletion_policy:
        scope.append("DeletionPolicy")
    if (declared.update_replace_policy or "Delete") != old.replacement_policy:
        scope.append("UpdateReplacePolicy")
    if not scope:
        return None
    replacement = shown_replacement(declared.type, before, after, changed=names, registry=registry)
    return Change(
        "Modify",
        logical_id,
        declared.type,
        old.physical_id,
        replacement,
        names,
        scope,
        old.shown_properties,
        known(after),
        policy=None if replacement == "False" else f"ReplaceAnd{declared.update_replace_policy or 'Delete'}",
    )


def _differs(old: Resource, registry: Registry) -> bool:
    """Whether a resource changes although its properties stay."""
    try:
        return registry.find(old.kind).differs(old)
    except ResourceError:
        return False


def _is_equal(before: Any, after: Any) -> bool:
    if isinstance(after, Unknown):
        return False
    if isinstance(before, dict) and isinstance(after, dict):
        return before.keys() == after.keys() and all(_is_equal(before[name], after[name]) for name in before)
    if isinstance(before, list) and isinstance(after, list):
        return len(before) == len(after) and all(_is_equal(*pair) for pair in zip(before, after, strict=True))
    return bool(before == after)


def known(value: Any) -> Any:
    """Return a value with ``{{changeSet:KNOWN_AFTER_APPLY}}`` in place of each `Unknown`, as change sets show it."""
    if isinstance(value, dict):
        return {name: known(each) for name, each in value.items()}
    if isinstance(value, list):
        return [known(each) for each in value]
    return "{{changeSet:KNOWN_AFTER_APPLY}}" if isinstance(value, Unknown) else value


def has_other_settings(old: Settings, new: Settings) -> bool:
    """Return whether an update changes something besides resources: tags, topics for events, or the role."""
    return (old.tags, old.notification_arns, old.role_arn) != (new.tags, new.notification_arns, new.role_arn)


def has_other_outputs(stack: Stack, plan: Prepared, planner: Planner) -> bool:
    """Return whether an update changes the outputs."""
    new = plan.outputs(planner.made(stack), is_plan=True)
    shown = [(one.key, one.value, one.description, one.export_name) for one in new]
    return shown != [(one.key, one.value, one.description, one.export) for one in stack.outputs]
