"""Makes the emulated Step Functions run state machines whose tasks call thawd's functions and the emulated services.

moto contains the interpreter of the Amazon States Language: it runs the states (Map, Parallel, Choice and the others),
evaluates JSONPath, retries and catches errors. It is off by default. This module turns it on and changes it:

- tasks send their requests to thawd's port;
- an execution fails, instead of running for ever, if the interpreter itself raises an exception;
- executions that have ended are saved with their history. An execution that runs when the emulator ends cannot
  continue, and is saved as failed.

It runs in the emulator's own process.

Source: Step Functions developer guide, "Invoke an AWS Lambda function with Step Functions", "Handling errors in Step
Functions workflows"; API reference, StartSyncExecution.
"""

from __future__ import annotations

import copy
import datetime
import json
import logging
import re
import sys
import uuid
from collections.abc import Callable
from typing import Any

_RUNTIME = "States.Runtime"
_PLAIN = "_thawd_plain_backends"
_BROKEN_OFF = "the emulator of thawd ended while the execution ran"

Connect = Callable[..., Any]


def install(connect: Connect, *, changed: Callable[[], None], complain: Callable[[str], None]) -> None:
    """Change ``moto.stepfunctions``: turn moto's interpreter on.

    Args:
        connect: returns a boto3 client for thawd's address, by service and region. With ``is_patient``, the client
            waits for the longest invocations and does not retry.
        changed: called when an execution has ended and the state must be saved.
        complain: prints a line for the operator.
    """
    from moto.core.config import default_user_config
    from moto.stepfunctions.parser.asl.utils import boto_client

    default_user_config["stepfunctions"]["execute_state_machine"] = True

    def client_for(region: str, service: str, state_credentials: Any = None) -> Any:
        return connect(service, region=region, is_patient=True)

    # Other modules of the interpreter import this function by its name.
    plain = boto_client.boto_client_for
    for name, module in list(sys.modules.items()):
        if name.startswith("moto.stepfunctions.") and vars(module).get("boto_client_for") is plain:
            vars(module)["boto_client_for"] = client_for
    logging.getLogger("moto.stepfunctions").setLevel(logging.CRITICAL)  # it logs the failures of tasks
    _serve_everyone()
    _name_errors()
    _leave_out_null()
    _evaluate_jsonata()
    _make_from_templates()
    _end_in_any_case(changed, complain)
    _save_executions()
    _answer_as_on_aws()


def take_over() -> None:
    """Move state machines that were saved before the interpreter was turned on to the interpreter's backend."""
    models: Any = sys.modules.get("moto.stepfunctions.models")
    if models is None:  # the state has no state machines
        return
    for account, by_region in list(vars(models)[_PLAIN].items()):
        for region, plain in list(by_region.items()):
            backend = models.stepfunctions_backends[account][region]
            known = {machine.arn for machine in backend.state_machines}
            for machine in plain.state_machines:
                if machine.arn not in known:
                    machine.executions, machine.backend = [], backend
                    backend.state_machines.append(machine)
            plain.state_machines = []


def _serve_everyone() -> None:
    """Make the other services of moto, such as EventBridge, use the backends with the interpreter."""
    from moto.stepfunctions import models
    from moto.stepfunctions.parser.models import StepFunctionsParserBackend, stepfunctions_parser_backends

    start = StepFunctionsParserBackend.start_execution

    def start_with_name(
        backend: Any, state_machine_arn: str, name: str | None = None, *given: Any, **named: Any
    ) -> Any:
        return start(backend, state_machine_arn, name or str(uuid.uuid4()), *given, **named)

    setattr(StepFunctionsParserBackend, "start_execution", start_with_name)  # noqa: B010
    vars(models)[_PLAIN] = models.stepfunctions_backends
    vars(models)["stepfunctions_backends"] = stepfunctions_parser_backends


def _name_errors() -> None:
    """Give errors the names that they have on AWS."""
    from botocore.exceptions import ClientError
    from moto.core.exceptions import AWSError
    from moto.stepfunctions.parser import api
    from moto.stepfunctions.parser.asl.component.state.exec.state_task.service import state_task_service_lambda
    from moto.stepfunctions.parser.asl.component.state.exec.state_task.state_task_lambda import StateTaskLambda

    for found in vars(api).values():
        if isinstance(found, type) and issubclass(found, AWSError) and isinstance(vars(found).get("code"), str):
            found.TYPE, found.STATUS = vars(found)["code"], vars(found).get("status_code", 400)
    state_task_service_lambda._SUPPORTED_API_PARAM_BINDINGS["invoke"].add("InvocationType")
    from_error = StateTaskLambda._from_error

    def from_error_with_name(task: Any, env: Any, ex: Exception) -> Any:
        event: Any = from_error(task, env, ex)
        if isinstance(ex, ClientError):
            name, cause = state_task_service_lambda.StateTaskServiceLambda._error_cause_from_client_error(ex)
            event.error_name.error_name = name
            event.event_details["lambdaFunctionFailedEventDetails"].update(error=name, cause=cause)
        return event

    setattr(StateTaskLambda, "_from_error", from_error_with_name)  # noqa: B010


