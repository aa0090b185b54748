"""Makes, changes, replaces and deletes single resources of a stack, and records each step with its events."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from thawd.deploy.templates.preparation import Prepared
from thawd.deploy.templates.refusals import TemplateError
from thawd.deploy.templates.values import Made as Existing
from thawd.server.emulator.cloudformation import generated_names
from thawd.server.emulator.cloudformation.errors import Interrupted, LeftBehind, ResourceError, StackError
from thawd.server.emulator.cloudformation.providers.aws_clients import Aws, is_unreachable, may_have_worked
from thawd.server.emulator.cloudformation.providers.kinds_by_type import Registry
from thawd.server.emulator.cloudformation.providers.resource_kind import Kind, Made, Properties, Wanted
from thawd.server.emulator.cloudformation.replacement import must_replace, refuse_change
from thawd.server.emulator.cloudformation.stack_files import StackStore
from thawd.server.emulator.cloudformation.stack_records import Event, Resource, Stack
from thawd.server.emulator.cloudformation.template_plans import Planner

_REPLACES = "Requested update requires the creation of a new physical resource; hence creating one."
_KEEPS = ("Retain", "Snapshot")
# A server that stops closes its port first, and ends this process when the last invocations have ended.
_ENDING_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Services:
    """The services that operations on stacks use.

    Attributes:
        store: the records of stacks.
        planner: evaluates templates.
        registry: the kinds of resources.
        aws: clients for AWS's services.
        settle: waits until the state of moto's services is saved.
        notify: called with each event, to publish it to the topics of the stack.
        complain: prints a line for the operator.
        ending: is set when this process is about to end.
    """

    store: StackStore
    planner: Planner
    registry: Registry
    aws: Aws
    settle: Callable[[], None]
    notify: Callable[[Stack, Event], None]
    complain: Callable[[str], None]
    ending: threading.Event


class Steps:
    """The steps of an operation on one stack. Several threads may run steps for different resources.

    Args:
        services: the services that the steps use.
        stack: the stack.
    """

    def __init__(self, services: Services, stack: Stack) -> None:
        self._services = services
        self._store = services.store
        self._registry = services.registry
        self.stack = stack

    def set(self, status: str, reason: str | None = None) -> None:
        """Give the stack a status, and record it."""
        with self._store.lock:
            event = self.stack.add_event(None, status, reason)
            self._store.save(self.stack)
        self._services.notify(self.stack, event)

    def end(self, stop: threading.Event, status: str) -> bool:
        """Give the stack a status, unless its operation has been stopped. Returns False if it was stopped."""
        with self._store.lock:
            if stop.is_set():
                return False
            event = self.stack.add_event(None, status)
            self._store.save(self.stack)
        self._services.notify(self.stack, event)
        return True

    def mark(self, resource: Resource, status: str, reason: str | None = None) -> None:
        """Give a resource a status, and record it."""
        with self._store.lock:
            event = self.stack.add_event(resource, status, reason)
            self._store.save(self.stack)
        self._services.notify(self.stack, event)

    # Creation

    def make(self, logical_id: str, plan: Prepared) -> None:
        """Make a resource of a plan.

        Raises:
            ResourceError: it cannot be made. `Resource.exists` tells whether it may exist nevertheless.
        """
        resource = _record(logical_id, plan)
        with self._store.lock:
            self.stack.resources[logical_id] = resource
        self.mark(resource, "CREATE_IN_PROGRESS")
        self._make(resource, plan, finished="CREATE_COMPLETE", failed="CREATE_FAILED")

    def _make(self, resource: Resource, plan: Prepared, *, finished: str, failed: str) -> None:
        try:
            kind = self._registry.find(resource.kind)
            made = self._services.planner.made(self.stack)
            properties = plan.properties(resource.logical_id, made)
            resource.shown = _shown(plan, resource.logical_id, made, properties)
            self._make_wanted(resource, kind, properties)
        except Exception as error:
            reason = self._reason(error)
            with self._store.lock:
                resource.physical_id, resource.was_begun = "", resource.was_begun and _may_exist_after(error)
                if isinstance(error, LeftBehind) and error.name:
                    resource.name = error.name
            self.mark(resource, failed, reason)
            raise ResourceError(reason) from error
        self.mark(resource, finished, self._missing(resource.kind))

    def _make_wanted(self, resource: Resource, kind: Kind, properties: Properties) -> None:
        wanted = self._wanted(resource.logical_id, resource.kind, kind, properties)
        facts: Properties = {}
        if kind.expected is not None:
            facts = kind.expected(wanted)
            if kind.named and properties.get(kind.named) and kind.exists(self._services.aws, facts):
                raise ResourceError(
                    f"Resource of type '{resource.kind}' with identifier '{wanted.name}' already exists."
                )
        self._check_place(kind, wanted, {})
        with self._store.lock:
            resource.name, resource.properties, resource.facts = wanted.name, properties, facts
            resource.was_begun = kind.expected is not None
            self._store.save(self.stack)
        self._take(resource, kind.make(self._services.aws, wanted))

    def _check_place(self, kind: Kind, wanted: Wanted, before: Properties) -> None:
        if (reason := kind.occupied(self._services.aws, wanted, before)) is not None:
            raise ResourceError(reason)

    def _take(self, resource: Resource, made: Made) -> None:
        with self._store.lock:
            resource.physical_id, resource.was_begun = made.physical_id, True
            resource.attributes, resource.facts = dict(made.attributes), dict(made.facts)
            self.stack.hidden = sorted({*self.stack.hidden, *made.secrets})

    def _wanted(
        self, logical_id: str, type_name: str, kind: Kind, properties: Properties, former: Properties | None = None
    ) -> Wanted:
        name = properties.get(kind.named) if kind.named else None
        name = str(name) if name else generated_names.generated(type_name, self.stack.name, logical_id, properties)
        return Wanted(self.stack, logical_id, type_name, name, properties, former)

    def _missing(self, kind: str) -> str | None:
        missing = self._registry.missing(kind)
        if missing:
            self._services.complain(
                f"thawd: --aws: the stack {self.stack.name} is made without its resource of the type {kind}, which "
                f"thawd does not have: {missing}"
            )
            return f"thawd records resources of this type only: {missing}"
        return None

    # Change

    def change(self, logical_id: str, plan: Prepared) -> None:
        """Make, update or replace a resource, so that it is as in the plan. An unchanged resource is left alone.

        A replaced resource is added to `Stack.clean_up`, whose resources are deleted after the update.

        Raises:
            ResourceError: the change failed. The resource may be partly changed.
        """
        old = self.stack.resources.get(logical_id)
        if old is None or not old.physical_id:
            if old is not None and old.exists:  # an earlier update has half made it
                with self._store.lock:
                    self.stack.clean_up.append(old)
            self.make(logical_id, plan)
            return
        new, made = _record(logical_id, plan), self._services.planner.made(self.stack)
        try:
            properties = plan.properties(logical_id, made)
            new.shown = _shown(plan, logical_id, made, properties)
            is_same = old.kind == new.kind and old.properties == properties
            kind = self._registry.find(new.kind)
            if old.kind == new.kind and not is_same:
                refuse_change(kind, old.properties, properties)
                if not must_replace(kind, old.properties, properties):
                    self._check_place(kind, self._wanted(logical_id, new.kind, kind, properties), old.properties)
        except (StackError, TemplateError, ResourceError) as error:
            self.mark(old, "UPDATE_FAILED", reason_of(error))
            raise ResourceError(reason_of(error)) from error
        if is_same and not kind.differs(old):
            with self._store.lock:
                _copy_declaration(new, old)
            return
        if old.kind == new.kind and not must_replace(kind, old.properties, properties):
            with self._store.lock:
                _copy_declaration(new, old)
            self._change_in_place(old, kind, properties, None)
        else:
            self._replace(old, new, kind, properties, plan)

    def _change_in_place(
        self, resource: Resource, kind: Kind, properties: Properties, former: Properties | None
    ) -> None:
        assert kind.change is not None
        before = copy.deepcopy(resource)
        with self._store.lock:
            resource.properties = properties
        self.mark(resource, "UPDATE_IN_PROGRESS")
        wanted = self._wanted(resource.logical_id, resource.kind, kind, properties, former)
        try:
            made = kind.change(self._services.aws, before, wanted)
        except Exception as error:
            reason = self._reason(error)
            self.mark(resource, "UPDATE_FAILED", reason)
            raise ResourceError(reason) from error
        with self._store.lock:
            if made is not None:
                if made.physical_id != before.physical_id:  # the function of a custom resource replaced the resource
                    before.deletion_policy = before.replacement_policy
                    self.stack.clean_up.append(before)
                self._take(resource, made)
        self.mark(resource, "UPDATE_COMPLETE")

    def _replace(self, old: Resource, new: Resource, kind: Kind, properties: Properties, plan: Prepared) -> None:
        has_its_name = kind.named and old.kind == new.kind and properties.get(kind.named) == old.name
        if has_its_name and not kind.makes_again:
            reason = (
                "CloudFormation cannot update a stack when a custom-named resource requires replacing. Rename "
                f"{old.name} and update the stack again."
            )
            self.mark(old, "UPDATE_FAILED", reason)
            raise ResourceError(reason)
        self.mark(old, "UPDATE_IN_PROGRESS", _REPLACES)
        if kind.makes_again and old.kind == new.kind:
            try:
                self._delete(old)
            except Exception as error:
                reason = self._reason(error)
                self.mark(old, "UPDATE_FAILED", reason)
                raise ResourceError(reason) from error
            with self._store.lock:
                old.physical_id, old.was_begun = "", False
        with self._store.lock:
            old.deletion_policy = old.replacement_policy
            if old.exists:
                self.stack.clean_up.append(old)
            self.stack.resources[new.logical_id] = new
        self._make(new, plan, finished="UPDATE_COMPLETE", failed="UPDATE_FAILED")

    # Rollback

    def restore(self, logical_id: str, before: Resource) -> None:
        """Return a resource to its state before an update.

        Raises:
            ResourceError: the rollback failed.
        """
        stack, now = self.stack, self.stack.resources.get(logical_id)
        if not before.physical_id:  # it did not exist before the update
            self._put_back(before, now)
            return
        if now is not None and now.physical_id == before.physical_id and now.kind == before.kind:
            kind = self._registry.find(now.kind)
            is_touched = now.properties != before.properties or now.status in ("UPDATE_FAILED", "UPDATE_IN_PROGRESS")
            is_touched = is_touched or kind.finish is not None  # the kind knows whether it has something to undo
            with self._store.lock:
                _copy_declaration(before, now)
            if is_touched and kind.change is not None:
                self._change_in_place(now, kind, before.properties, before.facts)
            elif is_touched:
                with self._store.lock:
                    now.properties = before.properties
                self.mark(now, "UPDATE_COMPLETE")
            return
        restored, is_kept = self._put_back(before, now)
        if is_kept:
            self.mark(restored, "UPDATE_COMPLETE")
            return
        kind = self._registry.find(before.kind)  # the old resource was deleted before its successor was made
        self.mark(restored, "UPDATE_IN_PROGRESS")
        try:
            if now is not None and now.exists:
                self._delete(now)
                with self._store.lock:
                    stack.clean_up.remove(now)
            self._make_wanted(restored, kind, before.properties)
        except Exception as error:
            reason = self._reason(error)
            with self._store.lock:
                restored.physical_id, restored.was_begun = "", restored.was_begun and _may_exist_after(error)
            self.mark(restored, "UPDATE_FAILED", reason)
            raise ResourceError(reason) from error
        self.mark(restored, "UPDATE_COMPLETE")

    def skip(self, logical_id: str, before: Resource) -> None:
        """Record a resource as it was before an update, without a look at what it is."""
        restored, _ = self._put_back(before, self.stack.resources.get(logical_id))
        self.mark(restored, "UPDATE_COMPLETE", "skipped")

    def _put_back(self, before: Resource, now: Resource | None) -> tuple[Resource, bool]:
        """Put the record before an update in its place. What has replaced the resource is to be deleted.

        Returns:
            The record, and whether the resource was to be deleted, and so still exists.
        """
        stack = self.stack
        with self._store.lock:

            def is_it(one: Resource) -> bool:
                if before.physical_id:
                    return (one.physical_id, one.kind) == (before.physical_id, before.kind)
                return before.was_begun and not one.physical_id and one.name == before.name  # it is half made

            is_kept = any(map(is_it, stack.clean_up))
            stack.clean_up = [one for one in stack.clean_up if not is_it(one)]
            if now is not None and now.exists and not is_it(now):
                stack.clean_up.append(now)
            restored = copy.deepcopy(before)
            stack.resources[before.logical_id] = restored
        return restored, is_kept

    # Deletion

    def delete(self, resource: Resource, *, is_rollback: bool = False) -> None:
        """Delete a resource, unless its deletion policy keeps it.

        Raises:
            ResourceError: it cannot be deleted.
        """
        policy = resource.deletion_policy
        if not resource.exists:
            return
        keeps = policy in _KEEPS or (policy == "RetainExceptOnCreate" and not is_rollback)
        if keeps or resource.logical_id in self.stack.retained:
            reason = "thawd makes no snapshots, so the resource is kept" if policy == "Snapshot" else None
            self._forget(resource, "DELETE_SKIPPED", reason)
            return
        self.mark(resource, "DELETE_IN_PROGRESS")
        try:
            self._delete(resource)
        except Exception as error:
            reason = self._reason(error)
            self.mark(resource, "DELETE_FAILED", reason)
            raise ResourceError(reason) from error
        with self._store.lock:  # until the services' state is saved, it may come back when the process ends
            self.stack.deleted.append(copy.copy(resource))
        self._forget(resource, "DELETE_COMPLETE")

    def _forget(self, resource: Resource, status: str, reason: str | None = None) -> None:
        """Record that a resource is not there, or not the stack's, any more. The event still shows its id."""
        with self._store.lock:
            event = self.stack.add_event(resource, status, reason)
            resource.physical_id, resource.was_begun = "", False
            self._store.save(self.stack)
        self._services.notify(self.stack, event)

    def _delete(self, resource: Resource) -> None:
        self._registry.find(resource.kind).delete(self._services.aws, resource)

    def _reason(self, error: Exception) -> str:
        """Return the text with which the stack's events show an error.

        Raises:
            Interrupted: thawd could not be reached, because it is stopping. The stack has not failed.
        """
        if is_unreachable(error) and self._services.ending.wait(_ENDING_WITHIN_S):
            raise Interrupted from error
        return reason_of(error)


