"""Runs batches: calls a handler that takes a list of events, and makes an answer for each item of the batch.

A batch consists of several invocations of one version that the platform has joined; each is an item.

An item can fail alone: if its payload is not JSON, if the handler returns an exception for it, or if its answer is too
large or not representable in JSON. The error then has the item's own request id. If the handler raises an exception or
does not return an answer for each item, all items fail.
"""

import os
from typing import Any, List, Optional, Sequence, Tuple

from thawd.runtime import faults, invoking, logs
from thawd.runtime.context import LambdaContext, context_of
from thawd.runtime.faults import Fault
from thawd.runtime.handler import Handler
from thawd.wire import frames

Answer = Tuple[bytes, bool]


class BatchContext(LambdaContext):
    """Facts about one batch: a context whose values concern all items.

    If the items were invoked by different qualifiers, `invoked_function_arn` contains no qualifier. `client_context` is
    None unless the batch has only one item.

    Attributes:
        items: the items' own contexts, in the order of the events.
        aws_request_id: the request ids of all items, separated by commas.
    """

    def __init__(self, items: List[LambdaContext], deadline_s: float) -> None:
        arns = {item.invoked_function_arn for item in items}
        arn = items[0].invoked_function_arn
        super().__init__(
            ",".join(item.aws_request_id for item in items),
            arn=arn if len(arns) == 1 else ":".join(arn.split(":")[:7]),
            deadline_s=deadline_s,
            client_context=None,
            tenant_id=items[0].tenant_id,  # all items are of one tenant
        )
        self.items = items
        if len(items) == 1:
            self.client_context = items[0].client_context


class BatchHandler:
    """A handler that takes a list of events.

    Raises:
        Fault: the handler streams its answer.
    """

    def __init__(self, handler: Handler) -> None:
        if getattr(handler, "streams", None) is True:
            raise Fault(
                "Runtime.InvalidBatchHandler",
                "the function has the option `batch`, so its handler must return a list of answers, but "
                "it streams its answers, or is a web application or a typed function; remove the option, or make it an "
                "ordinary function",
            )
        self._handler = handler

    def invoke(self, requests: Sequence[frames.Frame], *, now_s: float) -> List[Answer]:
        """Run the handler on the items; returns each item's answer as JSON text, and whether it is an error document.

        Args:
            requests: the INVOKE frames.
            now_s: when the batch began, ``time.monotonic()`` seconds.

        Raises:
            SystemExit: the handler called ``sys.exit``.
        """
        answers: List[Optional[Answer]] = [None] * len(requests)
        events: List[Any] = []
        items: List[LambdaContext] = []
        places: List[int] = []
        deadline_s = now_s + requests[0].head["left_ms"] / 1000
        for place, request in enumerate(requests):
            try:
                event, item = invoking.unmarshal(request.body), context_of(request.head, now_s=now_s)
            except Exception as error:  # this item fails alone
                answers[place] = _failure(error, request.head["id"])
                continue
            events.append(event)
            items.append(item)
            places.append(place)
        if items:
            trace_ids = [requests[place].head.get("trace") for place in places]
            for index, answer in enumerate(self._run(events, items, deadline_s, trace_ids)):
                answers[places[index]] = answer
        return [answer for answer in answers if answer is not None]

    def _run(
        self, events: List[Any], items: List[LambdaContext], deadline_s: float, trace_ids: List[Optional[str]]
    ) -> List[Answer]:
        """Call the handler with the items that have a valid event; returns the answers in the order of `items`."""
        context = BatchContext(list(items), deadline_s)
        request_ids = [item.aws_request_id for item in items]
        logs.set_request_id(context.aws_request_id)
        if len(items) == 1 and trace_ids[0]:
            os.environ["_X_AMZN_TRACE_ID"] = trace_ids[0]
        else:
            # The variable can hold only one trace id, and several items have different ones.
            os.environ.pop("_X_AMZN_TRACE_ID", None)
        try:
            returned = self._handler(events, context)
            if hasattr(type(returned), "__await__"):
                returned = invoking.finished(returned)
            answers = _checked(returned, len(items))
        except SystemExit as error:
            invoking.write_exit(error, context.aws_request_id)
            raise
        except BaseException as error:  # an exception of user code must not end the loop
            report = faults.report(error, context.aws_request_id)
            invoking.write_failure(report, error)
            return [(report.document_for(request_id), True) for request_id in request_ids]
        return [_answer(answer, request_ids[index]) for index, answer in enumerate(answers)]


def _checked(answers: Any, number: int) -> Sequence[Any]:
    """Return the handler's return value `answers` if it is a list or tuple of `number` answers.

    Raises:
        Fault: the value is not such a list.
    """
    if isinstance(answers, (list, tuple)):
        if len(answers) == number:
            return answers
        found = "a %s of %d" % (type(answers).__name__, len(answers))
    else:
        found = "None" if answers is None else "an object of type %s" % type(answers).__name__
    raise Fault(
        "Runtime.InvalidBatchResponse",
        "the handler got a list of %d events and must return a list of %d answers, in the same order, but returned %s"
        % (number, number, found),
    )


def _answer(answer: Any, request_id: str) -> Answer:
    if isinstance(answer, BaseException):
        return _failure(answer, request_id)
    try:
        return invoking.marshal(answer), False
    except Fault as error:
        return _failure(error, request_id)


def _failure(error: BaseException, request_id: str) -> Answer:
    """The answer for an item that failed alone; its failure is logged with its request id."""
    report = faults.report(error, request_id)
    invoking.write_failure(report, error, names_request=True)
    return report.document, True
