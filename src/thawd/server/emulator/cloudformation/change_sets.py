"""The operations on change sets.

Source: CloudFormation API reference, and user guide, "Update CloudFormation stacks using change sets".
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

from thawd.deploy.templates.refusals import TemplateError
from thawd.server.emulator.cloudformation import capabilities, change_preview, templates_shown
from thawd.server.emulator.cloudformation.api_answers import change_set_summary, change_set_view, change_view
from thawd.server.emulator.cloudformation.engine import Engine
from thawd.server.emulator.cloudformation.errors import StackError, does_not_exist
from thawd.server.emulator.cloudformation.request_parameters import (
    is_true,
    require_name,
    require_updatable,
    settings_of,
)
from thawd.server.emulator.cloudformation.resource_changes import Services, Steps
from thawd.server.emulator.cloudformation.stack_records import REVIEW, ChangeSet, Settings, Stack, masked, new_stack_id
from thawd.server.emulator.cloudformation.template_plans import secrets_of, shown_parameters

_PAGE = 100
_EXECUTES = "EXECUTE_IN_PROGRESS"
_NOTHING = "The submitted information didn't contain changes. Submit different information to create a change set."

Parameters = dict[str, Any]
Place = tuple[str, str]


class ChangeSets:
    """Makes and executes change sets.

    Args:
        services: what operations on stacks use.
        engine: executes them.
    """

    def __init__(self, services: Services, engine: Engine) -> None:
        self._services = services
        self._store = services.store
        self._engine = engine

    def create_change_set(self, place: Place, given: Parameters) -> Parameters:
        """CreateChangeSet."""
        kind, name = given.get("ChangeSetType") or "UPDATE", str(given["StackName"])
        if kind not in ("CREATE", "UPDATE"):
            raise StackError(f"thawd has no change sets of the type {kind}; it has CREATE and UPDATE")
        with self._store.lock:
            stack = self._store.find(*place, name)
            if kind == "UPDATE" and (stack is None or stack.status == REVIEW):
                raise StackError(f"Stack [{name}] does not exist")
            former = stack if kind == "UPDATE" else None
            previous = former.settings if former is not None else None
        settings = settings_of(self._services.aws, given, former)
        needs = templates_shown.capabilities_of(settings.template)
        capabilities.require(capabilities.missing(settings.capabilities, needs))
        with self._store.lock:
            stack = self._target(place, kind, name, settings)
            stack.change_sets = [one for one in stack.change_sets if one.execution_status != _EXECUTES or stack.is_busy]
            _require_free(stack, given["ChangeSetName"])
        identifier = stack.id.rpartition(":stack/")[0] + f":changeSet/{given['ChangeSetName']}/{uuid.uuid4()}"
        change_set = ChangeSet(
            id=identifier,
            name=given["ChangeSetName"],
            kind=kind,
            settings=settings,
            created_s=time.time(),
            description=given.get("Description"),
            on_failure=given.get("OnStackFailure"),
            include_nested=is_true(given.get("IncludeNestedStacks")),
        )
        self._compute(stack, change_set)
        with self._store.lock:
            stack = self._target(place, kind, name, settings)  # another caller may have made it meanwhile
            _require_free(stack, change_set.name)
            if not stack.status:
                stack.token = given.get("ClientToken")
                Steps(self._services, stack).set(REVIEW, "User Initiated")
            if previous is not None and stack.settings is not previous:
                change_set.execution_status = "OBSOLETE"  # UsePreviousValue meant other values
            stack.change_sets.append(change_set)
            self._store.save(stack)
        return {"Id": change_set.id, "StackId": stack.id}

    def _target(self, place: Place, kind: str, name: str, settings: Settings) -> Stack:
        """The stack that a change set is for; a new one has no status yet."""
        stack = self._store.find(*place, name)
        if kind == "UPDATE":
            if stack is None:
                raise StackError(f"Stack [{name}] does not exist")
            require_updatable(stack)
            return stack
        if stack is not None and stack.status != REVIEW:
            raise StackError(f"Stack [{name}] already exists and cannot be created again with the changeSet [{name}].")
        if stack is None:
            account, region = place
            stack = Stack(
                id=new_stack_id(region, account, require_name(name)),
                name=name,
                account=account,
                region=region,
                settings=settings,
                created_s=time.time(),
                status="",
            )
        return stack

    def _compute(self, stack: Stack, change_set: ChangeSet) -> None:
        """Compute the changes; a change set without any, or whose template cannot be transformed, has failed.

        Raises:
            StackError: the template is wrong.
        """
        services, settings = self._services, change_set.settings
        try:
            plan = services.planner.plan(stack, settings)
            change_set.parameters = shown_parameters(plan)
            change_set.hidden = sorted(secrets_of(plan))
            change_set.changes = change_preview.changes_of(stack, plan, services.planner, services.registry)
            is_same = change_set.kind == "UPDATE" and not (
                change_set.changes
                or change_preview.has_other_settings(stack.settings, settings)
                or change_preview.has_other_outputs(stack, plan, services.planner)
            )
            # What transforms have added is known only now. The transforms themselves need no capability here, as a
            # change set shows what they have made.
            lacking = capabilities.missing_for(plan, settings.capabilities)
            reason = _NOTHING if is_same else lacking
        except (StackError, TemplateError) as error:
            if not templates_shown.transforms_in(settings.template):
                raise StackError(error.message) from error
            reason = error.message
        if reason is not None:
            change_set.status, change_set.reason, change_set.execution_status = "FAILED", reason, "UNAVAILABLE"

    def describe_change_set(self, place: Place, given: Parameters) -> Parameters:
        """DescribeChangeSet."""
        stack, change_set = self._find(place, given)
        start = int(given.get("NextToken") or 0)
        shown = [change_view(change) for change in change_set.changes[start : start + _PAGE]]
        for change in shown:
            for name in ("BeforeContext", "AfterContext"):
                text = change["ResourceChange"].pop(name, None)
                if text is not None and is_true(given.get("IncludePropertyValues")):
                    change["ResourceChange"][name] = masked(text, [*stack.hidden, *change_set.hidden])
        end = start + _PAGE
        token = {"NextToken": str(end)} if end < len(change_set.changes) else {}
        return {**change_set_view(stack, change_set), "Changes": shown, **token}

    def list_change_sets(self, place: Place, given: Parameters) -> Parameters:
        """ListChangeSets."""
        stack = self._store.get(*place, given["StackName"])
        return {"Summaries": [change_set_summary(stack, one) for one in stack.change_sets]}

    def delete_change_set(self, place: Place, given: Parameters) -> Parameters:
        """DeleteChangeSet. A stack that is only in review remains, as on AWS."""
        with self._store.lock:
            try:
                stack, change_set = self._find(place, given)
            except StackError as error:
                if error.code == "ChangeSetNotFound" and "StackName" in given:
                    return {}  # as on AWS, unless the stack is missing
                raise
            if change_set.execution_status == _EXECUTES and stack.is_busy:
                message = f"ChangeSet [{change_set.id}] is in EXECUTE_IN_PROGRESS state and cannot be deleted"
                raise StackError(message, "InvalidChangeSetStatus")
            stack.change_sets.remove(change_set)
            self._store.save(stack)
        return {}

    def execute_change_set(self, place: Place, given: Parameters) -> Parameters:
        """ExecuteChangeSet."""
        with self._store.lock:
            stack, change_set = self._find(place, given)
            if change_set.execution_status != "AVAILABLE":
                message = (
                    f"ChangeSet [{change_set.id}] cannot be executed in its current status of [{change_set.status}]"
                )
                raise StackError(message, "InvalidChangeSetStatus")
            if change_set.kind == "UPDATE":
                require_updatable(stack)
            elif stack.status != REVIEW:
                raise StackError(f"Stack:{stack.id} is in {stack.status} state and can not be updated.")
            stack.token = given.get("ClientRequestToken")
            stack.change_set_id = change_set.id
            change_set.execution_status = _EXECUTES
            stack.change_sets = [change_set]  # as on AWS, the other ones no longer apply
            keeps = is_true(given.get("DisableRollback")) or change_set.on_failure == "DO_NOTHING"
            if change_set.kind == "UPDATE":
                stack.keeps_failed = keeps
                self._engine.begin_update(stack, change_set.settings)
                work: Callable[[Stack], None] = self._engine.update
            else:
                stack.on_failure = "DO_NOTHING" if keeps else change_set.on_failure or "ROLLBACK"
                stack.settings = change_set.settings
                Steps(self._services, stack).set("CREATE_IN_PROGRESS", "User Initiated")
                work = self._engine.create
            self._engine.start(stack, work)
        return {}

    def _find(self, place: Place, given: Parameters) -> tuple[Stack, ChangeSet]:
        """The change set that a request names by its id, or by its name and its stack's.

        Raises:
            StackError: there is none.
        """
        name, stack_name = str(given["ChangeSetName"]), given.get("StackName")
        if stack_name is not None:
            stacks = [self._store.find(*place, stack_name)]
            if stacks == [None]:
                raise does_not_exist(stack_name)
        else:
            stacks = [*self._store.here(*place)]
        for stack in stacks:
            for change_set in stack.change_sets if stack is not None else []:
                if name in (change_set.id, change_set.name):
                    assert stack is not None
                    return stack, change_set
        raise StackError(f"ChangeSet [{name}] does not exist", "ChangeSetNotFound")


def _require_free(stack: Stack, name: str) -> None:
    if any(one.name == name for one in stack.change_sets):
        message = f"ChangeSet {name} cannot be created because it already exists"
        raise StackError(message, "AlreadyExistsException")
