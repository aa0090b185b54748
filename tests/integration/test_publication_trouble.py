"""A function cannot be published, for any reason: that function reports it; the server continues and serves the
others."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from thawd.snapshot.engine import unavailable

from .conftest import Project, Running, eventually
from .test_control_durability import ROLE, RUNTIME, create, zipped

# The server's interpreter loads this first. Each method named here raises an error for the function named after it.
FAULTS = """
import functools
import inspect
import os

from thawd.control.declared import DeclaredFunctions
from thawd.scheduling.dispatcher import Dispatcher
from thawd.publishing.build import Builder
from thawd.publishing.publisher import Publisher
from thawd.environments.starts.image_making import Snapshots
from thawd.environments.starts.fastest_start import Spawner
from thawd.environments.starts.thaw_fork_cold import Starter
from thawd.snapshot.inspect.reader import ImageError

SEAMS = {
    "build": (Builder, AssertionError("odd")),
    "_begin": (DeclaredFunctions, ZeroDivisionError("odd")),
    "prepare": (Spawner, ExceptionGroup("odd", [KeyError("odd")])),
    "template": (Starter, RuntimeError("odd")),
    "find": (Snapshots, KeyError("odd")),
    "make": (Snapshots, MemoryError("odd")),
    "_freeze": (Snapshots, ImageError("odd")),
    "publish": (Dispatcher, IndexError("odd")),
    "remember": (Publisher, OSError(5, "odd")),
}


def odd(name, owner, error):
    real = getattr(owner, name)

    def concerned(arguments):
        function = getattr(arguments[1], "function", arguments[1])
        return getattr(function, "name", None) == "odd" + name.replace("_", "") and not os.path.exists("mended")

    @functools.wraps(real)
    def called(*arguments, **named):
        if concerned(arguments):
            raise error
        return real(*arguments, **named)

    @functools.wraps(real)
    async def awaited(*arguments, **named):
        if concerned(arguments):
            raise error
        return await real(*arguments, **named)

    setattr(owner, name, awaited if inspect.iscoroutinefunction(real) else called)


for name, (owner, error) in SEAMS.items():
    odd(name, owner, error)
