"""`AWS_LAMBDA_EXEC_WRAPPER`: a program that gets the runtime's command line, and sh scripts that need bash."""

from __future__ import annotations

import io
import json
import shutil
import sys
import urllib.request
import zipfile
from pathlib import Path

import pytest

from tests.ports import quiet_port

from .conftest import Project
from .test_aws import ROLE
from .test_web_adapter import ADAPTER, APPLICATION

# Only bash has arrays. On Amazon Linux, /bin/sh is bash.
WRAPPER = """#!/bin/sh
words=(zero one)
export WRAPPED="${words[1]} $#"
export ORIGINAL="$_HANDLER" _HANDLER=app.instead
exec "$@"
"""
HANDLER = """
import os

def handler(event, context):
    return "the handler that the function names"

def instead(event, context):
    names = ("WRAPPED", "ORIGINAL", "_HANDLER", "AWS_LAMBDA_INITIALIZATION_TYPE")
    return [os.environ[name] for name in names] + [os.environ["AWS_LAMBDA_LOG_STREAM_NAME"] == context.log_stream_name]
"""
FUNCTION = """
[functions.app]
handler = "app.handler"
code = "code"
environment = {{ AWS_LAMBDA_EXEC_WRAPPER = "{wrapper}" }}
"""

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")


def executable(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@needs_bash
def test_the_wrapper_executes_the_runtime_and_copies_keep_what_it_set(project: Project) -> None:
    project.code(HANDLER, "code/app.py")
    executable(project.root / "code" / "wrap", WRAPPER)
    project.config(FUNCTION.format(wrapper="/var/task/wrap"))
    with project.up() as running:
        shown = running.function("app")
        assert (shown["start"], shown["start_reason"]) == ("thaw", None), shown
        seen = ["one 6", "app.handler", "app.instead", "snap-start", True]
        assert running.invoke("app") == (seen, None)


@needs_bash
def test_a_wrapper_that_goes_on_beside_the_runtime_works_and_is_not_frozen(project: Project) -> None:
    project.code(HANDLER, "code/app.py")
    executable(project.root / "code" / "wrap", WRAPPER.replace("exec ", "") + "echo after\n")
    project.config(FUNCTION.format(wrapper="wrap"))
    with project.up() as running:
        shown = running.function("app")
        assert shown["start"] != "thaw"
        assert 'make `exec "$@"` its last command' in shown["snapshot"]["refused"]
        answer, error = running.invoke("app")
        assert (answer[:3], error) == (["one 6", "app.handler", "app.instead"], None)


@pytest.mark.parametrize(
    ("wrapper", "said"),
    [("/opt/nothing", "this file does not exist"), ("/var/task/app.py", "chmod +x"), ("odd", "neither an ELF program")],
)
def test_a_wrapper_that_cannot_be_executed_is_told_at_publication(project: Project, wrapper: str, said: str) -> None:
    project.code(HANDLER, "code/app.py")
    executable(project.root / "code" / "odd", "no program")
    project.config(FUNCTION.format(wrapper=wrapper))
    with project.up() as running:
        shown = running.function("app")
        assert shown["state"] == "Failed"
        assert said in shown["reason"]


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node here")
def test_node_has_its_wrapper_too(project: Project) -> None:
    project.code("exports.handler = async () => process.env.WRAPPED\n", "code/app.js")
    executable(project.root / "code" / "wrap", '#!/bin/sh\nexport WRAPPED="$#"\nexec "$@"\n')
    text = FUNCTION.format(wrapper="/var/task/wrap") + 'runtime = "nodejs20.x"\n[runtimes]\n"nodejs20.x" = "node"\n'
    project.config(text)
    with project.up() as running:
        assert running.invoke("app") == ("2", None)


BOOTSTRAP = """#!/bin/sh
words=(zero one)
api="http://$AWS_LAMBDA_RUNTIME_API/2018-06-01/runtime/invocation"
while true; do
    headers=$(mktemp)
    curl -sSf -D "$headers" "$api/next" > /dev/null
    id=$(sed -n 's/^lambda-runtime-aws-request-id: *\\([^\\r]*\\).*/\\1/ip' "$headers")
    curl -sS "$api/$id/response" -d "\\"${words[1]}\\"" > /dev/null
done
"""


@needs_bash
def test_a_bootstrap_of_sh_runs_in_bash_and_knows_no_wrapper(project: Project) -> None:
    executable(project.root / "code" / "bootstrap", BOOTSTRAP)
    project.config(FUNCTION.format(wrapper="/opt/nothing") + 'runtime = "provided.al2023"\n')
    with project.up() as running:
        assert running.invoke("app") == ("one", None)


def zipped(**files: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in files.items():
            info = zipfile.ZipInfo(name.replace("__", "/").replace("_", "-").replace("run-sh", "run.sh"))
            info.external_attr = 0o755 << 16
            archive.writestr(info, text)
    return buffer.getvalue()


def test_a_web_adapter_of_a_layer_answers_for_a_managed_runtime(project: Project) -> None:
    """As the adapter's page says: its layer, the variable, and a script as the handler. Python does not start."""
    project.config("")
    port = quiet_port()
    adapter = zipped(extensions__lambda_adapter=ADAPTER, bootstrap='#!/bin/sh\nexec "$LAMBDA_TASK_ROOT/$_HANDLER"\n')
    with project.up() as running:
        layer = running.client().publish_layer_version(LayerName="adapter", Content={"ZipFile": adapter})
        running.client().create_function(
            FunctionName="web",
            Runtime=f"python{sys.version_info[0]}.{sys.version_info[1]}",
            Role=ROLE,
            Handler="run.sh",
            Code={"ZipFile": zipped(run_sh=APPLICATION)},
            Layers=[layer["LayerVersionArn"]],
            Environment={"Variables": {"AWS_LAMBDA_EXEC_WRAPPER": "/opt/bootstrap", "AWS_LWA_PORT": str(port)}},
        )
        running.client().get_waiter("function_active_v2").wait(FunctionName="web", WaiterConfig={"Delay": 0.2})
        url = running.client().create_function_url_config(FunctionName="web", AuthType="NONE")["FunctionUrl"]
        with urllib.request.urlopen(f"{url}items/1", timeout=60) as answer:
            assert (answer.status, json.load(answer)) == (200, ["GET", "/items/1", "", None])


EXTENSION = f"""#!{sys.executable}
import http.client, json, os
api = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])
api.request("POST", "/2020-01-01/extension/register", json.dumps({{"events": ["INVOKE"]}}),
            {{"Lambda-Extension-Name": os.path.basename(__file__)}})
answer = api.getresponse()
answer.read()
while True:
    api.request("GET", "/2020-01-01/extension/event/next", None,
                {{"Lambda-Extension-Identifier": answer.getheader("Lambda-Extension-Identifier")}})
    event = json.loads(api.getresponse().read())
    print("extension saw", event["requestId"], flush=True)
"""


def test_pythons_own_runtime_runs_beside_extensions_under_a_wrapper(project: Project) -> None:
    project.code(
        """
        import os

        def handler(event, context):
            if event == "fail":
                raise ValueError("as asked")
            left = context.get_remaining_time_in_millis()
            return [event, context.aws_request_id, os.environ["WRAPPED"], 0 < left <= 3000]
        """,
        "code/app.py",
    )
    executable(project.root / "code" / "extensions" / "watcher", EXTENSION)
    executable(project.root / "code" / "wrap", '#!/bin/sh\nexport WRAPPED=yes\nexec "$@"\n')
    project.config(FUNCTION.format(wrapper="/var/task/wrap") + "timeout_s = 3\n")
    with project.up() as running:
        for number in range(3):
            (event, request_id, wrapped, in_time), error = running.invoke("app", {"n": number})
            assert (event, wrapped, in_time, error) == ({"n": number}, "yes", True, None)
        told, error = running.invoke("app", "fail")
        assert (told["errorType"], told["errorMessage"], error) == ("ValueError", "as asked", "Unhandled")
        assert running.function("app")["environments"]["idle"] == 1
    assert f"extension saw {request_id}" in (project.data / "logs" / "app.log").read_text()


def test_an_import_that_fails_beside_extensions_is_told(project: Project) -> None:
    project.code("import nothing_like_it\n", "code/app.py")
    executable(project.root / "code" / "extensions" / "watcher", EXTENSION)
    executable(project.root / "code" / "wrap", '#!/bin/sh\nexec "$@"\n')
    project.config(FUNCTION.format(wrapper="/var/task/wrap"))
    with project.up() as running:
        told, error = running.invoke("app")
        assert (told["errorType"], error) == ("Runtime.ImportModuleError", "Unhandled")


def test_batches_are_refused_beside_extensions_with_the_way_out(project: Project) -> None:
    project.code("def handler(events, context): return events\n", "code/app.py")
    executable(project.root / "code" / "extensions" / "watcher", EXTENSION)
    executable(project.root / "code" / "wrap", '#!/bin/sh\nexec "$@"\n')
    project.config(FUNCTION.format(wrapper="/var/task/wrap") + "batch = { size = 2 }\n")
    with project.up() as running:
        running.until_said("remove the option batch, or the extensions")
        assert running.function("app")["state"] == "Failed"
