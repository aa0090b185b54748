"""Execution environments under real load and real kills: what one function does never touches another request."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from .conftest import DEADLINE_S, Project, Running, eventually, processes_of

CODE = """
import os, subprocess, sys, time

COUNTER = 0
ALLOCATE = "b = bytearray({} << 20)\\nfor i in range(0, len(b), 4096): b[i] = 1\\nimport time; time.sleep(30)"
DETACH = "import os, time\\nif os.fork(): os._exit(0)\\nos.setsid()\\nif os.fork(): os._exit(0)\\ntime.sleep(300)"

def handler(event, context):
    global COUNTER
    COUNTER += 1
    action = event.get("do")
    while "gate" in event and not os.path.exists(event["gate"]):
        time.sleep(0.005)
    if action == "sleep":
        time.sleep(event["s"])
    if action == "memory":
        data = bytearray(event["mib"] << 20)
        for at in range(0, len(data), 4096):
            data[at] = 1
        time.sleep(event.get("s", 0))
    if action == "child memory":
        subprocess.run([sys.executable, "-c", ALLOCATE.format(event["mib"])])
    if action == "fork and return":
        os.fork()
    if action == "fork and stay":
        if os.fork() == 0:
            time.sleep(300)
            os._exit(0)
    if action == "daemon":
        subprocess.Popen([sys.executable, "-c", DETACH]).wait()
    if action == "segfault":
        import ctypes
        ctypes.string_at(0)
    if action == "close":
        os.closerange(3, 100)
    if action == "garbage":
        for fd in range(3, 20):
            try:
                os.write(fd, b"garbage" * 100)
            except OSError:
                pass
    variables = dict(os.environ) if action == "environ" else None
    return {"pid": os.getpid(), "counter": COUNTER, "variables": variables}