"""
SEAMS = ("build", "begin", "prepare", "template", "find", "make", "freeze", "publish", "remember")
NAMES = [f"odd{seam}" for seam in SEAMS]
# These functions cannot be frozen because of the fault, but are served nevertheless, with slower starts.
SERVED = {"oddfind": "thaw", "oddmake": "fork", "oddfreeze": "fork"}


@pytest.fixture
def odd(project: Project) -> Project:
    """A project whose server has these faults."""
    (project.root / "faults").mkdir()
    (project.root / "faults" / "sitecustomize.py").write_text(FAULTS)
    project.code("def handler(event, context):\n    return 'sound'\n")
    return project


def faulty(project: Project) -> dict[str, str]:
    return {"PYTHONPATH": str(project.root / "faults")}


def state(running: Running, name: str, **qualifier: str) -> dict[str, Any]:
    return dict(running.client().get_function_configuration(FunctionName=name, **qualifier))


def settled(running: Running, name: str, **qualifier: str) -> dict[str, Any]:
    """Wait until no update of the function is pending, and return its configuration."""

    def look() -> dict[str, Any] | None:
        found = state(running, name, **qualifier)
        return None if "Pending" in found["State"] or "InProgress" in found["LastUpdateStatus"] else found

    return dict(eventually(look, what=f"the state of {name}"))


def reload(running: Running) -> None:
    """Make the server reload its configuration, and wait until it has."""
    running.output.clear()
    running.process.send_signal(signal.SIGHUP)
    running.until_said("configuration reloaded")


def declared(names: list[str], **options: str) -> str:
    added = "".join(f"{name} = {value}\n" for name, value in options.items())
    return "".join(f'[functions.{name}]\nhandler = "app.handler"\n{added}' for name in names)


@pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
def test_whatever_is_raised_while_a_function_is_published_the_server_starts_reloads_and_serves_the_others(
    odd: Project,
) -> None:
    odd.config(declared(["sound", *NAMES]))
    with odd.up(environ=faulty(odd)) as running:
        for turn in range(2):
            functions = running.status()["functions"]
            assert running.invoke("sound", {}) == ("sound", None)
            for name in NAMES:
                if name in SERVED:
                    assert running.invoke(name, {}) == ("sound", None)
                    assert (functions[name]["state"], functions[name]["start"]) == ("Active", SERVED[name])
                    if not turn:
                        assert any(line.startswith(f"thawd: {name}: ") and "odd" in line for line in running.output)
                    if SERVED[name] == "fork":
                        assert "odd" in functions[name]["start_reason"]
                    continue
                assert "odd" in functions[name]["reason"], (turn, name)
                if name != "oddremember":  # this function serves already when the fault occurs
                    assert functions[name]["state"] == "Failed"
                    shown = state(running, name)
                    assert (shown["State"], shown["StateReasonCode"]) == ("Failed", "InternalError")
                    assert "odd" in shown["StateReason"]
                running.until_said(f"thawd: {name} cannot be published: ")
            reload(running)
        (odd.root / "mended").touch()
        odd.code("def handler(event, context):\n    return 'mended'\n")
        reload(running)
        for name in ("sound", *NAMES):
            assert running.invoke(name, {}) == ("mended", None)
            assert running.function(name)["reason"] is None
            shown = state(running, name)
            assert (shown["State"], shown["LastUpdateStatus"]) == ("Active", "Successful"), shown


@pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
def test_whatever_is_raised_while_the_api_publishes_a_function_its_state_says_so_and_mends(odd: Project) -> None:
    odd.config("")
    names = ["oddbuild", "oddprepare", "oddtemplate", "oddpublish"]
    with odd.up(environ=faulty(odd)) as running:
        create(running, "sound", "sound", SnapStart={"ApplyOn": "PublishedVersions"})
        for name in names:
            running.client().create_function(
                FunctionName=name, Runtime=RUNTIME, Role=ROLE, Handler="app.handler", Code={"ZipFile": zipped("x")},
                SnapStart={"ApplyOn": "PublishedVersions"},
            )  # fmt: skip
            shown = settled(running, name)
            assert (shown["State"], shown["StateReasonCode"]) == ("Failed", "InternalError"), name
            assert "odd" in shown["StateReason"]
        running.client().update_function_code(FunctionName="sound", ZipFile=zipped("second"))
        assert settled(running, "sound")["LastUpdateStatus"] == "Successful"
        assert running.invoke("sound", {}) == ("second", None)
        (odd.root / "mended").touch()
        for name in names:
            assert running.invoke(name, {}) == ("x", None)
            shown = eventually(lambda name=name: (found := state(running, name))["State"] == "Active" and found)
            assert "StateReason" not in shown
            assert (shown["LastUpdateStatus"], "LastUpdateStatusReason" in shown) == ("Successful", False)


DIES = """
import os
if os.path.exists({die!r}):
    if {once!r}:
        os.unlink({die!r})
    os.kill(os.getpid(), 9)
def handler(event, context):
    return "alive"
