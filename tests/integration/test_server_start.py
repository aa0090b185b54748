"""Claims about a server that has started while its functions are still being published."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

from .conftest import Project, eventually, processes_of

HANGS = """
import os, time
while not os.path.exists({gate!r}):
    time.sleep(0.01)
def handler(event, context):
    return "late"
"""
QUICK = "def handler(event, context):\n    return 'quick'\n"
ANSWERING = ("--ready-when", "answering")


def many_that_hang(project: Project, gate: Path, *, more: str = "") -> list[str]:
    """Functions whose init waits for a file, one more than are published at a time, and then one that is quick."""
    names = [f"hangs{number}" for number in range((os.cpu_count() or 1) + 1)]
    project.code(HANGS.format(gate=str(gate)), "hangs/app.py")
    project.code(QUICK, "quick/app.py")
    declared = [
        f'[functions.{name}]\nhandler = "app.handler"\ncode = "hangs"\ninit_timeout_s = 300\n' for name in names
    ]
    project.config("\n".join(declared) + '[functions.quick]\nhandler = "app.handler"\ncode = "quick"\n' + more)
    return names


def test_a_request_has_its_function_published_before_those_that_hang(project: Project, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    names = many_that_hang(project, gate)
    with project.up(*ANSWERING) as running:
        assert running.invoke("quick") == ("quick", None)
        assert running.function("quick")["state"] == "Active"
        assert {running.function(name)["state"] for name in names} == {"Pending"}
        assert running.client().get_function_configuration(FunctionName=names[0])["State"] == "Pending"
        running.until_said("functions are not yet published")
        assert not any("Ctrl-C stops" in line for line in running.output)

        answers: list[Any] = []
        waits = [threading.Thread(target=lambda name=name: answers.append(running.invoke(name))) for name in names]
        for wait in waits:
            wait.start()
        gate.touch()
        for wait in waits:
            wait.join()

        assert answers == [("late", None)] * len(names)
        running.until_said("Ctrl-C stops")
        assert {running.function(name)["state"] for name in names} == {"Active"}


def test_a_server_that_stops_while_it_publishes_leaves_nothing(project: Project, tmp_path: Path) -> None:
    many_that_hang(project, tmp_path / "gate")
    with project.up(*ANSWERING) as running:
        eventually(lambda: processes_of(project.data), what="an init")
        running.process.send_signal(signal.SIGHUP)
        running.process.send_signal(signal.SIGINT)
        running.until_said("stopping")
        assert running.stop(number=signal.SIGINT) == 0
        assert not processes_of(project.data)
        eventually(lambda: "stopped" in running.output, what="the last line")
        assert running.output[-1] == "stopped", running.output
        assert not any("Ctrl-C stops" in line or "reloaded" in line for line in running.output)


def test_a_reload_while_functions_are_published_waits_for_none_of_them(project: Project, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    many_that_hang(project, gate)
    with project.up(*ANSWERING) as running:
        eventually(lambda: processes_of(project.data), what="an init")
        many_that_hang(project, gate, more='[functions.added]\nhandler = "app.handler"\ncode = "quick"\n')
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: "added" in running.status()["functions"], what="the declaration")

        assert running.invoke("added") == ("quick", None)

        gate.touch()
        running.until_said("configuration reloaded")
        states = {name: each["state"] for name, each in running.status()["functions"].items()}
        assert set(states.values()) == {"Active"}


def test_a_restart_adopts_images_and_checks_each_before_its_first_thaw(project: Project, tmp_path: Path) -> None:
    inits, names = tmp_path / "inits", ("kept", "changed")
    for name in names:
        (tmp_path / name).write_text("one")
        os.utime(tmp_path / name, (0, 0))  # a file that was written just before init counts as changed during init
        code = f"""
            with open({str(tmp_path / name)!r}) as file:
                TEXT = file.read()
            with open({str(inits)!r}, "a") as file:
                file.write("{name} ")
            def handler(event, context):
                return TEXT
            """
        project.code(code, f"{name}/app.py")
    project.config("".join(f'[functions.{name}]\nhandler = "app.handler"\ncode = "{name}"\n' for name in names))
    with project.up() as running:
        before = {name: running.function(name)["snapshot"]["id"] for name in names}
    assert sorted(inits.read_text().split()) == sorted(names)
    (tmp_path / "changed").write_text("two")

    with project.up() as running:
        for name in names:
            shown = running.function(name)
            assert (shown["state"], shown["start"], shown["snapshot"]["id"]) == ("Active", "thaw", before[name])
        assert sorted(inits.read_text().split()) == sorted(names), "no init runs before a request"

        assert running.invoke("kept") == ("one", None)
        assert running.invoke("changed") == ("two", None)

        assert inits.read_text().split().count("kept") == 1
        assert running.function("kept")["snapshot"]["id"] == before["kept"]
        assert running.function("changed")["snapshot"]["id"] != before["changed"]
        assert running.function("changed")["starts"].keys() == {"thaw"}