def _leave_out_null() -> None:
    """Let null among the arguments of an operation (`aws-sdk`) count as absent, as on AWS."""
    from moto.stepfunctions.parser.asl.component.state.exec.state_task.service import state_task_service_aws_sdk

    task_class = state_task_service_aws_sdk.StateTaskServiceAwsSdk
    evaluate: Any = task_class._eval_service_task

    def evaluate_given(task: Any, *others: Any, normalised_parameters: dict[str, Any], **named: Any) -> None:
        given = {name: value for name, value in normalised_parameters.items() if value is not None}
        evaluate(task, *others, normalised_parameters=given, **named)

    setattr(task_class, "_eval_service_task", evaluate_given)  # noqa: B010


def _evaluate_jsonata() -> None:
    """Evaluate JSONata with a Python library. moto's interpreter needs a Java library, which moto does not contain."""
    from moto.stepfunctions.parser.asl.jsonata import jsonata as expressions

    def evaluate(expression: str) -> Any:
        import jsonata  # only state machines with JSONata need it

        try:
            return jsonata.Jsonata(expression).evaluate(None)
        except Exception as error:  # the library raises errors of several classes
            raise expressions.JSONataException("UNKNOWN", str(error)) from error

    vars(expressions)["_eval_jsonata"] = evaluate


def _make_from_templates() -> None:
    """Make state machines from templates with all properties that contain their definition."""
    from moto.stepfunctions.models import StateMachine

    create, update = StateMachine.create_from_cloudformation_json, StateMachine.update_from_cloudformation_json

    def create_defined(kind: Any, /, resource_name: str, cloudformation_json: Any, *place: str, **facts: Any) -> Any:
        made = create(resource_name, _defined(cloudformation_json), *place, **facts)
        made.type = cloudformation_json["Properties"].get("StateMachineType", "STANDARD")
        return made

    def update_defined(
        kind: Any, /, original: Any, new_name: str, cloudformation_json: Any, *place: str, **facts: Any
    ) -> Any:
        return update(original, new_name, _defined(cloudformation_json), *place, **facts)

    setattr(StateMachine, "create_from_cloudformation_json", classmethod(create_defined))  # noqa: B010
    setattr(StateMachine, "update_from_cloudformation_json", classmethod(update_defined))  # noqa: B010


def _defined(resource: dict[str, Any]) -> dict[str, Any]:
    properties = dict(resource.get("Properties", {}))
    if "Definition" in properties:
        properties["DefinitionString"] = json.dumps(properties["Definition"])
    substitutions = properties.get("DefinitionSubstitutions", {})
    properties["DefinitionString"] = substituted(properties.get("DefinitionString", ""), substitutions)
    return {**resource, "Properties": properties}


def substituted(definition: str, substitutions: dict[str, Any]) -> str:
    """Replace each ``${NAME}`` in a state machine's definition by its value in ``DefinitionSubstitutions``."""

    def value(match: re.Match[str]) -> str:
        found = substitutions.get(match[1], match[0])
        return found if isinstance(found, str) else json.dumps(found)

    return re.sub(r"\$\{([\w.-]+)\}", value, definition)


def _end_in_any_case(changed: Callable[[], None], complain: Callable[[str], None]) -> None:
    """Make an execution fail if the interpreter raises an exception, and call `changed` when any execution ends."""
    from moto.stepfunctions.parser.backend.execution_worker import ExecutionWorker

    run = ExecutionWorker._execution_logic

    def run_to_the_end(worker: Any) -> None:
        try:
            run(worker)  # type: ignore[no-untyped-call]
        except Exception as error:  # the interpreter does not handle its own bugs: the execution would run for ever
            execution = worker._execution_communication.execution
            complain(f"thawd: --aws: the execution {execution.exec_arn} failed inside the emulator: {error!r}")
            _fail(execution, f"{type(error).__name__}: {error}")
        changed()

    setattr(ExecutionWorker, "_execution_logic", run_to_the_end)  # noqa: B010


def _fail(execution: Any, cause: str) -> None:
    from moto.stepfunctions.parser.api import ExecutionStatus, SyncExecutionStatus

    execution.stop_date = datetime.datetime.now(tz=datetime.UTC)
    execution.error, execution.cause = _RUNTIME, cause
    execution.exec_status = ExecutionStatus.FAILED
    execution.sync_execution_status = SyncExecutionStatus.FAILED


