"""Claims about `thawd.environments.init_phase.InitError`: the documents that callers get."""

from __future__ import annotations

import json

import pytest

from thawd.environments.init_phase import InitError, error_document

STARTED = "Error: Runtime exited with error: exit status 3"


@pytest.mark.parametrize(
    ("document", "by_function", "message"),
    [
        (error_document("Runtime.ExitError", STARTED), False, f"RequestId: r1 {STARTED}"),
        (error_document("Runtime.ExitError", STARTED), True, f"RequestId: r1 {STARTED}"),
        (error_document("Sandbox.Timedout", "Init timed out"), False, "RequestId: r1 Error: Init timed out"),
        (error_document("ValueError", "no luck"), True, "no luck"),
        (
            b'{"errorType": "E", "errorMessage": "Error: its own", "requestId": "", "stackTrace": []}',
            True,
            "Error: its own",
        ),
    ],
)
def test_what_the_platform_says_begins_with_the_request_id_and_what_the_function_says_is_not_changed(
    document: bytes, by_function: bool, message: str
) -> None:
    error = InitError("it failed", document, by_function=by_function)
    assert json.loads(error.document_for("r1"))["errorMessage"] == message


@pytest.mark.parametrize("document", [b"", b"not JSON", b"[1]", b'{"errorType": 1}'])
def test_what_is_no_error_document_is_passed_on(document: bytes) -> None:
    assert InitError("it failed", document, by_function=True).document_for("r1") == document
