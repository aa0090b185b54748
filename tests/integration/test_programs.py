"""A function's own programs: found or refused, told when they are to end, and ended with all processes around them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from .conftest import Project, Running, eventually, processes_of

SECONDS = 200_000 + os.getpid()
"""How long a detached process sleeps. No other run on this machine has processes with this number."""

SHELL = """
#!/bin/sh
api="http://$AWS_LAMBDA_RUNTIME_API/2018-06-01/runtime/invocation"
trap 'echo runtime got TERM; exit 0' TERM
headers=$(mktemp)
body=$(mktemp)
while :; do
    curl -sS -D "$headers" "$api/next" > "$body" &
    wait $!
    id=$(sed -n 's/^lambda-runtime-aws-request-id: *\\([^\\r]*\\).*/\\1/ip' "$headers")
    event=$(cat "$body")
    case "$event" in
    *sleep*) sleep 60 & wait $! ;;
    *limit*) event=$(ulimit -n) ;;
    *type*) event="\\"$AWS_LAMBDA_INITIALIZATION_TYPE\\"" ;;
    *detach*) setsid -f sleep {SECONDS} ;;
    esac
    curl -sS "$api/$id/response" -d "$event" > /dev/null
done
""".replace("{SECONDS}", str(SECONDS))

EXTENSION = f"""
#!{sys.executable}
import http.client, json, os, sys, time
api = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])
mode = os.environ.get("EXTENSION", "")

def call(method, path, body=None, **headers):
    headers = {{name.replace("_", "-"): value for name, value in headers.items()}}
    api.request(method, "/2020-01-01/extension/" + path, body, headers)
    answer = api.getresponse()
    return answer, answer.read()

if mode == "crash at once":
    sys.exit(3)
if mode == "never registers":
    time.sleep(600)
answer, about = call("POST", "register", json.dumps({{"events": ["INVOKE", "SHUTDOWN"]}}),
                     Lambda_Extension_Name=os.path.basename(__file__))
identifier = answer.getheader("Lambda-Extension-Identifier")
print("extension registered", answer.status, about.decode(), "_HANDLER" in os.environ, flush=True)
if mode == "init error":
    call("POST", "init/error", b"{{}}", Lambda_Extension_Identifier=identifier,
         Lambda_Extension_Function_Error_Type="Extension.NoLuck")
while True:
    answer, body = call("GET", "event/next", Lambda_Extension_Identifier=identifier)
    event = json.loads(body)
    print("extension", event["eventType"], event.get("shutdownReason", event.get("requestId")), flush=True)
    if mode == "slow" and event["eventType"] == "INVOKE":
        while not os.path.exists(os.environ["GATE"]):
            time.sleep(0.005)
        print("extension has caught up", flush=True)
    if mode == "greedy" and event["eventType"] == "INVOKE":
        kept = [bytearray(os.urandom(1 << 20)) for _ in range(400)]
    if mode == "crash later" and event["eventType"] == "INVOKE":
        sys.exit(3)
    if event["eventType"] == "SHUTDOWN" and mode != "stays":
        sys.exit(0)
