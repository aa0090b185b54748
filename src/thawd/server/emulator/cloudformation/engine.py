"""Runs operations on stacks in the background: creation, update, deletion, and rollback after a failure.

Source: CloudFormation user guide, "Stack status codes" and "Stack failure options".
"""

from __future__ import annotations

import contextlib
import copy
import json
import threading
import time
from collections.abc import Callable

from thawd.deploy.templates.preparation import Prepared
from thawd.deploy.templates.refusals import TemplateError
from thawd.server.emulator.cloudformation.errors import Interrupted, ResourceError, StackError
from thawd.server.emulator.cloudformation.graph_order import turned, walk, without_cycles
from thawd.server.emulator.cloudformation.resource_changes import Services, Steps
from thawd.server.emulator.cloudformation.stack_records import Before, Output, Resource, Settings, Stack
from thawd.server.emulator.cloudformation.template_plans import secrets_of, shown_parameters

_BY_USER = "User Initiated"
_CANCELLED = "Update cancelled by user."
_INTERRUPTED = "thawd ended while the operation ran"


class Engine:
    """Runs operations.

    Args:
        services: the services that operations use.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._store = services.store
        self._running: dict[str, tuple[threading.Thread, threading.Event]] = {}
        self._interrupted: list[Stack] = []

    def start(self, stack: Stack, work: Callable[[Stack], None]) -> None:
        """Run an operation in the background. Before this call, give the stack the status of the operation."""
        stop = threading.Event()
        thread = threading.Thread(target=self._run, args=(stack, work), name="stack operation", daemon=True)
        with self._store.lock:
            self._running[stack.id] = thread, stop
        thread.start()

    def _run(self, stack: Stack, work: Callable[[Stack], None]) -> None:
        try:
            work(stack)
        except Interrupted:
            pass
        except Exception as error:
            # A bug in this package, or a full disk. The stack gets a FAILED status, so that the user can delete it.
            self._services.complain(
                f"thawd: --aws: the operation on the stack {stack.name} failed inside thawd: {error!r}"
            )
            failed = stack.status.replace("_CLEANUP_IN_PROGRESS", "").replace("_IN_PROGRESS", "_FAILED")
            with contextlib.suppress(OSError):  # The disk is full. After a restart, `resume` continues the operation.
                Steps(self._services, stack).set(failed, f"thawd failed inside: {error!r}")
        finally:
            with self._store.lock:
                if self._running.get(stack.id, (None,))[0] is threading.current_thread():
                    del self._running[stack.id]

    def stop(self, stack: Stack) -> threading.Thread | None:
        """Stop the operation on a stack: it begins no more work. Returns its thread; None: no operation runs."""
        with self._store.lock:
            thread, stop = self._running.get(stack.id, (None, None))
            if stop is not None:
                stop.set()
            return thread

    def _stop_of(self, stack: Stack) -> threading.Event:
        with self._store.lock:
            found = self._running.get(stack.id)
            return found[1] if found else threading.Event()

    # Creation

    def create(self, stack: Stack) -> None:
        """Create the resources of a stack. Its status must be CREATE_IN_PROGRESS."""
        steps, stop = Steps(self._services, stack), self._stop_of(stack)
        timer = None
        if stack.timeout_s:
            timer = threading.Timer(stack.timeout_s, stop.set)
            timer.daemon = True
            timer.start()
        try:
            plan = self._services.planner.plan(stack, stack.settings)
            self._describe(stack, plan)
            needs = {name: plan.needs(name) for name in plan.resources}
            failures = walk(needs, lambda name: steps.make(name, plan), stop=stop)
            reason = _failed("create", failures)
            if reason is None and not stop.is_set():
                self._export(stack, plan)
                self._settle(stack)
        except (StackError, TemplateError) as error:
            reason = error.message
        finally:
            if timer is not None:
                timer.cancel()
        if reason is not None or not steps.end(stop, "CREATE_COMPLETE"):
            self._give_up(stack, reason or "Resource creation cancelled.")

    def _give_up(self, stack: Stack, reason: str) -> None:
        steps = Steps(self._services, stack)
        with self._store.lock:
            stack.outputs = []
        if stack.on_failure == "DO_NOTHING":
            self._settle(stack)
            steps.set("CREATE_FAILED", reason)
        elif stack.on_failure == "DELETE":
            steps.set("DELETE_IN_PROGRESS", reason)
            self.delete(stack, is_rollback=True)
        else:
            steps.set("ROLLBACK_IN_PROGRESS", f"{reason} Rollback requested by user.")
            self.roll_back(stack)

    def roll_back(self, stack: Stack) -> None:
        """Delete the resources that a failed creation made. The status must be ROLLBACK_IN_PROGRESS."""
        failures = self._delete_all(stack, is_rollback=True)
        self._settle(stack)
        steps = Steps(self._services, stack)
        if failures:
            steps.set("ROLLBACK_FAILED", _failed("delete", failures))
        else:
            steps.set("ROLLBACK_COMPLETE")

    # Update

    def begin_update(self, stack: Stack, settings: Settings) -> None:
        """Give a stack new settings, and record the state for a rollback. Call `update` next.

        After an update that failed and was not rolled back, the recorded state is that before the failed update. The
        same applies to a nested stack while its parent's update can still fail.
        """
        with self._store.lock:
            if stack.before is None:
                stack.before = Before(
                    settings=stack.settings,
                    parameters=stack.parameters,
                    outputs=stack.outputs,
                    description=stack.description,
                    processed=stack.processed,
                    resources=copy.deepcopy(stack.resources),
                    imports=stack.imports,
                )
            for change_set in stack.change_sets:
                if change_set.execution_status == "AVAILABLE":
                    change_set.execution_status = "OBSOLETE"  # as on AWS: the stack is another one now
            stack.settings, stack.updated_s = settings, time.time()
            stack.status = "UPDATE_IN_PROGRESS"
        Steps(self._services, stack).set("UPDATE_IN_PROGRESS", _BY_USER)

    def update(self, stack: Stack, *, is_nested: bool = False) -> None:
        """Update a stack to its new settings. Its status must be UPDATE_IN_PROGRESS.

        Args:
            stack: the stack.
            is_nested: whether this is part of an update of the stack's parent. If so, nothing is deleted yet, because
                the parent's update can still fail. The parent calls `clean_up` at its end.
        """
        steps, stop = Steps(self._services, stack), self._stop_of(stack)
        try:
            plan = self._services.planner.plan(stack, stack.settings)
            self._describe(stack, plan)
            needs = {name: plan.needs(name) for name in plan.resources}
            failures = walk(needs, lambda name: steps.change(name, plan), stop=stop)
            reason = _failed("update", failures)
            if reason is None and not stop.is_set():
                self._export(stack, plan)
        except (StackError, TemplateError) as error:
            reason = error.message
        if reason is None or stack.keeps_failed:
            self._settle(stack)
        if reason is None and steps.end(stop, "UPDATE_COMPLETE_CLEANUP_IN_PROGRESS"):
            with self._store.lock:
                gone = [name for name in stack.resources if name not in plan.resources]
                stack.clean_up += [stack.resources.pop(name) for name in gone]
                if not is_nested:
                    stack.before = None
                self._store.save(stack)
            if not is_nested:
                self.clean_up(stack)
        elif stack.keeps_failed:
            steps.set("UPDATE_FAILED", reason or _CANCELLED)
        else:
            steps.set("UPDATE_ROLLBACK_IN_PROGRESS", reason or _CANCELLED)
            self.roll_update_back(stack)

    def clean_up(self, stack: Stack) -> None:
        """Delete the resources that an update replaced or removed. The status must be ..._CLEANUP_IN_PROGRESS.

        As on AWS, the update is complete even if a deletion fails. Deleting the stack tries it again.
        """
        is_rollback = stack.status.startswith("UPDATE_ROLLBACK")
        with self._store.lock:
            stack.before = None
        for resource in list(stack.resources.values()):
            with contextlib.suppress(ResourceError):  # a type that only an earlier version knew
                finish = self._services.registry.find(resource.kind).finish if resource.physical_id else None
                if finish is not None:
                    finish(resource)
        self._delete_several(stack, list(stack.clean_up), is_rollback=is_rollback)
        self._settle(stack)
        with self._store.lock:
            stack.clean_up = [one for one in stack.clean_up if one.exists]
        Steps(self._services, stack).set(stack.status.removesuffix("_CLEANUP_IN_PROGRESS"))

    def roll_update_back(self, stack: Stack, skipped: tuple[str, ...] = ()) -> None:
        """Return a stack to its state before an update. The status must be UPDATE_ROLLBACK_IN_PROGRESS."""
        before, steps = stack.before, Steps(self._services, stack)
        if before is None:
            steps.set("UPDATE_ROLLBACK_FAILED", "thawd does not know the state before the update")
            return

        def restore(name: str) -> None:
            if name in skipped:
                steps.skip(name, before.resources[name])
            else:
                steps.restore(name, before.resources[name])

        needs = {name: resource.needs for name, resource in before.resources.items()}
        failures = walk(needs, restore, stop=threading.Event())
        self._settle(stack)
        if failures:
            steps.set("UPDATE_ROLLBACK_FAILED", _failed("update", failures))
            return
        with self._store.lock:
            new = [name for name in stack.resources if name not in before.resources]
            stack.clean_up += [stack.resources.pop(name) for name in new]
            stack.settings, stack.parameters = before.settings, before.parameters
            stack.outputs, stack.description = before.outputs, before.description
            stack.processed, stack.imports, stack.before = before.processed, before.imports, None
        steps.set("UPDATE_ROLLBACK_COMPLETE_CLEANUP_IN_PROGRESS")
        self.clean_up(stack)

    # Deletion

    def delete(self, stack: Stack, *, is_rollback: bool = False) -> None:
        """Delete a stack. Its status must be DELETE_IN_PROGRESS."""
        steps = Steps(self._services, stack)
        used = self.use_of_exports(stack, [])
        failures = self._delete_all(stack, is_rollback=is_rollback) if used is None else {}
        self._settle(stack)
        if used is not None or failures:
            steps.set("DELETE_FAILED", used or _failed("delete", failures))
            return
        with self._store.lock:
            stack.deleted_s = time.time()
            stack.outputs, stack.imports, stack.before, stack.change_sets = [], [], None, []
            stack.forget_properties()
        steps.set("DELETE_COMPLETE")

    def _delete_all(self, stack: Stack, *, is_rollback: bool) -> dict[str, Exception]:
        everything = [*stack.resources.values(), *stack.clean_up]
        failures = self._delete_several(stack, everything, is_rollback=is_rollback)
        with self._store.lock:
            stack.clean_up = [one for one in stack.clean_up if one.exists]
        return failures

    def _delete_several(self, stack: Stack, resources: list[Resource], *, is_rollback: bool) -> dict[str, Exception]:
        """Delete resources, each after the resources that depend on it.

        Dependencies may exist that the template does not show. So failed deletions are repeated until a round deletes
        no further resource.
        """
        steps = Steps(self._services, stack)
        left = {f"{resource.logical_id}/{number}": resource for number, resource in enumerate(resources)}
        while True:
            found = left
            by_name: dict[str, list[str]] = {}
            for key, resource in found.items():
                by_name.setdefault(resource.logical_id, []).append(key)
            needs = {
                key: {one for name in resource.needs for one in by_name.get(name, [])}
                for key, resource in found.items()
            }

            def work(key: str, found: dict[str, Resource] = found) -> None:
                steps.delete(found[key], is_rollback=is_rollback)

            failures = walk(turned(without_cycles(needs)), work, stop=threading.Event(), goes_on=True)
            left = {key: resource for key, resource in found.items() if resource.exists}
            if not left or len(left) == len(found):
                return {found[key].logical_id: error for key, error in failures.items()}

    # After a restart

    def find_interrupted(self) -> None:
        """Find the operations that were interrupted by the end of the process. Call it before requests are served.

        Operations that begin later are not interrupted, although they may run before `resume` is called.
        """
        for stack in self._store.all():
            with self._store.lock:
                stack.clean_up += stack.deleted
                stack.deleted = []
        for stack in self._store.all():
            parent = self._store.by_id(stack.parent_id) if stack.parent_id else None
            is_parents = parent is not None and (parent.is_busy or parent.before is not None)
            if stack.is_busy and not is_parents:
                self._interrupted.append(stack)

    def resume(self) -> None:
        """Complete or roll back the operations that `find_interrupted` found."""
        interrupted, self._interrupted = self._interrupted, []
        for stack in interrupted:
            with self._store.lock:
                is_another = stack.id in self._running or not stack.is_busy  # such as a deletion that began since
            if not is_another:
                self._resume(stack)

    def _resume(self, stack: Stack) -> None:
        steps, status = Steps(self._services, stack), stack.status
        if status == "CREATE_IN_PROGRESS":
            self.start(stack, lambda stack: self._give_up(stack, f"{_INTERRUPTED}."))
        elif status == "UPDATE_IN_PROGRESS":
            steps.set("UPDATE_ROLLBACK_IN_PROGRESS", _INTERRUPTED)
            self.start(stack, self.roll_update_back)
        elif status.endswith("_CLEANUP_IN_PROGRESS"):
            self.start(stack, self.clean_up)
        else:
            work = {
                "ROLLBACK_IN_PROGRESS": self.roll_back,
                "UPDATE_ROLLBACK_IN_PROGRESS": self.roll_update_back,
                "DELETE_IN_PROGRESS": self.delete,
            }
            self.start(stack, work[status])

    # Outputs

    def _describe(self, stack: Stack, plan: Prepared) -> None:
        with self._store.lock:
            stack.parameters = shown_parameters(plan)
            stack.description = plan.document.get("Description")
            stack.processed = json.dumps(plan.document)
            stack.hidden = sorted({*stack.hidden, *secrets_of(plan)})
            stack.imports = sorted({*stack.imports, *plan.imports()})

    def _export(self, stack: Stack, plan: Prepared) -> None:
        """Give a stack its outputs, and check the exports.

        Raises:
            StackError: another stack has an export of the same name, or imports an export that changes.
        """
        found = [
            Output(key=one.key, value=str(one.value), description=one.description, export=one.export_name)
            for one in plan.outputs(self._services.planner.made(stack))
        ]
        wanted = {one.export for one in found if one.export}
        with self._store.lock:
            for other, output in self._store.exports(stack.account, stack.region):
                if output.export in wanted and other.id != stack.id:
                    raise StackError(f"Export with name {output.export} is already exported by stack {other.name}.")
            used = self.use_of_exports(stack, found)
            if used is not None:
                raise StackError(used)
            stack.imports, stack.outputs = sorted(plan.imports()), found

    def use_of_exports(self, stack: Stack, outputs: list[Output]) -> str | None:
        """Return why a stack's exports cannot be replaced by those of `outputs`; None: they can.

        They cannot if another stack imports an export that would change or disappear.
        """
        new = {one.export: one.value for one in outputs if one.export}
        for old in stack.outputs:
            if old.export and new.get(old.export) != old.value:
                users = self.importers(stack, old.export)
                if users:
                    what = "updated" if old.export in new else "deleted"
                    return f"Export {old.export} cannot be {what} as it is in use by {' and '.join(users)}."
        return None

    def importers(self, stack: Stack, export: str) -> list[str]:
        """Return the names of the other stacks that import an export of a stack."""
        others = self._store.here(stack.account, stack.region)
        return [one.name for one in others if export in one.imports and not one.is_deleted and one.id != stack.id]

    def _settle(self, stack: Stack) -> None:
        """Wait until the services' state is saved: what the records say is then true also after a kill."""
        if stack.parent_id is not None:
            return  # a part of its parent's operation
        with self._store.lock:
            family = [one for one in self._store.all() if stack.id in (one.id, one.root_id)]
            settled = [(one, list(one.deleted)) for one in family]
        self._services.settle()
        with self._store.lock:
            for one, deleted in settled:
                del one.deleted[: len(deleted)]
                if deleted and one is not stack:
                    self._store.save(one)


def _failed(what: str, failures: dict[str, Exception]) -> str | None:
    if not failures:
        return None
    return f"The following resource(s) failed to {what}: [{', '.join(failures)}]."
