"""Changes moto's server so that this package, not moto, carries out CloudFormation's operations on stacks.

moto's server still reads the requests and writes the answers. It keeps stack sets and types, which are not carried out
here.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from thawd.server.emulator.cloudformation import nested_stacks, saved_moto_stacks
from thawd.server.emulator.cloudformation.api import StackOperations
from thawd.server.emulator.cloudformation.change_sets import ChangeSets
from thawd.server.emulator.cloudformation.engine import Engine
from thawd.server.emulator.cloudformation.errors import StackError
from thawd.server.emulator.cloudformation.providers.aws_clients import Aws
from thawd.server.emulator.cloudformation.providers.kinds_by_type import Registry
from thawd.server.emulator.cloudformation.resource_changes import Services
from thawd.server.emulator.cloudformation.stack_files import StackStore
from thawd.server.emulator.cloudformation.stack_records import Event, Stack
from thawd.server.emulator.cloudformation.template_plans import Planner
from thawd.server.emulator.deferred_imports import DeferredImports
from thawd.server.emulator.state_saving import Saving

_OWN = "DescribeStackSetOutput"


class Stacks:
    """The stacks of the emulator.

    Args:
        folder: folder for the records of stacks; None: they are lost when the process ends.
        connect: returns a boto3 client for thawd's address, by the name of the service.
        saving: reports changes of moto's state, so that they are saved.
        imports: imports that modules of moto have deferred.
        complain: prints a line for the operator.
    """

    def __init__(
        self,
        folder: Path | None,
        connect: Callable[..., Any],
        *,
        saving: Saving,
        imports: DeferredImports,
        complain: Callable[[str], None],
    ) -> None:
        aws, registry = Aws(connect), Registry(saving.changing)
        store = StackStore(folder, complain)
        self._notices: queue.SimpleQueue[tuple[Stack, Event]] = queue.SimpleQueue()
        services = Services(
            store=store,
            planner=Planner(store, aws, registry),
            registry=registry,
            aws=aws,
            settle=saving.settle,
            notify=self._notify,
            complain=complain,
            ending=threading.Event(),
        )
        self.store = store
        self._aws = aws
        self._imports = imports
        self._services = services
        self._engine = Engine(services)
        registry.add(nested_stacks.kinds(self._engine, services))
        self._operations = (StackOperations(services, self._engine), ChangeSets(services, self._engine))
        threading.Thread(target=self._publish, daemon=True).start()

    def module_changes(self) -> dict[str, list[Callable[[], None]]]:
        """Return the functions that change moto's modules, so that this package answers CloudFormation's requests."""
        return {
            "moto.cloudformation.parsing": [_refuse_functions_of_stack_sets, self._find_all_types],
            "moto.cloudformation.responses": [self._answer],
            "moto.moto_api._internal.models": [self._reset],
        }

    def _answer(self) -> None:
        from moto.cloudformation.exceptions import CloudFormationError
        from moto.cloudformation.responses import CloudFormationResponse
        from moto.core.responses import ActionResult

        def answering(operation: Callable[..., Any]) -> Callable[[Any], Any]:
            def answer(response: Any) -> Any:
                place = (response.current_account, response.region)
                try:
                    return ActionResult(operation(place, dict(response.params)))
                except StackError as error:
                    raise CloudFormationError(error.code, error.message) from error

            return answer

        for operations in self._operations:
            for name in dir(operations):
                if not name.startswith("_"):
                    setattr(CloudFormationResponse, name, answering(getattr(operations, name)))
        transformers = CloudFormationResponse.RESPONSE_KEY_PATH_TO_TRANSFORMER
        kept = {path: change for path, change in transformers.items() if path.startswith(_OWN)}
        CloudFormationResponse.RESPONSE_KEY_PATH_TO_TRANSFORMER = kept

    def _find_all_types(self) -> None:
        """Make moto's list of the classes for resource types complete, although their modules are imported later."""
        from moto.cloudformation import parsing

        classes = parsing.get_model_list

        def all_classes() -> Any:
            self._imports.complete()
            return classes()

        setattr(parsing, "get_model_list", all_classes)  # noqa: B010 - mypy forbids to assign to a function

    def _reset(self) -> None:
        """Forget all stacks when all services of the emulator are emptied."""
        from moto.moto_api._internal.models import MotoAPIBackend

        reset = MotoAPIBackend.reset

        def reset_all(backend: Any) -> None:
            self.store.empty()
            reset(backend)

        setattr(MotoAPIBackend, "reset", reset_all)  # noqa: B010 - mypy forbids to assign to a method

    def take_over(self) -> None:
        """Take over the stacks of a loaded state that an earlier version has saved, and find what was interrupted.

        Call it before requests are served.
        """
        if "moto.cloudformation.models" in sys.modules:  # otherwise the state has none
            saved_moto_stacks.take_over(self.store, self._services.planner, self._services.complain)
        self._engine.find_interrupted()

    def resume(self) -> None:
        """Complete, or roll back, the operations that ran when the process ended. thawd must be connected."""
        self._engine.resume()

    def end(self) -> None:
        """Take note that this process is about to end. Calls that fail from now on are no failures of stacks."""
        self._services.ending.set()

    def _notify(self, stack: Stack, event: Event) -> None:
        if stack.settings.notification_arns:
            self._notices.put((stack, event))

    def _publish(self) -> None:
        """Publish events to the topics of their stacks, one after another."""
        while True:
            stack, event = self._notices.get()
            message = "\n".join(
                f"{name}='{value}'"
                for name, value in (
                    ("StackId", stack.id),
                    ("EventId", event.id),
                    ("LogicalResourceId", event.logical_id),
                    ("PhysicalResourceId", event.physical_id),
                    ("ResourceProperties", event.properties or json.dumps(None)),
                    ("ResourceStatus", event.status),
                    ("ResourceStatusReason", event.reason or ""),
                    ("ResourceType", event.kind),
                    ("StackName", stack.name),
                )
            )
            for arn in stack.settings.notification_arns:
                try:
                    given = {"TopicArn": arn, "Subject": "AWS CloudFormation Notification", "Message": message}
                    self._aws.call("sns", "publish", given)
                except Exception:  # a topic that is gone does not stop the stack, as on AWS
                    continue


def _refuse_functions_of_stack_sets() -> None:
    """Refuse functions in the stacks of stack sets: moto would make functions that cannot be invoked."""
    from moto.cloudformation import parsing
    from moto.cloudformation.exceptions import ValidationError

    class_of = parsing.resource_class_from_type

    def class_of_others(resource_type: str) -> Any:
        if resource_type.startswith("AWS::Lambda::"):
            raise ValidationError(
                message=f"thawd cannot make {resource_type} by a stack set; make a stack of the template"
            )
        return class_of(resource_type)

    setattr(parsing, "resource_class_from_type", class_of_others)  # noqa: B010 - mypy forbids to assign to a function