class EndedWorker:
    """Replaces the worker of an execution in the saved state, because the worker is a thread.

    It answers what moto asks about an execution that has ended. In moto, several objects answer; here, the attributes
    all refer to this object.

    Attributes:
        env: the worker's environment.
        event_manager: in moto, the part of the environment that has the history.
        map_run_record_pool_manager: in moto, the part of the environment that has the map runs.
        callback_pool_manager: in moto, the part of the environment that has the task tokens.
    """

    def __init__(self, history: list[Any]) -> None:
        self._history = history
        self.env = self.event_manager = self.map_run_record_pool_manager = self.callback_pool_manager = self

    def get_event_history(self) -> list[Any]:
        """Return the history of the execution."""
        return self._history

    def get(self, arn: str) -> None:
        """Return None: the records of map runs are not saved."""

    def get_all(self) -> list[Any]:
        """Return no map runs: their records are not saved."""
        return []

    def notify(self, callback_id: str, outcome: Any) -> bool:
        """Return False: no task waits for this token."""
        return False

    def heartbeat(self, callback_id: str) -> bool:
        """Return False: no task waits for this token."""
        return False

    def stop(self, stop_date: Any, error: str | None, cause: str | None) -> None:
        """Do nothing, because the execution has ended."""


def _save_executions() -> None:
    from moto.stepfunctions.parser.api import ExecutionStatus
    from moto.stepfunctions.parser.backend.execution import Execution

    def get_state(execution: Any) -> dict[str, Any]:
        worker = execution.exec_worker
        environment = None if worker is None else worker.env
        history = [] if environment is None else list(environment.event_manager.get_event_history())
        return {**vars(execution), "exec_worker": EndedWorker(history)}

    def set_state(execution: Any, state: dict[str, Any]) -> None:
        vars(execution).update(state)
        if execution.exec_status == ExecutionStatus.RUNNING:
            _fail(execution, _BROKEN_OFF)

    setattr(Execution, "__getstate__", get_state)  # noqa: B010
    setattr(Execution, "__setstate__", set_state)  # noqa: B010


def _answer_as_on_aws() -> None:
    """Add the operation StartSyncExecution, and correct the answer of DescribeExecution.

    moto has a class for synchronous executions, but no operation that starts them.
    """
    from moto.core.exceptions import AWSError
    from moto.core.responses import ActionResult
    from moto.stepfunctions.exceptions import InvalidExecutionInput
    from moto.stepfunctions.parser.api import StateMachineType
    from moto.stepfunctions.parser.backend.execution import SyncExecution
    from moto.stepfunctions.responses import StepFunctionResponse

    class StateMachineTypeNotSupported(AWSError):
        TYPE = "StateMachineTypeNotSupported"

    def start_sync_execution(response: Any) -> ActionResult:
        backend = response.stepfunction_backend
        machine = backend.describe_state_machine(response._get_param("stateMachineArn"))
        if machine.type != "EXPRESS":
            raise StateMachineTypeNotSupported("This operation is not supported by this type of state machine")
        name = response._get_param("name") or str(uuid.uuid4())
        place = f"{backend.region_name}:{backend.account_id}"
        arn = f"arn:{backend.partition}:states:{place}:express:{machine.name}:{name}:{uuid.uuid4()}"
        try:
            execution = SyncExecution(
                name=name,
                sm_type=StateMachineType.EXPRESS,
                role_arn=machine.roleArn,
                exec_arn=arn,
                account_id=backend.account_id,
                region_name=backend.region_name,
                state_machine=copy.copy(machine),
                start_date=datetime.datetime.now(tz=datetime.UTC),
                cloud_watch_logging_session=None,
                activity_store={},
                input_data=response._get_param("input") or "{}",
                trace_header=response._get_param("traceHeader"),
            )
        except ValueError as error:
            raise InvalidExecutionInput(f"Invalid State Machine Execution Input: '{error}'") from error
        execution.start()
        return ActionResult(execution.to_start_sync_execution_output())

    describe = StepFunctionResponse.describe_execution

    def describe_execution(response: Any) -> ActionResult:
        answer = describe(response)
        found = response.stepfunction_backend.describe_execution(response._get_param("executionArn"))
        if isinstance(found.output, str):  # moto would take it for JSON
            vars(answer)["_result"]["output"] = json.dumps(found.output)
        return answer

    setattr(StepFunctionResponse, "start_sync_execution", start_sync_execution)  # noqa: B010
    setattr(StepFunctionResponse, "describe_execution", describe_execution)  # noqa: B010