"""


def serve(project: Project, options: str = "", *, extension: bool = False, bootstrap: str = SHELL) -> None:
    """Make a project with one function `app`. Its code is outside the folder that the program writes to."""
    project.code(bootstrap.lstrip(), "code/bootstrap")
    (project.root / "code" / "bootstrap").chmod(0o755)
    if extension:
        project.code(EXTENSION.lstrip(), "code/extensions/watcher")
        (project.root / "code" / "extensions" / "watcher").chmod(0o755)
        project.code("no program", "code/extensions/README")
    project.config(
        f'[functions.app]\nhandler = "any"\nruntime = "provided.al2023"\ncode = "code"\nmemory_mb = 128\n{options}'
    )


def log(project: Project) -> str:
    path = project.data / "logs" / "app.log"
    return path.read_text() if path.exists() else ""


def wait_for(project: Project, text: str) -> None:
    eventually(lambda: text in log(project), what=f"{text!r} in the log")


# Found or refused


BOOTSTRAPS = (
    (None, 0, "but this file does not exist"),
    ("#!/bin/sh\n", 0o644, "is not executable. Make it executable: chmod +x"),
    ("#!/no/such/shell\n", 0o755, "names /no/such/shell, which cannot be executed"),
    ("echo hello\n", 0o755, "The first line of a script begins with #!"),
)


def test_a_bootstrap_that_cannot_be_executed_is_told_at_publication(project: Project) -> None:
    config = ""
    for number, (content, mode, _) in enumerate(BOOTSTRAPS):
        project.code("", f"code{number}/other")
        if content is not None:
            project.code(content, f"code{number}/bootstrap")
            (project.root / f"code{number}" / "bootstrap").chmod(mode)
        config += f'[functions.f{number}]\nhandler = "any"\nruntime = "provided"\ncode = "code{number}"\n'
    project.config(config)
    with project.up() as running:
        for number, (_, _, told) in enumerate(BOOTSTRAPS):
            status = running.function(f"f{number}")
            assert status["state"] == "Failed"
            assert told in status["reason"]
            assert str(project.root / f"code{number}" / "bootstrap") in status["reason"]
            with pytest.raises(running.client().exceptions.ResourceNotReadyException, match="bootstrap"):
                running.invoke(f"f{number}", {})


def test_an_absent_node_is_told_with_what_was_looked_for_and_the_way_out(project: Project, tmp_path: Path) -> None:
    project.code("exports.handler = async () => 1", "index.js")
    project.config('[functions.app]\nhandler = "index.handler"\nruntime = "nodejs20.x"\n')
    for command in ("sh", "env"):
        (tmp_path / command).symlink_to(f"/usr/bin/{command}")
    with project.up(environ={"PATH": str(tmp_path), "HOME": str(tmp_path)}) as running:
        reason = running.function("app")["reason"]
    assert "node20, node or nodejs on PATH" in reason
    assert '[runtimes], "nodejs20.x" = "/path/to/node"' in reason


def test_a_configured_interpreter_that_is_none_is_told(project: Project) -> None:
    project.code("exports.handler = async () => 1", "index.js")
    project.config(
        '[functions.app]\nhandler = "index.handler"\nruntime = "nodejs20.x"\n[runtimes]\n"nodejs20.x" = "/bin/true"\n'
    )
    with project.up() as running:
        assert "tried: /bin/true (it does not report its version)" in running.function("app")["reason"]


def test_a_python_runtime_is_run_by_the_interpreter_that_is_configured(project: Project) -> None:
    project.code("import sys\ndef handler(event, context):\n    return sys.executable\n")
    project.config(
        '[functions.app]\nhandler = "app.handler"\nruntime = "python3.12"\nsnapshot = false\n'
        f'[runtimes]\n"python3.12" = "{sys.executable}"\n'
    )
    with project.up() as running:
        assert running.invoke("app", {}) == (sys.executable, None)


def test_a_program_cannot_be_searched_for_what_a_snapshot_would_spoil(project: Project) -> None:
    serve(project)
    done = project.command("snapshot", "lint", "app")
    assert done.returncode == 1
    assert "thawd makes no snapshots of functions with runtime provided.al2023" in done.stderr


# What the program sees


def test_a_program_is_held_to_lambdas_limit_of_open_files(project: Project) -> None:
    serve(project)
    with project.up() as running:
        assert running.invoke("app", "limit") == (1024, None)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("", "snap-start"),
        ("snapshot = false\n", "on-demand"),
        ("provisioned_concurrency = 1\n", "provisioned-concurrency"),
    ],
)
def test_the_initialization_type_is_told(project: Project, options: str, told: str) -> None:
    serve(project, options)
    with project.up() as running:
        assert running.invoke("app", "type") == (told, None)


def test_snapshot_hooks_of_awss_client_run_though_nothing_is_frozen(project: Project) -> None:
    project.code(
        """
        from snapshot_restore_py import register_after_restore, register_before_snapshot
        register_before_snapshot(lambda: print("hook before"))
        register_after_restore(lambda: print("hook after"))
        def handler(event, context):
            return 1
        """,
        "code/app.py",
    )
    serve(project, bootstrap=f'#!/bin/sh\nexec "{sys.executable}" -m awslambdaric app.handler\n')
    with project.up() as running:
        assert running.invoke("app", {}) == (1, None)
        wait_for(project, "END RequestId")
        assert re.search(r"hook before\n.*hook after\n.*START", log(project))


@pytest.mark.parametrize("hook", ["before_snapshot", "after_restore"])
def test_a_snapshot_hook_that_fails_fails_the_start(project: Project, hook: str) -> None:
    project.code(
        f"""
        from snapshot_restore_py import register_{hook}
        def fail():
            raise ValueError("no luck")
        register_{hook}(fail)
        def handler(event, context):
            return 1
        """,
        "code/app.py",
    )
    serve(project, bootstrap=f'#!/bin/sh\nexec "{sys.executable}" -m awslambdaric app.handler\n')
    with project.up() as running:
        document, error = running.invoke("app", {})
        assert error == "Unhandled"
        assert (document["errorType"], document["errorMessage"]) == ("ValueError", "no luck")


def test_a_program_over_its_memory_limit_is_killed(project: Project) -> None:
    program = (
        f"#!{sys.executable}\n"
        "import os, urllib.request\n"
        'api = "http://" + os.environ["AWS_LAMBDA_RUNTIME_API"] + "/2018-06-01/runtime/invocation/"\n'
        'urllib.request.urlopen(api + "next").read()\n'
        "kept = [bytearray(os.urandom(1 << 20)) for _ in range(400)]\n"
        "import time; time.sleep(60)\n"
    )
    serve(project, bootstrap=program)
    with project.up() as running:
        document, error = running.invoke("app", {})
        assert error == "Unhandled"
        assert document["errorType"] == "Runtime.ExitError"
        assert document["errorMessage"].endswith("signal: killed")


def test_a_program_may_serve_one_invocation_and_end(project: Project) -> None:
    """No other invocation gets an environment that is about to end."""
    once = SHELL.replace("while :; do", "for once in 1; do")
    serve(project, "reserved_concurrency = 2\n", bootstrap=once)
    with project.up() as running, ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(lambda number: running.invoke("app", number), range(20)))
    assert answers == [(number, None) for number in range(20)]


def test_a_program_of_another_kind_of_machine_is_told(project: Project) -> None:
    serve(project, bootstrap="\x7fELF for another machine")
    with project.up() as running:
        document, error = running.invoke("app", {})
        assert error == "Unhandled"
        assert document["errorType"] == "Runtime.InvalidEntrypoint"
        assert document["errorMessage"].endswith("bootstrap could not be executed: exec format error")


def test_a_program_that_never_asks_for_an_invocation_is_ended_after_the_init_limit(project: Project) -> None:
    serve(project, "init_timeout_s = 1\n", bootstrap="#!/bin/sh\nsleep 60\n")
    with project.up() as running:
        document, error = running.invoke("app", {})
        assert error == "Unhandled"
        assert document["errorType"] == "Sandbox.Timedout"


def test_the_shell_program_of_the_documentation_works_as_it_stands(project: Project) -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "runtimes.md"
    (program,) = re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)
    serve(project, bootstrap=program)
    with project.up() as running:
        for number in range(2):
            assert running.invoke("app", {"number": number}) == ({"echo": {"number": number}}, None)
        wait_for(project, "invocation ")


# Its end


def test_no_program_and_no_extension_outlives_a_server_that_is_killed(project: Project) -> None:
    serve(project, extension=True)
    with project.up() as running:
        running.invoke("app", {})
        assert len(processes_of(project.data)) >= 2
        running.process.kill()
        running.process.wait()
        eventually(lambda: not processes_of(project.data), what="the end of all processes")


def test_detached_processes_of_a_program_end_with_it(project: Project) -> None:
    serve(project, "idle_timeout_s = 0.2\n")

    def sleepers() -> list[str]:
        done = subprocess.run(["pgrep", "-fx", f"(setsid -f )?sleep {SECONDS}"], capture_output=True, text=True)
        return done.stdout.split()

    before = set(sleepers())
    with project.up() as running:
        running.invoke("app", "detach")
        eventually(lambda: set(sleepers()) <= before, what="the end of the detached process")


def test_environments_that_ended_leave_no_descriptors_behind(project: Project) -> None:
    serve(project, "idle_timeout_s = 0.1\n", extension=True)

    def environments(running: Running) -> int:
        return sum(running.function("app")["environments"].values())

    with project.up() as running:
        folder = Path(f"/proc/{running.process.pid}/fd")

        def descriptors() -> int:
            return len(list(folder.iterdir()))

        def round_trip() -> None:
            url = f"{running.url}/2015-03-31/functions/app/invocations"
            urllib.request.urlopen(url, b"{}", timeout=60).close()
            eventually(lambda: not environments(running), what="the end of the environment")
            eventually(lambda: not processes_of(project.data), what="the end of its processes")

        round_trip()  # opens descriptors that stay open
        before = descriptors()
        for _ in range(5):
            round_trip()
        # The descriptors of the last round are closed a moment after its processes have ended.
        eventually(lambda: descriptors() <= before, what="the end of all descriptors")


# Extensions


def test_an_extension_is_told_of_invocations_and_of_the_end(project: Project) -> None:
    serve(project, "idle_timeout_s = 0.3\n", extension=True)
    with project.up() as running:
        answer = running.client().invoke(FunctionName="app", Payload="{}")
        wait_for(project, f"extension INVOKE {answer['ResponseMetadata']['RequestId']}")
        wait_for(project, "extension SHUTDOWN spindown")
        text = log(project)
        about = '{"functionName":"app","functionVersion":"$LATEST","handler":"any"}'
        assert f"extension registered 200 {about} False" in text
        assert "EXTENSION\tName: watcher\tState: Ready\tEvents: [INVOKE, SHUTDOWN]" in text
        assert text.index("runtime got TERM") < text.index("SHUTDOWN spindown")


def test_a_time_out_is_told_to_the_extension_and_holds_up_nobody(project: Project) -> None:
    serve(project, "timeout_s = 4\n", extension=True)
    with project.up() as running:
        document, _ = running.invoke("app", "sleep")
        assert document["errorType"] == "Sandbox.Timedout"
        wait_for(project, "extension SHUTDOWN timeout")
        assert running.invoke("app", {}) == ({}, None)


def test_a_program_that_ends_takes_its_extension_along_which_is_told(project: Project) -> None:
    serve(project, extension=True, bootstrap=SHELL.replace("sleep 60 & wait $!", "exit 4"))
    with project.up() as running:
        document, _ = running.invoke("app", "sleep")
        assert document["errorMessage"].endswith("exit status 4")
        wait_for(project, "extension SHUTDOWN failure")


def test_the_next_invocation_waits_until_the_extension_is_done_with_the_last(project: Project) -> None:
    gate = project.root / "gate"
    slow = f'environment = {{ EXTENSION = "slow", GATE = "{gate}" }}\n'
    serve(project, slow + "reserved_concurrency = 1\n", extension=True)

    def events() -> list[str]:
        return re.findall(r"extension (INVOKE|has caught up)", log(project))

    with project.up() as running, ThreadPoolExecutor(1) as threads:
        assert running.invoke("app", {})[1] is None  # the answer does not wait for the extension
        following = threads.submit(running.invoke, "app", {})
        assert "extension has caught up" not in log(project)
        gate.touch()
        assert following.result()[1] is None
        eventually(lambda: len(events()) >= 3, what="the lines of both")
        assert events()[:3] == ["INVOKE", "has caught up", "INVOKE"]


def states(project: Project) -> set[str]:
    """Return the states of all its processes as the kernel's letters. T is stopped."""
    found = set()
    for pid in processes_of(project.data):
        with contextlib.suppress(OSError):
            found.add(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0])
    return found