def _record(logical_id: str, plan: Prepared) -> Resource:
    declared = plan.resources[logical_id]
    policy = declared.deletion_policy or "Delete"
    return Resource(
        logical_id=logical_id,
        kind=declared.type,
        needs=sorted(plan.needs(logical_id)),
        deletion_policy=policy,
        replacement_policy=declared.update_replace_policy or "Delete",
        metadata=dict(declared.metadata) or None,
    )


def _shown(plan: Prepared, logical_id: str, made: Mapping[str, Existing], properties: Properties) -> Properties | None:
    """Return the properties with dynamic references in place of their values; None: there are no such references."""
    shown = plan.properties(logical_id, made, dynamic=False)
    return None if shown == properties else shown


def _copy_declaration(source: Resource, target: Resource) -> None:
    target.needs, target.metadata, target.shown = source.needs, source.metadata, source.shown
    target.deletion_policy, target.replacement_policy = source.deletion_policy, source.replacement_policy


def _may_exist_after(error: Exception) -> bool:
    """Return whether a resource may exist although its creation failed with `error`."""
    return isinstance(error, LeftBehind) or may_have_worked(error)


def reason_of(error: Exception) -> str:
    """Return the text with which a stack's events show an error."""
    if isinstance(error, KeyError) and not isinstance(error.args[0] if error.args else None, Exception):
        return f"the property {error} is missing"
    if isinstance(error, StackError | TemplateError):
        return error.message
    return str(getattr(error, "message", None) or error) or type(error).__name__
