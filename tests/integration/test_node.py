"""Node handlers, treated as by AWS's own Node runtime: both kinds of module, callbacks, errors, the log, streaming."""

from __future__ import annotations

import base64
import json
import re
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from thawd.gateway.function_urls.table import url_id

from .conftest import Project, Running

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="there is no node on PATH")

FILES = {
    "common.js": """
        const fs = require("node:fs");
        const part = require("./lib/part.js");
        exports.callback = (event, context, callback) => callback(null, { part, here: fs.existsSync("common.js") });
        exports.later = (event, context, callback) => {
            setTimeout(() => callback(null, "later"), 20);
        };
        exports.fails = (event, context, callback) => callback(new TypeError("called back"));
        exports.text = (event, context, callback) => callback("only a text");
        exports.done = (event, context) => context.succeed("succeeded");
        exports.failed = (event, context) => context.fail(new RangeError("failed"));
        exports.nothing = () => "what is returned is not looked at";
        exports.api = { deep: { get: async () => "nested" } };
        exports.waits = (event, context, callback) => {
            const begun = Date.now();
            if (event.stop) context.callbackWaitsForEmptyEventLoop = false;
            setTimeout(() => {}, 2000);
            callback(null, "answered");
        };
        exports.throws = () => { throw new ReferenceError("thrown"); };
        exports.text_thrown = async () => { throw "a text"; };
        exports.hangs = async () => { await new Promise(() => {}); };
        const aMinute = () => new Promise((resolve) => setTimeout(resolve, 60000));
        exports.uncaught = async () => {
            setTimeout(() => { throw new Error("out of nowhere"); }, 1);
            await aMinute();
        };
        exports.unhandled = async () => {
            Promise.reject(new Error("not handled"));
            await aMinute();
        };
        exports.circle = async () => { const one = {}; one.self = one; return one; };
        exports.nothing_async = async () => {};
        exports.logs = async () => {
            console.log("one\\ntwo", { a: 1 });
            console.error("bad");
            console.debug("fine");
            process.stdout.write("raw\\n");
        };
        exports.json_logs = async () => {
            const circle = { a: 1n };
            circle.self = circle;
            console.debug("below the level");
            console.log("one\\ntwo", { a: 1 });
            console.warn({ key: "value" });
            console.error("it failed:", new TypeError("wrong"));
            console.error(new TypeError("alone"));
            console.info(circle);
        };
        exports.notAFunction = 5;
        exports.large = async (event) => (event.pid ? process.pid : "x".repeat(7000000));
        """,
    "lib/part.js": "module.exports = 'a part';",
    "lib/deep/inner.js": "exports.handler = async () => __filename.split('/').slice(-3).join('/');",
    "old.cjs": "exports.handler = async () => 'cjs';",
    "modern.mjs": """
        import { readFile } from "node:fs/promises";
        const text = JSON.parse(await readFile(new URL("./data.json", import.meta.url)));
        export const handler = async () => text;
        """,
    "data.json": '{"top": "level await"}',
    "esm/package.json": '{"type": "module"}',
    "esm/index.js": "export default { handler: async () => import.meta.url.split('/').pop() };",
    "broken.mjs": "export const handler = async () => {",
    "lacking.mjs": "import missing from 'no-such-package';\nexport const handler = async () => 1;",
    "lacking2.js": "require('./not/there');",
    "streaming.mjs": """
        import { existsSync } from "node:fs";
        export const parts = awslambda.streamifyResponse(async (event, stream, context) => {
            for (const part of ["one ", "two ", "three"]) {
                stream.write(part);
                do await new Promise((resolve) => setTimeout(resolve, 5));
                while (event.gate && !existsSync(event.gate));
            }
            stream.end();
        });
        export const prelude = awslambda.streamifyResponse(async (event, stream) => {
            const headers = { "Content-Type": "text/html", "X-Own": "1" };
            const metadata = { statusCode: 201, headers, cookies: ["a=b"] };
            stream = awslambda.HttpResponseStream.from(stream, metadata);
            stream.write("<p>");
            stream.end("done");
        });
        export const fails = awslambda.streamifyResponse(async () => { throw new TypeError("before the first byte"); });
        export const breaks = awslambda.streamifyResponse(async (event, stream) => {
            stream.write("half");
            throw new TypeError("in the middle");
        });
        export const large = awslambda.streamifyResponse(async (event, stream) => {
            if (event.pid) stream.end(String(process.pid));
            else stream.end(Buffer.alloc(7000000, "x"));
        });
        """,
}
HANDLERS = {
    **{name: f"common.{name}" for name in re.findall(r"exports\.(\w+) =", FILES["common.js"]) if name not in ("api",)},
    "nested": "common.api.deep.get",
    "inner": "lib/deep/inner.handler",
    "cjs": "old.handler",
    "modern": "modern.handler",
    "esm": "esm/index.handler",
    "broken": "broken.handler",
    "lacking": "lacking.handler",
    "lacking2": "lacking2.handler",
    "absent": "absent.handler",
    "unexported": "common.unexported",
    "nodot": "common",
    "outside": "../common.handler",
    "json_logs": "common.json_logs",
    "parts": "streaming.parts",
    "prelude": "streaming.prelude",
    "s_fails": "streaming.fails",
    "s_breaks": "streaming.breaks",
    "s_large": "streaming.large",
}
OPTIONS = {
    # Functions that a test invokes again must keep their environment. The others get a short idle timeout, which frees
    # room.
    "large": "",
    "s_large": "",
    "prelude": 'url = { auth_type = "NONE", invoke_mode = "RESPONSE_STREAM" }\n',
    "json_logs": 'log_format = "JSON"\napplication_log_level = "INFO"\n',
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with a function for each handler."""
    project = Project(tmp_path_factory.mktemp("node"))
    for name, text in FILES.items():
        project.code(text, f"code/{name}")
    major = "nodejs20.x"
    project.config(
        "max_environments = 64\n"
        + "".join(
            f'[functions.{name}]\nhandler = "{handler}"\nruntime = "{major}"\ncode = "code"\n'
            "memory_mb = 256\n" + OPTIONS.get(name, "idle_timeout_s = 1\n")
            for name, handler in HANDLERS.items()
        )
        + f'[runtimes]\n"{major}" = "{shutil.which("node")}"\n'
    )
    with project.up() as running:
        yield running


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("callback", {"part": "a part", "here": True}),
        ("later", "later"),
        ("done", "succeeded"),
        ("nothing", None),
        ("nothing_async", None),
        ("nested", "nested"),
        ("inner", "lib/deep/inner.js"),
        ("cjs", "cjs"),
        ("modern", {"top": "level await"}),
        ("esm", "index.js"),
    ],
)
def test_handlers_answer(running: Running, name: str, answer: Any) -> None:
    for _ in range(2):
        assert running.invoke(name, {}) == (answer, None)


@pytest.mark.parametrize(
    ("name", "error_type", "message"),
    [
        ("fails", "TypeError", "called back"),
        ("text", "string", "only a text"),
        ("failed", "RangeError", "failed"),
        ("throws", "ReferenceError", "thrown"),
        ("text_thrown", "string", "a text"),
        ("hangs", "Runtime.NodeJsExit", "The Lambda runtime client detected an unexpected Node.js exit code."),
        ("circle", "Runtime.MarshalError", "Unable to stringify response body: .*circular"),
        ("uncaught", "Error", "out of nowhere"),
        ("unhandled", "Runtime.UnhandledPromiseRejection", "Error: not handled"),
        ("broken", "Runtime.UserCodeSyntaxError", "SyntaxError: Unexpected end of input"),
        ("lacking", "Runtime.ImportModuleError", "Error: Cannot find package 'no-such-package'"),
        ("lacking2", "Runtime.ImportModuleError", "Error: Cannot find module './not/there'"),
        ("absent", "Runtime.ImportModuleError", "Cannot find module 'absent'"),
        ("unexported", "Runtime.HandlerNotFound", "common.unexported is undefined or not exported"),
        ("notAFunction", "Runtime.HandlerNotFound", "common.notAFunction is not a function"),
        ("nodot", "Runtime.MalformedHandlerName", "Bad handler 'common'"),
        ("outside", "Runtime.MalformedHandlerName", "it leads outside the code folder"),
        ("large", "Function.ResponseSizeTooLarge", "6291556 bytes"),
        ("s_fails", "TypeError", "before the first byte"),
        ("s_breaks", "TypeError", "in the middle"),
        ("s_large", "Function.ResponseSizeTooLarge", "6291556 bytes"),
    ],
)
def test_failures_are_told_by_lambdas_error_types(running: Running, name: str, error_type: str, message: str) -> None:
    for _ in range(2):  # the second time in the same environment, or in its replacement
        document, error = running.invoke(name, {})
        assert error == "Unhandled"
        assert document["errorType"] == error_type
        assert re.search(message, document["errorMessage"])


def test_a_callbacks_answer_is_sent_when_nothing_is_left_to_do_unless_the_handler_says_so(running: Running) -> None:
    def duration_ms(event: dict[str, Any]) -> float:
        tail = running.client().invoke(FunctionName="waits", Payload=json.dumps(event), LogType="Tail")["LogResult"]
        match = re.search(r"Duration: ([\d.]+) ms", base64.b64decode(tail).decode())
        assert match
        return float(match[1])

    # the timer of two seconds keeps running, but the answer does not wait for it
    assert duration_ms({"stop": True}) < 1900
    assert duration_ms({}) >= 1990


@pytest.mark.parametrize("name", ["large", "s_large"])
def test_an_environment_whose_answer_was_too_large_goes_on(running: Running, name: str) -> None:
    pid, _ = running.invoke(name, {"pid": True})

    assert running.invoke(name, {})[1] == "Unhandled"
    assert running.invoke(name, {"pid": True}) == (pid, None)


def test_console_writes_time_request_id_and_level_on_one_line(running: Running) -> None:
    answer = running.client().invoke(FunctionName="logs", Payload="{}", LogType="Tail")

    lines = base64.b64decode(answer["LogResult"]).decode().split("\n")
    identifier = answer["ResponseMetadata"]["RequestId"]
    when = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    assert re.fullmatch(rf"{when}\t{identifier}\tINFO\tone\rtwo {{ a: 1 }}", lines[1])
    assert re.fullmatch(rf"{when}\t{identifier}\tERROR\tbad", lines[2])
    assert re.fullmatch(rf"{when}\t{identifier}\tDEBUG\tfine", lines[3])
    assert lines[4] == "raw"


def test_console_writes_json_where_that_is_the_log_format(running: Running) -> None:
    answer = running.client().invoke(FunctionName="json_logs", Payload="{}", LogType="Tail")

    lines = [json.loads(line) for line in base64.b64decode(answer["LogResult"]).decode().splitlines()]
    entries = [line for line in lines if "level" in line]
    identifier = answer["ResponseMetadata"]["RequestId"]
    for entry in entries:
        assert entry.pop("requestId") == identifier
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", entry.pop("timestamp"))
    traces = [entry.pop("stackTrace") for entry in entries[2:4]]
    assert all(trace[0].startswith("TypeError: ") for trace in traces)
    assert entries[0] == {"level": "INFO", "message": "one\ntwo { a: 1 }"}
    assert entries[1] == {"level": "WARN", "message": {"key": "value"}}
    assert entries[2].pop("message").startswith("it failed: TypeError: wrong")
    assert entries[2] == {"level": "ERROR", "errorType": "TypeError", "errorMessage": "wrong"}
    assert entries[3] == {"level": "ERROR", "errorType": "TypeError", "errorMessage": "alone"}
    assert entries[4] == {"level": "INFO", "message": {"a": "1", "self": "[Circular]"}}


def test_a_streamed_response_is_the_answer_of_a_buffered_invocation(running: Running) -> None:
    for _ in range(2):
        assert running.client().invoke(FunctionName="parts", Payload="{}")["Payload"].read() == b"one two three"


def test_a_response_is_streamed_part_by_part_to_who_wants_it_so(running: Running, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    payload = json.dumps({"gate": str(gate)})
    answer = running.client().invoke_with_response_stream(FunctionName="parts", Payload=payload)

    events = iter(answer["EventStream"])
    assert next(events)["PayloadChunk"]["Payload"] == b"one "
    gate.touch()
    rest = list(events)
    assert b"".join(event["PayloadChunk"]["Payload"] for event in rest[:-1]) == b"two three"
    assert "ErrorCode" not in rest[-1]["InvokeComplete"]


def test_a_stream_that_fails_halfway_is_told_as_such(running: Running) -> None:
    answer = running.client().invoke_with_response_stream(FunctionName="s_breaks", Payload="{}")

    first, *_, last = list(answer["EventStream"])
    assert first["PayloadChunk"]["Payload"] == b"half"
    assert last["InvokeComplete"]["ErrorCode"] == "TypeError"
    assert json.loads(last["InvokeComplete"]["ErrorDetails"])["errorMessage"] == "in the middle"


def test_a_handler_that_does_not_stream_is_one_part(running: Running) -> None:
    answer = running.client().invoke_with_response_stream(FunctionName="cjs", Payload="{}")

    assert [event for event in answer["EventStream"] if "PayloadChunk" in event] == [
        {"PayloadChunk": {"Payload": b'"cjs"'}}
    ]


def test_a_stream_with_a_prelude_is_an_http_answer_at_a_function_url(running: Running) -> None:
    with urllib.request.urlopen(f"{running.url}/_urls/{url_id('prelude')}/", timeout=60) as answer:
        assert answer.status == 201
        assert answer.headers["content-type"] == "text/html"
        assert answer.headers["x-own"] == "1"
        assert answer.headers["set-cookie"] == "a=b"
        assert answer.read() == b"<p>done"


def test_the_client_is_shipped_with_the_package() -> None:
    import thawd

    folder = Path(thawd.__file__).parent / "runtime_node"
    assert {path.name for path in folder.iterdir()} >= {"bootstrap.mjs", "api.mjs", "handler.mjs", "invocation.mjs"}