def test_program_and_extension_are_stopped_between_invocations_and_go_on(project: Project) -> None:
    gate = project.root / "gate"
    serve(project, f'environment = {{ EXTENSION = "slow", GATE = "{gate}" }}\n', extension=True)
    with project.up() as running:
        for number in (1, 2):
            gate.unlink(missing_ok=True)
            running.invoke("app", {})
            for _ in range(30):  # nothing is stopped until the extension has finished its work
                assert states(project) != {"T"}
            gate.touch()
            eventually(lambda: states(project) == {"T"}, what="the stop of all")
            eventually(lambda number=number: log(project).count("caught up") == number, what="its line in the log")
        assert running.stop() == 0
        assert "runtime got TERM" in log(project)
        assert "extension SHUTDOWN spindown" in log(project)


@pytest.mark.parametrize(
    ("mode", "error_type"), [("crash at once", "Extension.Crash"), ("init error", "Extension.NoLuck")]
)
def test_an_extension_that_fails_to_start_fails_the_start(project: Project, mode: str, error_type: str) -> None:
    serve(project, f'environment = {{ EXTENSION = "{mode}" }}\n', extension=True)
    with project.up() as running:
        document, error = running.invoke("app", {})
        assert error == "Unhandled"
        assert document["errorType"] == error_type


