"""Functions thawed from snapshots: frozen once when they are published, and thawed once for each concurrent request."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from thawd.snapshot.engine import unavailable

from .conftest import DEADLINE_S, Project, Running, eventually, processes_of
from .frozen_app import APP, CODE, inits, log, make, none_alive

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))


@pytest.fixture
def app(project: Project) -> Project:
    """A project with one function."""
    return make(project)


NOBODY = 65534


def test_every_environment_is_a_copy_of_one_init(app: Project) -> None:
    with app.up() as running:
        answers = []
        for _ in range(5):
            answers.append(running.invoke("app", {})[0])
            none_alive(running)
        function = running.function("app")
        assert len({answer["pid"] for answer in answers}) == 5
        assert {answer["counter"] for answer in answers} == {1}
        assert function["start"] == "thaw"
        assert function["start_reason"] is None
        assert function["starts"].keys() == {"thaw"}
        assert function["invocations"].keys() == {"thaw"}
        snapshot = function["snapshot"]
        assert (snapshot["ApplyOn"], snapshot["OptimizationStatus"], snapshot["refused"]) == (
            "PublishedVersions",
            "On",
            None,
        )
        assert len(snapshot["id"]) == 12
        assert snapshot["stored_bytes"] > 1 << 20
        assert snapshot["restore_p50_ms"] == function["starts"]["thaw"]["p50_ms"]
        eventually(lambda: not processes_of(app.data), what="the end of all processes: sleeping costs none")
    assert inits(app) == 1


def test_a_copy_has_its_own_log_stream_variables_and_report(app: Project) -> None:
    with app.up(environ={"AWS_SECRET": "server's"}) as running:
        one = running.invoke("app", {})[0]
        none_alive(running)
        other = running.invoke("app", {})[0]
        assert one["stream"] != other["stream"]
        assert one["variables"]["THAWD_ENVIRONMENT"] != other["variables"]["THAWD_ENVIRONMENT"]
        assert one["variables"]["AWS_LAMBDA_LOG_STREAM_NAME"] == one["stream"]
        assert one["variables"]["AWS_LAMBDA_INITIALIZATION_TYPE"] == "snap-start"
        assert "AWS_SECRET" not in one["variables"]
        text = eventually(
            lambda: "REPORT RequestId" in (text := "\n".join(m for s, m in log(app) if s == other["stream"])) and text,
            what="its log",
        )
        assert "RESTORE_START Runtime Version: python:" in text
        restored = re.search(r"RESTORE_REPORT Restore Duration: (\d+\.\d\d) ms", text)
        reported = re.search(r"\tRestore Duration: (\d+\.\d\d) ms\tBilled Restore Duration: (\d+) ms\t", text)
        assert restored is not None
        assert reported is not None
        assert restored[1] == reported[1]
        assert int(reported[2]) <= float(reported[1]) + 1
        assert "Init Duration" not in text


def test_threads_of_a_function_draw_no_number_before_the_copy_has_its_own(app: Project, tmp_path: Path) -> None:
    """Threads that draw numbers all the time are frozen anywhere. No two copies may draw the same number."""
    app.code(
        """
        import os, pathlib, random, threading, time
        drawn = []

        def draw():
            while True:
                drawn.append((os.getpid(), random.random()))
                time.sleep(0.0002)

        for _ in range(4):
            threading.Thread(target=draw, daemon=True).start()

        def handler(event, context):
            while not pathlib.Path(event["gate"]).exists():
                time.sleep(0.001)
            return [number for pid, number in list(drawn) if pid == os.getpid()][:100]
        """
    )
    app.config(APP + "timeout_s = 60\n")
    with app.up() as running:
        function = running.function("app")
        assert function["start"] == "thaw", function["start_reason"]
        answers = running.invoke_at_once("app", 8, {}, gate=tmp_path / "gate")
        assert all(numbers and error is None for numbers, error in answers), answers
        drawn = [number for numbers, _ in answers for number in numbers]
        assert len(drawn) == len(set(drawn))


def test_what_init_changed_of_its_variables_stays(app: Project) -> None:
    app.code(
        """
        import os
        os.environ["MINE"] = "changed by init"
        os.environ["NEW"] = "made by init"

        def handler(event, context):
            return [os.environ["MINE"], os.environ["NEW"], os.environ["OTHER"]]
        """
    )
    app.config(APP + 'environment = { MINE = "given", OTHER = "given" }\n')
    with app.up() as running:
        assert running.invoke("app", {}) == (["changed by init", "made by init", "given"], None)


def test_a_restarted_server_thaws_at_once_without_another_init(app: Project) -> None:
    with app.up() as running:
        running.invoke("app", {})
        first = running.function("app")["snapshot"]["id"]
    with app.up() as running:
        assert running.function("app")["snapshot"]["id"] == first
        assert running.invoke("app", {})[0]["counter"] == 1
    assert inits(app) == 1


AHEAD = ("unshare", "--time", "--monotonic", "1000000", "--boottime", "1000000")


def test_a_server_thaws_after_a_restart_of_the_machine_without_another_init(app: Project, tmp_path: Path) -> None:
    """Simulated: the first server runs in a time namespace whose clocks are ahead."""
    if subprocess.run([*AHEAD, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may not make time namespaces")
    python = tmp_path / "python-ahead"
    python.write_text(f'#!/bin/sh\nexec {" ".join(AHEAD)} "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    with app.up(python=str(python)) as running:
        running.invoke("app", {})
        first = running.function("app")["snapshot"]["id"]
    with app.up() as running:
        assert running.function("app")["snapshot"]["id"] == first
        assert running.invoke("app", {})[0]["counter"] == 1
        assert running.function("app")["starts"].keys() == {"thaw"}
    assert inits(app) == 1


def change_the_code(app: Project) -> None:
    with open(app.root / "app.py", "a") as file:
        file.write("\n# another text\n")


def change_a_variable(app: Project) -> None:
    change_the_configuration(app, 'WHICH = "1"', 'WHICH = "2"')


def change_the_priming_event(app: Project) -> None:
    change_the_configuration(app, "prime = { n = 1 }", "prime = { n = 2 }")


def change_the_configuration(app: Project, before: str, after: str) -> None:
    file = app.root / "thawd.toml"
    assert before in file.read_text()
    file.write_text(file.read_text().replace(before, after))


def change_a_file_that_init_read(app: Project) -> None:
    (app.root.parent / "weights").write_text("two")


def change_a_module_outside_the_code(app: Project) -> None:
    (app.root.parent / "elsewhere" / "shared.py").write_text("VALUE = 22")


def change_a_file_that_a_variable_names(app: Project) -> None:
    (app.root.parent / "models" / "deep" / "model").write_text("two")


CHANGES = [
    change_the_code,
    change_a_variable,
    change_the_priming_event,
    change_a_file_that_init_read,
    change_a_module_outside_the_code,
    change_a_file_that_a_variable_names,
]


def test_after_a_change_of_what_went_into_it_a_function_is_frozen_anew(app: Project) -> None:
    outside = app.root.parent
    (outside / "weights").write_text("one")
    (outside / "elsewhere").mkdir()
    (outside / "elsewhere" / "shared.py").write_text("VALUE = 1")
    (outside / "models" / "deep").mkdir(parents=True)
    (outside / "models" / "deep" / "model").write_text("one")
    for path in (outside / "weights", outside / "elsewhere" / "shared.py"):
        os.utime(path, (0, 0))  # a file that was written just before init counts as changed during init
    app.code(
        f"""
        import sys
        print("init runs")
        sys.path.append({str(outside / "elsewhere")!r})
        import shared
        with open({str(outside / "weights")!r}) as file:
            WEIGHTS = file.read()

        def handler(event, context):
            return [WEIGHTS, shared.VALUE]
        """
    )
    variables = f'environment = {{ WHICH = "1", MODELS = "{outside / "models"}" }}\nprime = {{ n = 1 }}\n'
    app.config(APP + variables)
    with app.up() as running:
        running.invoke("app", {})
    with app.up() as running:
        assert running.invoke("app", {}) == (["one", 1], None)
    assert inits(app) == 1, "nothing has changed yet"
    for number, change in enumerate(CHANGES):
        change(app)
        with app.up() as running:
            answer, _ = running.invoke("app", {})
        assert inits(app) == 2 + number, change.__name__
    assert answer == ["two", 22]


def test_threads_that_a_fork_would_lose_are_thawed(project: Project) -> None:
    project.code(
        """
        import queue, threading

        ASKED, ANSWERED = queue.Queue(), queue.Queue()

        def answer():
            while True:
                ANSWERED.put(ASKED.get() + 1)

        threading.Thread(target=answer, daemon=True, name="answering").start()

        def handler(event, context):
            ASKED.put(event["n"])
            return [ANSWERED.get(), threading.active_count()]
        """
    )
    project.config(APP + "prime = { n = 1 }\n")
    with project.up() as running:
        assert running.function("app")["start"] == "thaw"
        with ThreadPoolExecutor(4) as threads:
            answers = list(threads.map(lambda n: running.invoke("app", {"n": n}), range(4)))
        assert answers == [([n + 1, 2], None) for n in range(4)]
        assert running.function("app")["starts"].keys() == {"thaw"}, "none of them by fork"


def test_an_image_that_is_gone_is_made_anew_while_requests_are_answered(app: Project) -> None:
    with app.up() as running:
        running.invoke("app", {})
        none_alive(running)
        (image,) = (app.data / "snapshots").glob("*.img")
        image.unlink()
        assert running.invoke("app", {})[1] is None
        assert running.function("app")["fallbacks_by_reason"]["thaw_failed"] >= 1
        running.until_said("cannot thaw here")
        eventually(lambda: running.function("app")["start"] == "thaw", what="a new image")
        none_alive(running)
        thaws = running.function("app")["starts"]["thaw"]["count"]
        assert running.invoke("app", {})[1] is None
        assert running.function("app")["starts"]["thaw"]["count"] == thaws + 1


def test_an_image_whose_copies_die_is_given_up_after_three(app: Project) -> None:
    """Simulate damage by memory or disk: the image's tables are intact, its pages are not."""
    with app.up() as running:
        running.invoke("app", {})
        none_alive(running)
        (image,) = (app.data / "snapshots").glob("*.img")
        with image.open("r+b") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(size // 4)
            file.write(b"\xff" * (size - size // 4))
        for _ in range(5):
            assert running.invoke("app", {})[1] is None
            none_alive(running)
        function = running.function("app")
        assert function["start"] == "fork"
        assert function["snapshot"]["OptimizationStatus"] == "Off"
        assert function["snapshot"]["refused"].startswith("3 thaws failed")
        assert function["fallbacks_by_reason"] == {"thaw_failed": 5}
        eventually(lambda: not image.exists(), what="its removal")


MANY_MAPPINGS = """
import mmap

PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
MAPPINGS = [mmap.mmap(-1, 8192, flags=PRIVATE, prot=mmap.PROT_READ | (2 if n % 2 else 6)) for n in range(12_000)]
for each in MAPPINGS:
    each[0] = 1
"""


@pytest.mark.parametrize("mappings", ["", MANY_MAPPINGS], ids=["quickly restored", "slowly restored"])
def test_a_burst_comes_from_one_image_and_leaves_nothing_behind(app: Project, mappings: str) -> None:
    """If restoring takes long, because there are thousands of mappings, most environments are forks of one thawed
    copy."""
    app.code(mappings + CODE)
    with app.up() as running:
        answers = [answer for answer, _ in running.invoke_at_once("app", 12, {}, gate=app.root / "gate")]
        assert len({answer["pid"] for answer in answers}) == 12
        assert {answer["counter"] for answer in answers} == {1}
        assert {answer["variables"]["AWS_LAMBDA_INITIALIZATION_TYPE"] for answer in answers} == {"snap-start"}
        assert len({answer["stream"] for answer in answers}) == 12
        # On a busy machine any restore may take long, and requests that are sent at once may arrive one by one.
        bursts = 1
        while mappings and "fork" not in running.function("app")["starts"] and bursts < 6:
            none_alive(running)
            running.invoke_at_once("app", 12, {}, gate=app.root / "gate")
            bursts += 1
        kinds = running.function("app")["starts"].keys()
        assert kinds == {"thaw", "fork"} or (kinds == {"thaw"} and not mappings)
        reports: list[str] = eventually(
            lambda: len(found := [text for _, text in log(app) if text.startswith("REPORT")]) == 12 * bursts and found,
            what="all reports",
        )
        assert all("\tRestore Duration: " in report for report in reports), "a fork of a restored one is restored too"
        none_alive(running)
        eventually(lambda: not processes_of(app.data), what="the end of all processes, the template's too")
    assert inits(app) == 1


def test_requests_that_come_while_a_function_is_frozen_wait_for_it(project: Project) -> None:
    project.code("import time\ntime.sleep(2)\ndef handler(event, context):\n    return 1\n")
    project.config(APP + '[functions.quick]\nhandler = "quick.handler"\nsnapshot = false\n')
    project.code("def handler(event, context):\n    return 1\n", "quick.py")
    ready = project.root / "ready.json"
    process = subprocess.Popen(
        [sys.executable, "-m", "thawd", "up", "--ready-file", str(ready)], cwd=project.root, stdout=subprocess.DEVNULL
    )
    try:
        address = project.data / "address.json"
        eventually(address.exists, what="the server's port")
        host, port = json.loads(eventually(address.read_text, what="the address"))
        running = Running(process, f"http://{host}:{port}", project)

        def answered() -> bool:
            with contextlib.suppress(Exception):
                return running.invoke("app", {}) == (1, None)
            return False

        eventually(answered, what="an answer")
        assert running.function("app")["starts"].keys() == {"thaw"}
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


def test_a_new_version_is_frozen_while_the_old_one_serves(app: Project) -> None:
    with app.up("--watch") as running:
        assert running.invoke("app", {})[0]["counter"] == 1
        first = running.function("app")["snapshot"]["id"]
        app.code("import time\ntime.sleep(1)\ndef handler(event, context):\n    return 'new'\n")
        seen = set()

        def is_new() -> bool:
            answer, error = running.invoke("app", {})
            assert error is None
            seen.add(str(type(answer)))
            return bool(answer == "new")

        eventually(is_new, what="the new version")
        assert len(seen) == 2
        function = running.function("app")
        assert (function["start"], function["snapshot"]["id"] != first) == ("thaw", True)


def test_a_server_killed_while_it_freezes_leaves_nothing(project: Project) -> None:
    project.code("X = bytearray(b'x') * (200 << 20)\ndef handler(event, context):\n    return len(X)\n")
    project.config(APP)
    drafts = project.data / "snapshots"

    def under_way() -> bool:
        with contextlib.suppress(FileNotFoundError):  # the draft is renamed at this moment
            return any(drafts.glob(".new-*/*"))
        return False

    while not under_way():  # try again if the moment was missed
        shutil.rmtree(project.data, ignore_errors=True)
        process = subprocess.Popen([sys.executable, "-m", "thawd", "up"], cwd=project.root, stdout=subprocess.DEVNULL)
        eventually(lambda: under_way() or list(drafts.glob("*.img")), what="an image")
        process.kill()
        process.wait()
        eventually(lambda: not processes_of(project.data), what="the end of all processes")
    with project.up() as running:
        assert running.invoke("app", {}) == (200 << 20, None)
        assert running.function("app")["start"] == "thaw"
        assert not list(drafts.glob(".new-*")), "half an image"


def test_tables_and_the_memory_limit_work_in_a_copy(project: Project) -> None:
    project.code(
        """
        import thawd
        TABLE = thawd.table("t")
        TABLE.put("init", {"by": "init"})

        def handler(event, context):
            if "mib" in event:
                return len(bytearray(b"x") * (event["mib"] << 20))
            TABLE.put("run", {"by": "handler"})
            return [key for key, _ in TABLE.scan()]
        """
    )
    project.config(APP + "memory_mb = 128\n[tables.t]\n")
    with project.up() as running:
        assert running.invoke("app", {}) == (["init", "run"], None)
        document, error = running.invoke("app", {"mib": 300})
        assert error == "Unhandled"
        assert document["errorMessage"].endswith("signal: killed")
        assert running.invoke("app", {}) == (["init", "run"], None)
        assert running.function("app")["starts"].keys() == {"thaw"}


def test_old_images_are_removed_when_there_are_too_many(app: Project) -> None:
    app.config("snapshots_max_mb = 0\n" + APP)
    for text in ("one", "two"):
        app.code(f"TEXT = {text!r}\ndef handler(event, context):\n    return TEXT\n")
        with app.up() as running:
            assert running.invoke("app", {}) == (text, None)
            assert len(list((app.data / "snapshots").glob("*.img"))) == 1


def python_for_all(folder: Path) -> tuple[str, dict[str, str]]:
    """Return an interpreter that other users can run, and the variables that make it find thawd and its packages."""
    packages = [path for path in sys.path if path.endswith("site-packages")]
    (folder / "sitecustomize.py").write_text(f"import site\nfor path in {packages!r}:\n    site.addsitedir(path)\n")
    variables = {"PYTHONPATH": str(folder)}
    probe = "from thawd.snapshot import engine; assert engine.unavailable() is None"
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        with contextlib.suppress(OSError):
            environ = {**os.environ, **variables}
            done = subprocess.run([python, "-c", probe], env=environ, user=NOBODY, group=NOBODY, capture_output=True)
            if done.returncode == 0:
                return python, variables
    pytest.skip("no interpreter of this version that an unprivileged user may run")


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is needed")
def test_an_unprivileged_user_freezes_and_thaws() -> None:
    # pytest's own folder belongs to root alone.
    with tempfile.TemporaryDirectory() as folder:
        project = Project(Path(folder) / "project")
        project.root.mkdir()
        project.code(CODE)
        project.config(APP + "idle_timeout_s = 0\nprime = {}\n")
        os.chown(project.root, NOBODY, NOBODY)
        Path(folder).chmod(0o755)
        python, variables = python_for_all(Path(folder))
        with project.up(environ=variables, python=python, user=NOBODY, group=NOBODY, extra_groups=[]) as running:
            for _ in range(3):
                assert running.invoke("app", {})[0]["counter"] == 3
                none_alive(running)
            assert running.function("app")["starts"].keys() == {"thaw"}


def test_a_function_with_a_fragmented_heap_is_thawed(project: Project) -> None:
    make(project).code(
        "import os, hashlib\n"
        "KEPT = [os.urandom(6000) for _ in range(20000)][::3]\n"
        "BEFORE = hashlib.sha256(b''.join(KEPT)).hexdigest()\n"
        "def handler(event, context):\n"
        "    return hashlib.sha256(b''.join(KEPT)).hexdigest() == BEFORE\n"
    )
    project.config(APP + "memory_mb = 512\n")
    with project.up() as running:
        assert running.invoke("app", {}) == (True, None)
        assert running.function("app")["starts"].keys() == {"thaw"}
