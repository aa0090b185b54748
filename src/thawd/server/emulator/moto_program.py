"""The program behind ``thawd up --aws``: runs moto's server on a free loopback port, and prints the port.

``python -m thawd.server.emulator.moto_program [FOLDER]`` loads the state of the emulated services from FOLDER and saves
it there; without FOLDER the state is lost when the process exits. With ``--folder-follows``, the first line on standard
input is FOLDER, a JSON string: the program is started before the server has locked its data folder. The next lines, of
JSON, say how thawd's Lambda API is reached (`thawd.server.emulator.sns_to_functions`). The program exits when its
standard input is closed, so it ends with the server that started it. No module imports this one, because moto is an
optional dependency.
"""

from __future__ import annotations

import gc
import io
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from thawd.server.emulator import (
    bucket_policies,
    dynamodb_streams,
    error_answers,
    eventbridge_rules,
    eventbridge_schedules,
    imports_ahead,
    kinesis_destinations,
    lambda_backend,
    long_polls,
    object_contents,
    service_models,
    state_machines,
    trace_headers,
)
from thawd.server.emulator.api_gateway.api_services import ApiServices
from thawd.server.emulator.api_gateway.authorizer_cache import AuthorizerCache
from thawd.server.emulator.api_gateway.function_invocations import ApiFunctions
from thawd.server.emulator.api_gateway.operations import http_apis, rest_apis
from thawd.server.emulator.api_gateway.request_routing import serving
from thawd.server.emulator.cloudformation.installation import Stacks
from thawd.server.emulator.deferred_imports import DeferredImports
from thawd.server.emulator.error_answers import Application
from thawd.server.emulator.eventbridge_targets import EventTargets
from thawd.server.emulator.module_changes import Change, ModuleChanges
from thawd.server.emulator.sns_to_functions import FunctionTargets
from thawd.server.emulator.state import EmulatedState, StateError
from thawd.server.emulator.state_saving import Keeper, Saving

# HTTP methods that do not change the state of a service.
_SAFE = ("GET", "HEAD", "OPTIONS")
# The names of operations that do not change the state of a service begin with one of these words.
_READING = ("Get", "List", "Describe", "Scan", "Query", "BatchGet", "Head", "Lookup")
# Operations that may take long: long polls for messages, and operations that run functions, which may themselves send
# requests to the emulator. A save of the state does not wait for them.
_LONG = (
    "ReceiveMessage",
    "CreateStack",
    "UpdateStack",
    "CreateChangeSet",
    "StartSyncExecution",
    "RotateSecret",
)
# moto's packages that are no service.
_SHARED = ("core", "cloudformation", "moto_api", "settings", "utilities")


def main(folder: str | None = None, *, follows: bool = False, for_stacks: bool = False) -> None:
    """Serve until standard input is closed.

    Args:
        folder: folder for the state; None: the state is lost.
        follows: whether the first line on standard input is the folder.
        for_stacks: whether to import in advance what stacks need.
    """
    gc.disable()  # while modules are imported, as in `ModuleChanges`
    imports = _deferred_imports()
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication
    from werkzeug.serving import make_server

    if follows:
        line = sys.stdin.buffer.readline()
        if not line:
            return  # the server does not start
        folder = json.loads(line)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    # A service manager may send a stop signal to the server and to this program. The signal must stop only the server,
    # because the invocations that the server lets finish may use this program. The server then closes this program's
    # standard input.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    object_contents.return_memory()
    service_models.share()
    targets, saving = FunctionTargets(_complain), Saving()
    events = EventTargets(targets.client, _complain)
    api_services = ApiServices(
        functions=ApiFunctions(lambda: targets.client(is_patient=True)),
        client=targets.client,
        connection=targets.connection,
        complain=_complain,
    )
    application = error_answers.in_protocol(DomainDispatcherApplication(error_answers.create_app), _complain)
    try:
        state = None if folder is None else EmulatedState(Path(folder))
        stacks = Stacks(
            None if folder is None else Path(folder) / "stacks",
            targets.client,
            saving=saving,
            imports=imports,
            complain=_complain,
        )
        ModuleChanges(
            "moto", {**_module_changes(targets, events, api_services.cache, saving), **stacks.module_changes()}
        ).install()
        if state is not None:
            state.load()
            state_machines.take_over()
            stacks.take_over()
            saving.keeper = Keeper(state, complain=_complain)
            application = _kept(application, saving.keeper)
            saving.keeper.start()
    except StateError as error:
        sys.exit(f"thawd: --aws: {error}")
    server = make_server("127.0.0.1", 0, serving(application, api_services), threaded=True)
    gc.freeze()  # the collector need not look at what was imported
    gc.enable()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.port, flush=True)
    if for_stacks:
        imports_ahead.begin()
    is_connected = False
    for line in sys.stdin.buffer:
        targets.connect(json.loads(line))
        if not is_connected:
            is_connected = True
            eventbridge_schedules.Clock(
                partial(eventbridge_schedules.find, events), changed=saving.changed, complain=_complain
            ).start()
            stacks.resume()
    stacks.end()
    if saving.keeper is not None:
        saving.keeper.end()
    os._exit(0)


