"""A server with changing code or configuration, by SIGHUP or `--watch`: what is published, and what stays."""

from __future__ import annotations

import shutil
import signal
import threading
from typing import Any

import pytest

from .conftest import ECHO, Project, eventually, processes_of


def test_sighup_publishes_changed_code_without_a_failed_request(echo: Project) -> None:
    with echo.up() as running:
        stop = threading.Event()
        answers: list[Any] = []

        def load() -> None:
            while not stop.is_set():
                answers.append(running.invoke("app", {}))

        threads = [threading.Thread(target=load) for _ in range(3)]
        for thread in threads:
            thread.start()
        eventually(lambda: len(answers) > 10, what="answers")
        echo.code(ECHO.replace("VERSION = 1", "VERSION = 2"))
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: (2, None) in answers, what="an answer of the new version")
        stop.set()
        for thread in threads:
            thread.join()
        assert set(answers) == {(1, None), (2, None)}
        switched = [answer for answer, _ in answers]
        assert switched.count(1) >= 10
        assert running.invoke("app", {}) == (2, None)


def test_a_change_that_does_not_load_leaves_the_old_version_serving(echo: Project) -> None:
    with echo.up() as running:
        assert running.invoke("app", {}) == (1, None)
        echo.code("this is no Python")
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: "configuration reloaded" in running.output, what="the reload")
        assert running.invoke("app", {}) == (1, None)
        function = running.function("app")
        assert function["state"] == "Active"
        assert "invalid syntax" in function["reason"]


def test_a_broken_configuration_is_not_reloaded(echo: Project) -> None:
    with echo.up() as running:
        (echo.root / "thawd.toml").write_text("[functions.app\n")
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: any("was not reloaded" in line for line in running.output), what="the word")
        assert running.invoke("app", {}) == (1, None)


def test_a_reload_adds_and_removes_functions(echo: Project) -> None:
    with echo.up() as running:
        echo.config('[functions.new]\nhandler = "app.handler"\n[functions.new.url]\nauth_type = "NONE"\n')
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: "configuration reloaded" in running.output, what="the reload")
        assert running.invoke("new", {}) == (1, None)
        eventually(lambda: any(x.split()[:2] == ["url", "new"] for x in running.output), what="the URL")
        assert any(line.split()[:2] == ["function", "new"] for line in running.output)
        with pytest.raises(running.client().exceptions.ResourceNotFoundException):
            running.invoke("app", {})


def test_a_reload_removes_no_file_of_an_upload_in_progress(echo: Project) -> None:
    echo.config('[functions.app]\nhandler = "app.handler"\n[buckets.uploads]\n')
    with echo.up() as running:
        running.s3().put_object(Bucket="uploads", Key="first", Body=b"")
        [bucket] = [each for each in echo.root.rglob("uploads") if each.is_dir()]
        # As the file of an upload between the moment when it is closed and that when it gets its name.
        staged = bucket / ".thawd-staging" / "complete"
        staged.write_bytes(b"body")
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: "configuration reloaded" in running.output, what="the reload")
        running.s3().put_object(Bucket="uploads", Key="second", Body=b"")
        assert staged.read_bytes() == b"body"


def test_watching_publishes_when_code_changes(echo: Project) -> None:
    with echo.up("--watch") as running:
        assert running.invoke("app", {}) == (1, None)
        echo.code(ECHO.replace("VERSION = 1", "VERSION = 3"))
        eventually(lambda: running.invoke("app", {}) == (3, None), what="the new version")


def test_watching_sees_renamed_files_new_functions_and_replaced_folders(project: Project) -> None:
    def write(name: str, version: int) -> None:
        project.code(ECHO.replace("VERSION = 1", f"VERSION = {version}"), f"{name}/app.py")

    def configure(*names: str) -> None:
        """Save the configuration as most editors do: a new file, renamed over the old one."""
        project.config("".join(f'[functions.{n}]\nhandler = "app.handler"\ncode = "{n}"\n' for n in names))
        (project.root / "thawd.toml").rename(project.root / "saved")
        (project.root / "saved").rename(project.root / "thawd.toml")

    write("one", 1)
    configure("one")
    with project.up("--watch") as running:
        for names in (("one", "two"), ("one", "two", "three")):
            write(names[-1], 1)
            configure(*names)
            eventually(lambda names=names: names[-1] in running.status()["functions"], what=f"the function {names[-1]}")
        write("two", 2)
        eventually(lambda: running.invoke("two", {}) == (2, None), what="the change of a function added later")
        shutil.rmtree(project.root / "one")
        write("one", 3)
        eventually(lambda: running.invoke("one", {}) == (3, None), what="the replaced folder")
        write("one", 4)
        eventually(lambda: running.invoke("one", {}) == (4, None), what="a change in the replaced folder")


def test_a_running_version_never_sees_changed_files(echo: Project) -> None:
    echo.code(
        """
        def handler(event, context):
            import late
            return late.VALUE
        """
    )
    echo.code("VALUE = 1\n", "late.py")
    with echo.up() as running:
        echo.code("VALUE = 2\n", "late.py")
        assert running.invoke("app", {}) == (1, None)


def test_a_broken_change_keeps_the_files_of_the_version_that_serves(echo: Project) -> None:
    echo.code("def handler(event, context):\n    import late\n    return late.VALUE\n")
    echo.code("VALUE = 1\n", "late.py")
    with echo.up() as running:
        echo.code("this is no Python")
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: "configuration reloaded" in running.output, what="the reload")
        assert running.invoke("app", {}) == (1, None)


def test_a_function_that_damaged_its_own_code_is_mended_by_a_reload(echo: Project) -> None:
    echo.code(
        """
        import os

        def handler(event, context):
            if event.get("destroy"):
                os.unlink("late.py")
                os._exit(1)
            import late
            return late.VALUE
        """
    )
    echo.code("VALUE = 5\n", "late.py")
    with echo.up() as running:
        running.invoke("app", {"destroy": True})
        assert running.invoke("app", {})[1] == "Unhandled"
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: "configuration reloaded" in running.output, what="the reload")
        assert running.invoke("app", {}) == (5, None)


def test_a_function_removed_while_it_is_being_published_leaves_nothing(echo: Project) -> None:
    echo.code("import time\ntime.sleep(3)\ndef handler(event, context):\n    return 1\n", "slow.py")
    echo.code("def handler(event, context):\n    return 1\n", "quick.py")
    echo.config('[functions.quick]\nhandler = "quick.handler"\n')
    with echo.up() as running:
        echo.config('[functions.quick]\nhandler = "quick.handler"\n[functions.slow]\nhandler = "slow.handler"\n')
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: "slow" in running.status()["functions"], what="the slow function's publication")
        echo.config('[functions.quick]\nhandler = "quick.handler"\n')
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: "slow" not in running.status()["functions"], what="its removal")
        eventually(lambda: running.output.count("configuration reloaded") == 2, what="both reloads")
        eventually(
            lambda: not processes_of(echo.data), what="no process of it, nor of the one that is thawed when needed"
        )
        assert running.invoke("quick", {}) == (1, None)