def test_an_extension_that_cannot_be_executed_fails_the_start(project: Project) -> None:
    project.code("neither a script nor a program", "code/extensions/odd")
    (project.root / "code" / "extensions" / "odd").chmod(0o755)
    serve(project)
    with project.up() as running:
        document, error = running.invoke("app", {})
        assert error == "Unhandled"
        assert document["errorType"] == "Extension.LaunchError"
        assert document["errorMessage"].endswith("extensions/odd could not be executed: exec format error")


def test_an_extension_that_never_registers_fails_the_start_at_the_init_limit(project: Project) -> None:
    serve(project, 'init_timeout_s = 1\nenvironment = { EXTENSION = "never registers" }\n', extension=True)
    with project.up() as running:
        document, error = running.invoke("app", {})
        assert error == "Unhandled"
        assert document["errorType"] == "Sandbox.Timedout"
        eventually(lambda: not processes_of(project.data), what="the end of the extension")


def test_an_extension_that_crashes_ends_the_environment_and_the_next_one_serves(project: Project) -> None:
    serve(project, 'environment = { EXTENSION = "crash later" }\n', extension=True)
    with project.up() as running:
        document, error = running.invoke("app", "sleep")
        assert error == "Unhandled"
        assert document["errorType"] == "Extension.Crash"
        assert re.search(r"RequestId: [0-9a-f-]{36} Error: exit status 3 \(watcher\)", document["errorMessage"])


