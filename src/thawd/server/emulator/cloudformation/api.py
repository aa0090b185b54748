"""CloudFormation's operations on stacks, such as CreateStack and DescribeStacks; change sets are in `change_sets`.

Source: CloudFormation API reference.
"""

from __future__ import annotations

import json
import time
from typing import Any

from thawd.deploy.templates.preparation import Prepared
from thawd.deploy.templates.refusals import TemplateError
from thawd.server.emulator.cloudformation import api_answers, capabilities, change_preview, templates_shown
from thawd.server.emulator.cloudformation.engine import Engine
from thawd.server.emulator.cloudformation.errors import StackError, does_not_exist
from thawd.server.emulator.cloudformation.request_parameters import (
    is_true,
    require_name,
    require_updatable,
    settings_of,
    template_of,
)
from thawd.server.emulator.cloudformation.resource_changes import Services, Steps
from thawd.server.emulator.cloudformation.stack_records import REVIEW, Settings, Stack, new_stack_id
from thawd.server.emulator.cloudformation.template_plans import imports_of

_PAGE = 100
_DELETES_LATER = ("CREATE_IN_PROGRESS",)

Parameters = dict[str, Any]
Place = tuple[str, str]


class StackOperations:
    """The operations; each takes the account and region, and the parameters of the request.

    Args:
        services: what operations on stacks use.
        engine: runs operations in the background.
    """

    def __init__(self, services: Services, engine: Engine) -> None:
        self._services = services
        self._store = services.store
        self._engine = engine

    # Create, change, delete

    def create_stack(self, place: Place, given: Parameters) -> Parameters:
        """CreateStack."""
        name = require_name(given.get("StackName"))
        settings = settings_of(self._services.aws, given)
        on_failure = given.get("OnFailure") or ("DO_NOTHING" if is_true(given.get("DisableRollback")) else "ROLLBACK")
        account, region = place
        minutes = given.get("TimeoutInMinutes")
        stack = Stack(
            id=new_stack_id(region, account, name),
            name=name,
            account=account,
            region=region,
            settings=settings,
            created_s=time.time(),
            status="",
            on_failure=on_failure,
            timeout_s=float(minutes) * 60 if minutes else None,
            is_protected=is_true(given.get("EnableTerminationProtection")),
            policy=self._policy(given),
            token=given.get("ClientRequestToken"),
        )
        self._require_free(place, name)
        plan = self._services.planner.plan(stack, settings)  # a wrong template is refused at once
        self._require_capabilities(plan, settings)
        with self._store.lock:
            self._require_free(place, name)
            stack.imports = imports_of(plan)
            Steps(self._services, stack).set("CREATE_IN_PROGRESS", "User Initiated")
            self._engine.start(stack, self._engine.create)
        return {"StackId": stack.id}

    def _require_free(self, place: Place, name: str) -> None:
        if self._store.find(*place, name) is not None:
            raise StackError(f"Stack [{name}] already exists", "AlreadyExistsException")

    def update_stack(self, place: Place, given: Parameters) -> Parameters:
        """UpdateStack."""
        stack = self._existing(place, given)
        require_updatable(stack)
        former = stack.settings
        settings = settings_of(self._services.aws, given, stack)
        plan = self._services.planner.plan(stack, settings)
        self._require_capabilities(plan, settings)
        try:
            changes = change_preview.changes_of(stack, plan, self._services.planner, self._services.registry)
            is_same = not (
                changes
                or change_preview.has_other_settings(stack.settings, settings)
                or change_preview.has_other_outputs(stack, plan, self._services.planner)
                or stack.status in ("CREATE_FAILED", "UPDATE_FAILED")
            )
        except TemplateError as error:
            raise StackError(error.message) from error
        if is_same:
            raise StackError("No updates are to be performed.")
        with self._store.lock:
            require_updatable(stack)
            if stack.settings is not former:  # UsePreviousValue meant other values
                raise StackError(f"Stack:{stack.id} was updated by another request meanwhile. Send the request again.")
            imports = imports_of(plan)
            stack.token = given.get("ClientRequestToken")
            stack.keeps_failed = is_true(given.get("DisableRollback"))
            stack.policy = self._policy(given) or stack.policy
            stack.imports = sorted({*stack.imports, *imports})
            self._engine.begin_update(stack, settings)
            self._engine.start(stack, self._engine.update)
        return {"StackId": stack.id}

    def _require_capabilities(self, plan: Prepared, settings: Settings) -> None:
        transforms = templates_shown.transforms_in(settings.template)
        capabilities.require(capabilities.missing_for(plan, settings.capabilities, transforms))

    def _existing(self, place: Place, given: Parameters) -> Stack:
        name = str(given.get("StackName"))
        stack = self._store.find(*place, name)
        if stack is None or stack.is_deleted or stack.status == REVIEW:
            raise StackError(f"Stack [{name}] does not exist")
        return stack

    def cancel_update_stack(self, place: Place, given: Parameters) -> Parameters:
        """CancelUpdateStack."""
        with self._store.lock:
            stack = self._existing(place, given)
            if stack.status != "UPDATE_IN_PROGRESS":
                raise StackError("CancelUpdateStack cannot be called from current stack status")
            self._engine.stop(stack)
        return {}

    def continue_update_rollback(self, place: Place, given: Parameters) -> Parameters:
        """ContinueUpdateRollback."""
        with self._store.lock:
            stack = self._existing(place, given)
            if stack.status != "UPDATE_ROLLBACK_FAILED":
                raise StackError(f"Stack:{stack.id} is in {stack.status} state and can not continue its rollback.")
            stack.token = given.get("ClientRequestToken")
            skipped = tuple(given.get("ResourcesToSkip") or ())
            Steps(self._services, stack).set("UPDATE_ROLLBACK_IN_PROGRESS", "User Initiated")
            self._engine.start(stack, lambda stack: self._engine.roll_update_back(stack, skipped))
        return {}

    def rollback_stack(self, place: Place, given: Parameters) -> Parameters:
        """RollbackStack."""
        with self._store.lock:
            stack = self._existing(place, given)
            stack.token = given.get("ClientRequestToken")
            steps = Steps(self._services, stack)
            if stack.status == "CREATE_FAILED":
                steps.set("ROLLBACK_IN_PROGRESS", "User Initiated")
                self._engine.start(stack, self._engine.roll_back)
            elif stack.status == "UPDATE_FAILED" and stack.before is not None:
                steps.set("UPDATE_ROLLBACK_IN_PROGRESS", "User Initiated")
                self._engine.start(stack, self._engine.roll_update_back)
            else:
                raise StackError(f"Stack:{stack.id} is in {stack.status} state and can not be rolled back.")
        return {"StackId": stack.id}

    def delete_stack(self, place: Place, given: Parameters) -> Parameters:
        """DeleteStack. A stack that does not exist is no error."""
        with self._store.lock:
            stack = self._store.find(*place, str(given.get("StackName")))
            if stack is None or stack.is_deleted or stack.status == "DELETE_IN_PROGRESS":
                return {}
            if stack.is_protected:
                raise StackError(f"Stack [{stack.id}] cannot be deleted while TerminationProtection is enabled")
            if stack.parent_id and not is_true(given.get("DeletionMode") == "FORCE_DELETE_STACK"):
                parent = self._store.by_id(stack.parent_id)
                if parent is not None and parent.is_busy:
                    raise StackError(f"Stack:{stack.id} cannot be deleted while its parent {parent.name} is changed.")
            stack.token = given.get("ClientRequestToken")
            stack.retained = list(given.get("RetainResources") or ())
            if stack.retained and stack.status != "DELETE_FAILED":
                raise StackError(
                    "Invalid operation on stack [" + stack.id + "]. Retained resources must be specified for stacks in "
                    "DELETE_FAILED state only."
                )
            if stack.status in _DELETES_LATER and self._engine.stop(stack) is not None:
                stack.on_failure = "DELETE"  # the creation ends with the deletion
                self._store.save(stack)
                return {}
            if stack.is_busy:
                raise StackError(f"Stack [{stack.name}] cannot be deleted while in status {stack.status}")
            Steps(self._services, stack).set("DELETE_IN_PROGRESS", "User Initiated")
            self._engine.start(stack, self._engine.delete)
        return {}

    # Settings

    def update_termination_protection(self, place: Place, given: Parameters) -> Parameters:
        """UpdateTerminationProtection."""
        with self._store.lock:
            stack = self._existing(place, given)
            stack.is_protected = is_true(given["EnableTerminationProtection"])
            self._store.save(stack)
        return {"StackId": stack.id}

    def set_stack_policy(self, place: Place, given: Parameters) -> Parameters:
        """SetStackPolicy. thawd records the policy, and does not apply it."""
        policy = self._policy(given)
        with self._store.lock:
            stack = self._existing(place, given)
            stack.policy = policy
            self._store.save(stack)
        return {}

    def get_stack_policy(self, place: Place, given: Parameters) -> Parameters:
        """GetStackPolicy."""
        policy = self._store.get(*place, given["StackName"]).policy
        return {"StackPolicyBody": policy} if policy else {}

    def _policy(self, given: Parameters) -> str | None:
        body, url = given.get("StackPolicyBody"), given.get("StackPolicyURL")
        if body and url:
            raise StackError("You cannot specify both StackPolicyURL and StackPolicyBody")
        if url:
            body = template_of(self._services.aws, {"TemplateURL": url}, None)
        if body:
            try:
                json.loads(body)
            except ValueError as error:
                raise StackError(f"Error validating stack policy: Invalid stack policy: {error}") from error
        return body or None

    # Stacks and their parts

    def describe_stacks(self, place: Place, given: Parameters) -> Parameters:
        """DescribeStacks."""
        name = given.get("StackName")
        with self._store.lock:
            if name is not None:
                return {"Stacks": [api_answers.stack_view(self._store.get(*place, name))]}
            shown = [stack for stack in self._store.here(*place) if not stack.is_deleted]
            return _page("Stacks", [api_answers.stack_view(stack) for stack in shown], given)

    def list_stacks(self, place: Place, given: Parameters) -> Parameters:
        """ListStacks."""
        wanted = given.get("StackStatusFilter")
        with self._store.lock:
            shown = [stack for stack in self._store.here(*place) if not wanted or stack.status in wanted]
            return _page("StackSummaries", [api_answers.summary_view(stack) for stack in shown], given)

    def describe_stack_events(self, place: Place, given: Parameters) -> Parameters:
        """DescribeStackEvents: the newest first."""
        with self._store.lock:
            stack = self._store.find(*place, str(given.get("StackName")))
            if stack is None:
                raise StackError(f"Stack [{given.get('StackName')}] does not exist")
            events = [api_answers.event_view(stack, event) for event in reversed(stack.events)]
        return _page("StackEvents", events, given)

    def describe_stack_resource(self, place: Place, given: Parameters) -> Parameters:
        """DescribeStackResource."""
        name = given["LogicalResourceId"]
        with self._store.lock:
            stack = self._shown(place, given)
            if name not in stack.resources:
                raise StackError(f"Resource {name} does not exist for stack {stack.name}")
            view = api_answers.resource_view(stack, stack.resources[name], time_name="LastUpdatedTimestamp")
        return {"StackResourceDetail": view}

    def describe_stack_resources(self, place: Place, given: Parameters) -> Parameters:
        """DescribeStackResources: by the stack, or by the physical id of one of its resources."""
        logical_id, physical_id = given.get("LogicalResourceId"), given.get("PhysicalResourceId")
        with self._store.lock:
            stack = self._shown(place, given) if given.get("StackName") else self._with_resource(place, physical_id)
            found = [one for one in stack.resources.values() if logical_id in (None, one.logical_id)]
            if logical_id is not None and not found:
                raise StackError(f"Stack '{stack.name}' does not exist or resource {logical_id} is not in it")
            return {"StackResources": [api_answers.resource_view(stack, one, time_name="Timestamp") for one in found]}

    def _with_resource(self, place: Place, physical_id: str | None) -> Stack:
        for stack in self._store.here(*place):
            if physical_id and any(one.physical_id == physical_id for one in stack.resources.values()):
                return stack
        raise StackError(f"Stack for {physical_id} does not exist")

    def list_stack_resources(self, place: Place, given: Parameters) -> Parameters:
        """ListStackResources."""
        with self._store.lock:
            stack = self._shown(place, given)
            names = {"StackName", "StackId", "Metadata"}
            found = [
                {
                    key: value
                    for key, value in api_answers.resource_view(stack, one, time_name="LastUpdatedTimestamp").items()
                    if key not in names
                }
                for one in stack.resources.values()
            ]
        return _page("StackResourceSummaries", found, given)

    def _shown(self, place: Place, given: Parameters) -> Stack:
        return self._store.get(*place, str(given.get("StackName")))

    # Templates

    def get_template(self, place: Place, given: Parameters) -> Parameters:
        """GetTemplate: as it was sent, or after its transformations."""
        stages = {"StagesAvailable": ["Original", "Processed"]}
        with self._store.lock:
            if given.get("ChangeSetName"):
                found = [
                    one
                    for stack in self._store.here(*place)
                    for one in stack.change_sets
                    if given["ChangeSetName"] in (one.id, one.name)
                    and given.get("StackName") in (None, stack.name, stack.id)
                ]
                if not found:
                    raise StackError(f"ChangeSet [{given['ChangeSetName']}] does not exist", "ChangeSetNotFound")
                return {"TemplateBody": found[0].settings.template, **stages}
            stack = self._shown(place, given)
            is_processed = given.get("TemplateStage") == "Processed"
            return {"TemplateBody": stack.processed if is_processed else stack.settings.template, **stages}

    def get_template_summary(self, place: Place, given: Parameters) -> Parameters:
        """GetTemplateSummary."""
        if given.get("StackName"):
            stack = self._store.find(*place, given["StackName"])
            if stack is None or stack.is_deleted:
                raise does_not_exist(given["StackName"])
            if stack.status == REVIEW:
                raise StackError("GetTemplateSummary cannot be called on REVIEW_IN_PROGRESS stacks.")
            return templates_shown.summary_of(stack.settings.template)
        return templates_shown.summary_of(template_of(self._services.aws, given, None))

    def validate_template(self, place: Place, given: Parameters) -> Parameters:
        """ValidateTemplate."""
        return templates_shown.validation_of(template_of(self._services.aws, given, None))

    # Exports

    def list_exports(self, place: Place, given: Parameters) -> Parameters:
        """ListExports."""
        with self._store.lock:
            found = [
                {"ExportingStackId": stack.id, "Name": output.export, "Value": output.value}
                for stack, output in self._store.exports(*place)
            ]
        return _page("Exports", found, given)

    def list_imports(self, place: Place, given: Parameters) -> Parameters:
        """ListImports."""
        name = given["ExportName"]
        with self._store.lock:
            owners = [stack for stack, output in self._store.exports(*place) if output.export == name]
            if not owners:
                raise StackError(f"Export '{name}' does not exist")
            users = self._engine.importers(owners[0], name)
        if not users:
            raise StackError(f"Export '{name}' is not imported by any stack.")
        return _page("Imports", users, given)


def _page(name: str, items: list[Any], given: Parameters) -> Parameters:
    """A page of an answer, and the token for the next one.

    Raises:
        StackError: the request's token is not one of these.
    """
    try:
        start = int(given.get("NextToken") or 0)
    except ValueError:
        raise StackError("1 validation error detected: NextToken is not valid") from None
    end = start + _PAGE
    token = {"NextToken": str(end)} if end < len(items) else {}
    return {name: items[start:end], **token}