"""


def dying(die: Path, *, once: bool) -> str:
    """Return code with an init that is killed while the file `die` exists.

    With `once`, the init deletes the file first.
    """
    die.touch()
    return DIES.format(die=str(die), once=once)


@pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
def test_a_version_whose_init_was_killed_is_tried_again_and_its_state_follows_the_truth(project: Project) -> None:
    project.config("")
    die = project.root / "die"
    with project.up() as running:
        client = running.client()
        create(running, "app", "first", SnapStart={"ApplyOn": "PublishedVersions"})
        code = zipped("alive", init=dying(die, once=True))
        client.update_function_code(FunctionName="app", ZipFile=code)
        assert settled(running, "app")["LastUpdateStatus"] == "Successful"
        die.touch()
        number = client.publish_version(FunctionName="app")["Version"]
        shown = settled(running, "app", Qualifier=number)
        assert (shown["State"], shown["SnapStart"]["OptimizationStatus"]) == ("Active", "On")

        client.update_function_code(FunctionName="app", ZipFile=zipped("alive", init=dying(die, once=False)))
        settled(running, "app")
        number = client.publish_version(FunctionName="app")["Version"]
        shown = settled(running, "app", Qualifier=number)
        assert (shown["State"], shown["StateReasonCode"]) == ("Failed", "FunctionError")
        assert "signal: killed" in shown["StateReason"]
        die.unlink()
        assert running.invoke("app", {}, Qualifier=number) == ("alive", None)
        shown = eventually(lambda: (now := state(running, "app", Qualifier=number))["State"] == "Active" and now)
        assert ("StateReason" in shown, shown["LastUpdateStatus"]) == (False, "Successful")
        assert shown["SnapStart"]["OptimizationStatus"] == "On"
    with project.up() as running:
        assert state(running, "app", Qualifier=number)["State"] == "Active"


def test_a_function_of_the_file_whose_init_was_killed_is_active_once_it_works(project: Project) -> None:
    die = project.root / "die"
    project.code(dying(die, once=False))
    project.config('[functions.app]\nhandler = "app.handler"\n')
    with project.up() as running:
        assert running.function("app")["state"] == "Failed"
        assert "signal: killed" in running.function("app")["reason"]
        die.unlink()
        assert running.invoke("app", {}) == ("alive", None)
        assert (running.function("app")["state"], running.function("app")["reason"]) == ("Active", None)
        # If a change cannot be published, the previous version stays Active and reports the failed update.
        project.code("def handler(event, context):\n    return 'second'\nraise LookupError('no model')\n")
        reload(running)
        shown = state(running, "app")
        assert (shown["State"], shown["LastUpdateStatus"]) == ("Active", "Failed")
        assert (shown["LastUpdateStatusReasonCode"], "no model" in shown["LastUpdateStatusReason"]) == (
            "FunctionError",
            True,
        )
        assert running.invoke("app", {}) == ("alive", None)
        project.code("def handler(event, context):\n    return 'second'\n")
        reload(running)
        assert running.invoke("app", {}) == ("second", None)
        assert state(running, "app")["LastUpdateStatus"] == "Successful"
        assert "LastUpdateStatusReason" not in state(running, "app")


@pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
def test_images_whose_records_are_damaged_are_not_used_and_made_anew(project: Project) -> None:
    project.code("def handler(event, context):\n    return 1\n")
    project.config(declared(["a", "b", "c"]))
    with project.up():
        pass
    first, second, third = sorted((project.data / "snapshots").glob("*.json"))
    first.write_bytes(b"\xff\x00{")
    os.truncate(second.with_suffix(".img"), 100)
    third.unlink()
    third.mkdir()
    with project.up() as running:
        for name in "abc":
            assert running.invoke(name, {}) == (1, None)
            assert (running.function(name)["state"], running.function(name)["start"]) == ("Active", "thaw")


@pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
def test_a_package_that_vanishes_while_its_function_is_published_costs_that_function_alone(project: Project) -> None:
    began, gate = project.root / "began", project.root / "gate"
    project.code(
        f"""
        import os, time
        open({str(began)!r}, "w").close()
        while not os.path.exists({str(gate)!r}):
            time.sleep(0.005)

        def handler(event, context):
            return 1
        """
    )
    project.config("")
    with project.up() as running:
        create(running, "sound", "sound")
        project.config(declared(["app"]))
        running.process.send_signal(signal.SIGHUP)
        eventually(began.exists, what="init")
        for package in (project.data / "packages").iterdir():
            if any(str(began) in file.read_text() for file in package.glob("*.py")):
                shutil.rmtree(package)
        gate.touch()
        running.until_said("configuration reloaded")
        assert running.function("app")["start"] != "thaw"
        assert running.invoke("sound", {}) == ("sound", None)
        reload(running)
        assert running.invoke("app", {}) == (1, None)


LOST = """
from pathlib import Path

from thawd.environments.starts.engine_files import Engine

found = Engine.find()
Engine.find = classmethod(lambda cls: cls(Path("/nonexistent/freeze.so"), found.program))
"""


@pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
def test_a_native_library_that_is_gone_costs_the_snapshots_alone(project: Project) -> None:
    (project.root / "faults").mkdir()
    (project.root / "faults" / "sitecustomize.py").write_text(LOST)
    project.code("def handler(event, context):\n    return 1\n")
    project.config(declared(["app"]))
    with project.up(environ=faulty(project)) as running:
        assert running.invoke("app", {}) == (1, None)
        assert (running.function("app")["state"], running.function("app")["start"]) == ("Active", "fork")
        assert "/nonexistent/freeze.so" in running.function("app")["start_reason"]