def test_an_extensions_memory_counts_where_a_cgroup_holds_the_limit(project: Project) -> None:
    serve(project, 'environment = { EXTENSION = "greedy" }\n', extension=True)
    with project.up() as running:
        if "cgroup" not in running.status()["memory_limit"]:
            pytest.skip("no cgroup may be written here")
        document, error = running.invoke("app", "sleep")
        assert error == "Unhandled"
        assert "signal" in document["errorMessage"]


def test_a_stop_waits_for_extensions_two_seconds_and_ends_them_then(project: Project) -> None:
    serve(project, 'environment = { EXTENSION = "stays" }\n', extension=True)
    with project.up() as running:
        running.invoke("app", {})
        begun_s = time.monotonic()
        assert running.stop() == 0
        taken_s = time.monotonic() - begun_s
        assert "extension SHUTDOWN spindown" in log(project)
        assert taken_s > 1.5
        assert not processes_of(project.data)


def test_a_runtime_that_ignores_term_is_killed_and_its_extension_told(project: Project) -> None:
    bootstrap = SHELL.replace("trap 'echo runtime got TERM; exit 0' TERM", "trap '' TERM")
    serve(project, "idle_timeout_s = 0.2\n", extension=True, bootstrap=bootstrap)
    with project.up() as running:
        running.invoke("app", {})
        wait_for(project, "extension SHUTDOWN spindown")
        eventually(lambda: not processes_of(project.data), what="the end of all processes")


def kill(pid: int) -> Any:
    return os.kill(pid, signal.SIGKILL)


def test_a_program_that_somebody_kills_while_idle_is_replaced(project: Project) -> None:
    serve(project)
    with project.up() as running:
        running.invoke("app", {})
        for pid in processes_of(project.data):
            kill(pid)
        eventually(lambda: not running.function("app")["environments"]["idle"], what="its end is known")
        assert running.invoke("app", {}) == ({}, None)