"""


FORKED = {"THAWD_SNAPSHOTS": "off"}
"""Environment variables of a server that forks environments instead of thawing them."""


@pytest.fixture(scope="module", params=["thaw", "fork", "cold"])
def kind(request: pytest.FixtureRequest) -> str:
    """How environments start; every claim that takes `running` holds for each kind."""
    return str(request.param)


@pytest.fixture(scope="module")
def running(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    project = Project(tmp_path_factory.mktemp("environments"))
    project.code(CODE)
    project.config(
        f"""
        [functions.app]
        handler = "app.handler"
        timeout_s = 20
        memory_mb = 128
        snapshot = {str(kind != "cold").lower()}
        environment = {{ MINE = "yes" }}
        """
    )
    with project.up(environ=FORKED if kind == "fork" else {}) as server:
        assert server.function("app")["start"] == kind
        yield server


def burst(running: Running, count: int, event: dict[str, Any]) -> list[tuple[Any, str | None]]:
    """`count` invocations at once."""
    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(lambda _: running.invoke("app", event), range(count)))


def together(running: Running, count: int) -> list[tuple[Any, str | None]]:
    """`count` invocations that are all under way before the first one ends."""
    return running.invoke_at_once("app", count, {}, gate=running.project.root / "gate")


def test_one_environment_serves_one_invocation_at_a_time_and_keeps_its_state(running: Running) -> None:
    first, _ = running.invoke("app", {})
    second, _ = running.invoke("app", {})
    assert second["pid"] == first["pid"]
    assert second["counter"] == first["counter"] + 1
    pids = {answer["pid"] for answer, _ in together(running, 4)}
    assert len(pids) == 4


def test_the_environment_used_last_is_used_first(running: Running) -> None:
    together(running, 3)
    pids = {running.invoke("app", {})[0]["pid"] for _ in range(5)}
    assert len(pids) == 1


def test_functions_see_lambdas_variables_and_not_the_servers(running: Running, kind: str) -> None:
    seen = running.invoke("app", {"do": "environ"})[0]["variables"]
    assert seen["MINE"] == "yes"
    assert seen["AWS_LAMBDA_FUNCTION_NAME"] == "app"
    assert seen["AWS_LAMBDA_FUNCTION_MEMORY_SIZE"] == "128"
    assert seen["_HANDLER"] == "app.handler"
    assert seen["TZ"] == ":UTC"
    assert seen["AWS_LAMBDA_INITIALIZATION_TYPE"] == ("snap-start" if kind == "thaw" else "on-demand")
    assert "PYTEST_CURRENT_TEST" not in seen


@pytest.mark.parametrize("action", ["memory", "child memory"])
def test_memory_over_the_limit_is_killed(running: Running, action: str) -> None:
    answer, error = running.invoke("app", {"do": action, "mib": 400, "s": 10})
    # A child over the limit may be killed alone, as the kernel does on Lambda, and the handler goes on.
    if action == "memory" or error is not None:
        assert error == "Unhandled"
        assert answer["errorType"] == "Runtime.ExitError"
        assert answer["errorMessage"].endswith("Runtime exited with error: signal: killed")
    assert running.invoke("app", {})[1] is None


def test_a_segmentation_fault_is_told_and_harms_nobody(running: Running) -> None:
    with ThreadPoolExecutor(2) as threads:
        good = threads.submit(running.invoke, "app", {"do": "sleep", "s": 1})
        answer, error = running.invoke("app", {"do": "segfault"})
        assert good.result()[1] is None
    assert error == "Unhandled"
    assert answer["errorMessage"].endswith("signal: segmentation fault")


def test_a_handler_that_forks_and_returns_twice_answers_once(running: Running) -> None:
    for _ in range(3):
        assert running.invoke("app", {"do": "fork and return"})[1] is None
    assert running.invoke("app", {})[1] is None


def test_a_handler_that_closes_or_writes_to_our_descriptors_ends_only_itself(running: Running) -> None:
    for action in ("close", "garbage"):
        _, error = running.invoke("app", {"do": action})
        assert error in (None, "Unhandled")
        assert eventually(lambda: running.invoke("app", {})[1] is None, what="a good answer")


def test_what_a_handler_leaves_running_ends_with_its_environment(running: Running) -> None:
    for action in ("fork and stay", "daemon"):
        answer, error = running.invoke("app", {"do": action})
        assert error is None, answer
        os.kill(answer["pid"], signal.SIGKILL)
        # Until then it may be given the next request: nobody has told the platform yet.
        eventually(lambda pid=answer["pid"]: not Path(f"/proc/{pid}").exists(), what="the end of the environment")
    # Template, if any, is the only process left that is not an idle environment.
    eventually(
        lambda: len(processes_of(running.project.data)) <= 1 + sum(running.function("app")["environments"].values()),
        what="the end of the strays",
    )


def test_killing_environments_and_the_template_under_load_answers_every_request(running: Running) -> None:
    """When -9 hits environments and the template under load, each answer is right or the right error."""
    stop = threading.Event()
    answers: list[tuple[Any, str | None]] = []

    def load() -> None:
        client = running.client()
        while not stop.is_set():
            answer = client.invoke(FunctionName="app", Payload=b'{"do": "sleep", "s": 0.01}')
            answers.append((json.loads(answer["Payload"].read()), answer.get("FunctionError")))

    threads = [threading.Thread(target=load) for _ in range(6)]
    for thread in threads:
        thread.start()
    kills = 0
    while kills < 20:
        for pid in processes_of(running.project.data)[:2]:
            try:
                os.kill(pid, signal.SIGKILL)
                kills += 1
            except ProcessLookupError:
                pass
        seen = len(answers)
        eventually(lambda seen=seen: len(answers) > seen + 20, what="more answers")
    stop.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    wrong = [
        answer
        for answer, error in answers
        if error is not None and not answer["errorMessage"].endswith("signal: killed")
    ]
    assert wrong == []
    assert sum(error is None for _, error in answers) > len(answers) / 2
    assert running.invoke("app", {})[1] is None


def test_a_burst_starts_as_many_environments_as_are_missing(project: Project) -> None:
    project.code(CODE)
    project.config('[functions.app]\nhandler = "app.handler"\n')
    with project.up() as running:
        running.invoke("app", {})
        assert len({answer["pid"] for answer, _ in together(running, 8)}) == 8
        assert sum(starts["count"] for starts in running.function("app")["starts"].values()) == 8


def test_idle_environments_end_down_to_none(project: Project) -> None:
    project.code(CODE)
    project.config('[functions.app]\nhandler = "app.handler"\nidle_timeout_s = 1\n')
    with project.up() as running:
        together(running, 3)
        eventually(
            lambda: running.function("app")["environments"] == {"idle": 0, "busy": 0, "starting": 0}, what="none"
        )
        assert running.invoke("app", {})[1] is None


def test_provisioned_environments_are_ready_before_the_first_request_and_replaced(project: Project) -> None:
    project.code(CODE)
    project.config('[functions.app]\nhandler = "app.handler"\nprovisioned_concurrency = 2\nidle_timeout_s = 1\n')
    with project.up() as running:
        assert running.function("app")["environments"]["idle"] == 2
        answer, _ = running.invoke("app", {"do": "environ"})
        assert list(running.function("app")["invocations"]) == ["warm"]
        assert answer["variables"]["AWS_LAMBDA_INITIALIZATION_TYPE"] == "provisioned-concurrency"
        os.kill(answer["pid"], signal.SIGKILL)
        eventually(lambda: running.function("app")["environments"]["idle"] == 2, what="the replacement")


def test_the_machines_limit_queues_requests_and_then_throttles(project: Project) -> None:
    project.code(CODE)
    project.config(
        'max_environments = 2\nqueue_timeout_s = 1\nmax_waiting = 3\n[functions.app]\nhandler = "app.handler"\n'
    )
    gate = project.root / "gate"
    throttled = threading.Semaphore(0)
    with project.up() as running, ThreadPoolExecutor(12) as threads:
        client = running.client()

        def one(_: int) -> str:
            try:
                answer = client.invoke(FunctionName="app", Payload=json.dumps({"gate": str(gate)}))
            except client.exceptions.TooManyRequestsException:
                throttled.release()
                return "throttled"
            return str(answer.get("FunctionError"))

        asked = [threads.submit(one, number) for number in range(10)]
        # Those that got an environment keep it until all others have been told.
        try:
            for _ in range(8):
                assert throttled.acquire(timeout=DEADLINE_S)
        finally:
            gate.touch()
        outcomes = [each.result() for each in asked]
    assert outcomes.count("None") == 2
    assert outcomes.count("throttled") == 8


def test_a_full_machine_ends_another_functions_idle_environment(project: Project) -> None:
    project.code(CODE)
    project.config(
        'max_environments = 1\n[functions.app]\nhandler = "app.handler"\n[functions.other]\nhandler = "app.handler"\n'
    )
    with project.up() as running:
        for _ in range(3):
            assert running.invoke("app", {})[1] is None
            assert running.invoke("other", {})[1] is None
        assert running.function("app")["environments"]["idle"] == 0


BROKEN = {
    "Runtime.ImportModuleError": ("app.handler", "import no_such_module\n", "No module named 'no_such_module'"),
    "Runtime.UserCodeSyntaxError": ("app.handler", "def handler(:\n", "Syntax error in module 'app'"),
    "Runtime.HandlerNotFound": ("app.handler", "other = 1\n", "Handler 'handler' missing on module 'app'"),
    "Runtime.HandlerNotFound ": ("app.handler", "handler = 1\n", "cannot be called: it is a int"),
    "ZeroDivisionError": ("app.handler", "x = 1 / 0\n", "division by zero"),
    "Runtime.ExitError": ("app.handler", "import os\nos._exit(3)\n", "exit status 3"),
    "Runtime.ExitError ": ("app.handler", "import sys\nsys.exit(5)\n", "exit status 5"),
}


def test_an_init_error_is_told_once_and_does_not_loop(project: Project) -> None:
    config = ""
    for number, (handler, code, _) in enumerate(BROKEN.values()):
        project.code(code, f"bad{number}/app.py")
        config += f'[functions.bad{number}]\nhandler = "{handler}"\ncode = "bad{number}"\n'
    project.code("def handler(event, context):\n    return 1\n", "good/good.py")
    project.config(f'{config}[functions.good]\nhandler = "good.handler"\ncode = "good"\n')
    with project.up() as running:
        for number, (kind, (_, _, said)) in enumerate(BROKEN.items()):
            name = f"bad{number}"
            function = running.function(name)
            assert function["state"] == "Failed"
            assert said in function["reason"]
            for _ in range(5):
                document, error = running.invoke(name, {})
                assert error == "Unhandled"
                assert document["errorType"] == kind.strip()
                assert said in document["errorMessage"]
            assert running.invoke("good", {}) == (1, None)
            log = (project.data / "logs" / f"{name}.log").read_text()
            assert 1 <= log.count("INIT_START") <= 2  # at publication, and once more with the first invocation
        eventually(
            lambda: sum("init failed" in line for line in running.output) >= len(BROKEN), what="the word of each"
        )


@pytest.mark.parametrize(
    ("version", "kind"),
    [
        # Each way to start with one version, and each version with one way; the rest are tests of `running`.
        ("3.9", "thaw"),
        ("3.9", "fork"),
        ("3.9", "cold"),
        ("3.10", "fork"),
        ("3.11", "cold"),
        ("3.12", "thaw"),
        ("3.13", "thaw"),
    ],
)
def test_function_interpreters_from_3_9_to_3_13_work(project: Project, version: str, kind: str) -> None:
    project.code(
        """
        import sys
        import thawd

        def handler(event, context):
            thawd.table("t").put("version", {"version": "%d.%d" % sys.version_info[:2]})
            if event:
                raise KeyError("x")
            return thawd.table("t").get("version")
        """
    )
    snapshot = str(kind != "cold").lower()
    project.config(
        f'[functions.app]\nhandler = "app.handler"\npython = "{version}"\nsnapshot = {snapshot}\n[tables.t]\n'
    )
    with project.up(environ=FORKED if kind == "fork" else {}) as running:
        function = running.function("app")
        if function["state"] == "Failed" and "was not found" in str(function["reason"]):
            pytest.skip(f"no Python {version} on this machine")
        assert function["start"] == kind, function["start_reason"]
        assert running.invoke("app", {}) == ({"version": version}, None)
        document, _ = running.invoke("app", {"fail": True})
        assert document["errorType"] == "KeyError"


def test_a_function_with_native_threads_falls_back_to_cold_and_says_why(project: Project) -> None:
    project.code(
        """
        import threading, time
        threading.Thread(target=time.sleep, args=(1000,), daemon=True, name="background").start()

        def handler(event, context):
            return threading.active_count()
        """
    )
    project.config('[functions.app]\nhandler = "app.handler"\n')
    with project.up(environ=FORKED) as running:
        function = running.function("app")
        assert function["start"] == "cold"
        assert "background" in function["start_reason"]
        assert running.invoke("app", {}) == (2, None)
        running.until_said("started cold")


def test_a_thread_pool_that_handles_forks_does_not_hinder_one(project: Project) -> None:
    """OpenBLAS takes its threads down for a fork and starts them again; NumPy is in nearly every function."""
    pytest.importorskip("numpy")
    project.code(
        """
        import os
        import numpy

        MATRIX = numpy.ones((800, 800))
        MATRIX @ MATRIX
        THREADS = len(os.listdir("/proc/self/task"))

        def handler(event, context):
            return [float((MATRIX @ MATRIX)[0, 0]), THREADS]
        """
    )
    project.config('[functions.app]\nhandler = "app.handler"\nenvironment = { OMP_NUM_THREADS = "4" }\n')
    with project.up(environ=FORKED) as running:
        assert running.function("app")["start"] == "fork", running.function("app")["start_reason"]
        for (product, threads), error in burst(running, 4, {}):
            assert (product, error) == (800.0, None)
            assert threads > 1


@pytest.mark.parametrize("kind", ["thaw", "fork"])
def test_random_numbers_differ_between_environments(project: Project, kind: str) -> None:
    project.code(
        """
        import random, time, uuid
        def handler(event, context):
            time.sleep(0.5)
            return [random.random(), str(uuid.uuid4())]
        """
    )
    project.config('[functions.app]\nhandler = "app.handler"\n')
    with project.up(environ=FORKED if kind == "fork" else {}) as running:
        seen = [tuple(answer) for answer, _ in burst(running, 4, {})]
    assert len({s[0] for s in seen}) == len({s[1] for s in seen}) == 4


def test_no_process_outlives_a_server_that_is_killed(project: Project) -> None:
    project.code(CODE)
    project.config(
        '[functions.app]\nhandler = "app.handler"\n[functions.cold]\nhandler = "app.handler"\nsnapshot = false\n'
    )
    with project.up() as running:
        with ThreadPoolExecutor(4) as threads:
            for name in ("app", "cold", "app", "cold"):
                threads.submit(lambda name=name: running.invoke(name, {"do": "sleep", "s": 60}))
            eventually(
                lambda: all(running.function(n)["environments"]["busy"] == 2 for n in ("app", "cold")), what="busy ones"
            )
            assert processes_of(project.data)
            running.process.kill()
        eventually(lambda: not processes_of(project.data), what="the end of all processes")


def test_the_runtime_needs_no_thawd_in_the_functions_interpreter(project: Project, tmp_path: Path) -> None:
    environment = tmp_path / "bare"
    subprocess.run(["python3", "-m", "venv", "--without-pip", str(environment)], check=True)
    project.code(
        """
        import sys, thawd
        def handler(event, context):
            return [sys.prefix, "msgspec" in sys.modules, any("msgspec" in p for p in sys.path)]
        """
    )
    project.config(f'[functions.app]\nhandler = "app.handler"\npython = "{environment}"\n')
    with project.up() as running:
        assert running.invoke("app", {}) == ([str(environment), False, False], None)


def test_an_init_phase_over_the_memory_limit_is_ended(project: Project) -> None:
    project.code(
        """
        import time
        data = bytearray(400 << 20)
        for at in range(0, len(data), 4096):
            data[at] = 1
        time.sleep(100)

        def handler(event, context):
            return 1
        """
    )
    project.config(
        """
        [functions.forked]
        handler = "app.handler"
        memory_mb = 128
        [functions.cold]
        handler = "app.handler"
        memory_mb = 128
        snapshot = false
        """
    )
    with project.up() as running:
        assert "signal: killed" in running.function("forked")["reason"]
        for name in ("forked", "cold"):
            document, error = running.invoke(name, {})
            assert error == "Unhandled"
            assert document["errorMessage"].endswith("signal: killed")


def test_a_function_that_floods_its_log_slows_nobody_else(project: Project) -> None:
    """Whether its init left the flooding process behind or its handler."""
    project.code(
        """
        import subprocess
        CHILD = subprocess.Popen(["yes"])

        def handler(event, context):
            return 1
        """,
        "flood.py",
    )
    project.code(CODE)
    project.config(
        """
        log_max_mb = 1
        [functions.flood]
        handler = "flood.handler"
        [functions.cold]
        handler = "flood.handler"
        snapshot = false
        [functions.app]
        handler = "app.handler"
        """
    )
    with project.up() as running:
        running.invoke("cold", {})
        for _ in range(100):
            assert running.invoke("app", {})[1] is None
        # A median would be a timing; what must not happen is a server that does nothing but read.
        kinds = running.function("app")["invocations"]
        assert kinds["warm"]["p50_ms"] < 50 * max(1.0, kinds["thaw"]["p50_ms"])
        logs = sum(path.stat().st_size for path in (project.data / "logs").iterdir())
        assert logs < 2 * 4 * 3 * (1 << 20)


def test_detached_processes_end_with_their_environment_or_at_the_next_start(project: Project) -> None:
    seconds = 100_000 + os.getpid()  # no other run on this machine has processes that sleep for as long
    project.code(
        f"""
        import os, subprocess

        def handler(event, context):
            child = subprocess.Popen(["setsid", "-f", "sleep", "{seconds}"], env={{"PATH": os.environ["PATH"]}})
            child.wait()
            if event.get("fork"):
                between = os.fork()
                if between == 0:
                    os.setsid()
                    if os.fork():
                        os._exit(0)
                    import time
                    time.sleep({seconds})
                os.waitpid(between, 0)
            return os.getpid()
        """
    )
    project.config('[functions.app]\nhandler = "app.handler"\n')

    def sleepers() -> list[str]:
        """Also those that were stopped with their environment before setsid had become sleep."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (entry / "cmdline").read_bytes().endswith(b"sleep\x00%d\x00" % seconds):
                    found.append(entry.name)
        return found

    def detached(running: Running) -> int:
        """The environment, once what it has detached is there.

        Whose it is cannot be told: it ends with any environment, such as the one in which the snapshot was tested.
        """
        pids = [0]
        eventually(lambda: pids.append(running.invoke("app", {})[0]) or sleepers(), what="the detached process")
        return pids[-1]

    with project.up() as running:
        os.kill(detached(running), signal.SIGKILL)
        eventually(lambda: not sleepers(), what="its end with its environment")
        detached(running)
    eventually(lambda: not sleepers(), what="its end with the server")
    with project.up() as running:
        running.invoke("app", {"fork": True})
        running.process.kill()
        running.process.wait()
        assert processes_of(project.data)
        with project.up():
            eventually(lambda: not processes_of(project.data), what="the end of all, there being no template")
    for pid_text in sleepers():  # without variables of ours and without a cgroup, nobody can tell whose it was
        os.kill(int(pid_text), signal.SIGKILL)


def test_children_of_a_handler_leave_no_zombies(project: Project) -> None:
    project.code(
        """
        import os

        def handler(event, context):
            for _ in range(50):
                if os.fork() == 0:
                    os._exit(0)
            return os.getpid()
        """
    )
    project.config('[functions.app]\nhandler = "app.handler"\n')
    with project.up() as running:
        pid, _ = running.invoke("app", {})
        os.kill(pid, signal.SIGKILL)

        def zombies() -> int:
            children = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children").read_text().split()
            states = []
            for child in children:
                with contextlib.suppress(OSError):  # reaped between the two looks
                    states.append(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0])
            return states.count("Z")

        eventually(lambda: zombies() == 0, what="reaped children")


def test_an_ignored_sigchld_does_not_hinder_a_fork(project: Project) -> None:
    project.code(
        """
        import signal
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

        def handler(event, context):
            return 1
        """
    )
    project.config('[functions.app]\nhandler = "app.handler"\n')
    with project.up(environ=FORKED) as running:
        assert running.function("app")["start"] == "fork"
        assert running.invoke("app", {}) == (1, None)