def _deferred_imports() -> DeferredImports:
    """Begin to defer imports of moto that take long and are rarely needed."""

    def of_another_service(module: str) -> bool:
        package, _, rest = module.partition(".")
        return package == "moto" and rest.partition(".")[0] not in _SHARED

    imports = DeferredImports(
        {
            "moto.cloudformation.custom_model": of_another_service,
            "moto.cloudformation.models": of_another_service,
            "moto.cloudformation.parsing": of_another_service,
            "moto.ssm.models": lambda module: module == "moto.ec2",
            # Of these models of properties, a template of SAM needs at most one.
            "samtranslator.model.sam_resources": lambda module: module == "samtranslator.internal.schema_source",
        }
    )
    imports.install()
    return imports


def _module_changes(
    targets: FunctionTargets, events: EventTargets, cache: AuthorizerCache, saving: Saving
) -> dict[str, Sequence[Change]]:
    """Return the functions that change moto's modules, by module."""
    connect = targets.client
    return {
        "moto.apigateway": [partial(rest_apis.install, cache)],
        "moto.apigatewayv2": [partial(http_apis.install, targets.connection)],
        "moto.awslambda.models": [partial(lambda_backend.install, connect)],
        "moto.core.common_models": [object_contents.keep_no_lists],
        "moto.dynamodb.models": [kinesis_destinations.install_records],
        "moto.dynamodb.responses": [kinesis_destinations.install_operations],
        "moto.dynamodbstreams.models": [dynamodb_streams.install],
        "moto.events.models": [partial(eventbridge_rules.install, events), eventbridge_schedules.check_rules],
        "moto.kinesis.models": [kinesis_destinations.install_numbers],
        "moto.s3.models": [object_contents.change_models, bucket_policies.install],
        "moto.s3.responses": [object_contents.change_responses],
        "moto.scheduler.models": [eventbridge_schedules.check_schedules],
        "moto.sns.models": [targets.install],
        "moto.sqs.models": [long_polls.install, trace_headers.install],
        "moto.stepfunctions": [partial(state_machines.install, connect, changed=saving.changed, complain=_complain)],
    }


def _complain(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _kept(application: Application, keeper: Keeper) -> Application:
    """Wrap `application`, so that `keeper` learns of its requests and saves the changes that they make."""

    def serve(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        # Read the body before `enter`: it may arrive slowly, and a save waits for requests that have entered.
        body = _read(environ)
        environ["wsgi.input"] = io.BytesIO(body)
        changes = _changes(environ, body)
        environ[error_answers.ACTION] = _action(environ, body)
        if environ[error_answers.ACTION] in _LONG:  # a save does not wait for this request
            answer = _whole(application(environ, start_response))
            keeper.changed()
            return answer
        keeper.enter()
        try:
            return _whole(application(environ, start_response))
        finally:
            keeper.leave(changed=changes)

    return serve


def _whole(answer: Iterable[bytes]) -> list[bytes]:
    try:
        return list(answer)
    finally:
        close = getattr(answer, "close", None)
        if close is not None:
            close()


def _read(environ: dict[str, Any]) -> bytes:
    length = environ.get("CONTENT_LENGTH")
    if length:
        return bytes(environ["wsgi.input"].read(int(length)))
    return bytes(environ["wsgi.input"].read()) if environ.get("wsgi.input_terminated") else b""


def _action(environ: dict[str, Any], body: bytes) -> str:
    """Return the operation that a request in AWS's JSON or query protocol names; empty for other requests."""
    target = str(environ.get("HTTP_X_AMZ_TARGET", ""))
    if target:
        return target.rpartition(".")[2]
    form = body if environ.get("CONTENT_TYPE", "").startswith("application/x-www-form-urlencoded") else b""
    for text in (form.decode("latin-1"), environ.get("QUERY_STRING", "")):
        for part in text.split("&"):
            if part.startswith("Action="):
                return part.removeprefix("Action=")
    return ""


def _changes(environ: dict[str, Any], body: bytes) -> bool:
    """Return whether a request may change the state of a service."""
    action = _action(environ, body)
    if action:
        return not action.startswith(_READING)
    return environ["REQUEST_METHOD"] not in _SAFE


if __name__ == "__main__":
    _options = set(sys.argv[1:]) & {"--folder-follows", "--for-stacks"}
    _folders = [each for each in sys.argv[1:] if each not in _options]
    main(*_folders[:1], follows="--folder-follows" in _options, for_stacks="--for-stacks" in _options)
