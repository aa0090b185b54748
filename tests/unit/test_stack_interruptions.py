"""What a stack's record says after a call that failed without an answer."""

from __future__ import annotations

import contextlib
import dataclasses
import threading

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError, EndpointConnectionError

from thawd.server.emulator.cloudformation.engine import Engine
from thawd.server.emulator.cloudformation.errors import Interrupted, LeftBehind, ResourceError
from thawd.server.emulator.cloudformation.providers.aws_clients import Aws
from thawd.server.emulator.cloudformation.providers.kinds_by_type import Registry
from thawd.server.emulator.cloudformation.providers.resource_kind import Kind, Made, Wanted, or_else
from thawd.server.emulator.cloudformation.resource_changes import Services
from thawd.server.emulator.cloudformation.stack_files import StackStore
from thawd.server.emulator.cloudformation.stack_records import Resource, Settings, Stack
from thawd.server.emulator.cloudformation.template_plans import Planner

TEMPLATE = "Resources: {Box: {Type: Test::A::Box}}"


def unanswered() -> Exception:
    return ConnectionClosedError(endpoint_url="http://127.0.0.1:1")


def answered(status: int) -> Exception:
    return ClientError({"Error": {"Code": "X"}, "ResponseMetadata": {"HTTPStatusCode": status}}, "CreateBox")


class Ending(threading.Event):
    """Says at once whether the process ends, instead of waiting for it."""

    def __init__(self, is_ending: bool) -> None:
        super().__init__()
        self._is_ending = is_ending

    def wait(self, timeout: float | None = None) -> bool:
        return self._is_ending


class Boxes:
    """Boxes are made, and then an error is raised; deleted boxes are in a list."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.deleted: list[dict[str, object]] = []

    def make(self, aws: Aws, wanted: Wanted) -> Made:
        raise self.error

    def delete(self, aws: Aws, resource: Resource) -> None:
        self.deleted.append(resource.facts)

    def kind(self) -> Kind:
        return Kind(self.make, self.delete, expected=lambda wanted: {"Name": wanted.name})


def services_with(boxes: Boxes, ending: threading.Event) -> Services:
    aws = Aws(lambda service, **options: None)
    registry = Registry(contextlib.nullcontext)
    registry.add({"Test::A::Box": boxes.kind()})
    store = StackStore(None, print)
    return Services(
        store=store,
        planner=Planner(store, aws, registry),
        registry=registry,
        aws=aws,
        settle=lambda: None,
        notify=lambda stack, event: None,
        complain=print,
        ending=ending,
    )


def stack_of(services: Services) -> Stack:
    settings = Settings(template=TEMPLATE)
    stack = Stack("arn:1", "app", "000000000000", "us-east-1", settings, 0.0, "CREATE_IN_PROGRESS")
    services.store.save(stack)
    return stack


def create(boxes: Boxes) -> Stack:
    services = services_with(boxes, Ending(False))
    stack = stack_of(services)
    Engine(services).create(stack)
    return stack


@pytest.mark.parametrize(
    "error", [unanswered(), EndpointConnectionError(endpoint_url="http://x"), answered(500), LeftBehind("half made")]
)
def test_a_resource_that_may_exist_after_a_failure_is_deleted_by_the_rollback(
    error: Exception,
) -> None:
    boxes = Boxes(error)
    stack = create(boxes)
    assert stack.status == "ROLLBACK_COMPLETE"
    assert [str(facts["Name"]).startswith("app-Box-") for facts in boxes.deleted] == [True]


@pytest.mark.parametrize("error", [answered(409), ResourceError("no")])
def test_a_resource_whose_making_was_refused_is_not_deleted_since_it_may_be_somebody_elses(
    error: Exception,
) -> None:
    boxes = Boxes(error)
    assert create(boxes).status == "ROLLBACK_COMPLETE"
    assert boxes.deleted == []


def test_a_failure_because_thawd_ends_is_not_recorded_and_the_next_start_rolls_back() -> None:
    boxes = Boxes(unanswered())
    services = services_with(boxes, Ending(True))
    stack = stack_of(services)
    with pytest.raises(Interrupted):
        Engine(services).create(stack)
    assert (stack.status, stack.resources["Box"].status) == ("CREATE_IN_PROGRESS", "CREATE_IN_PROGRESS")

    is_rolled_back = threading.Event()
    after = services_with(boxes, Ending(False))
    after = dataclasses.replace(
        after, notify=lambda stack, event: is_rolled_back.set() if stack.status == "ROLLBACK_COMPLETE" else None
    )
    after.store.save(stack)
    engine = Engine(after)
    engine.find_interrupted()
    engine.resume()
    assert is_rolled_back.wait(60)
    assert len(boxes.deleted) == 1


def test_an_operation_that_begins_before_interrupted_ones_are_resumed_goes_on() -> None:
    services = services_with(Boxes(unanswered()), Ending(False))
    engine = Engine(services)
    engine.find_interrupted()
    stack = stack_of(services)
    begun = threading.Event()
    goes_on = threading.Event()

    def work(stack: Stack) -> None:
        begun.set()
        goes_on.wait(60)

    engine.start(stack, work)
    assert begun.wait(60)
    engine.resume()
    thread = engine.stop(stack)
    assert thread is not None
    goes_on.set()
    thread.join()
    assert stack.status == "CREATE_IN_PROGRESS", "nothing has rolled it back"


def test_what_could_not_be_undone_is_left_behind_for_the_reason_of_the_first_failure() -> None:
    def undo() -> None:
        raise unanswered()

    with pytest.raises(LeftBehind, match="first"), or_else(undo):
        raise ResourceError("first")
