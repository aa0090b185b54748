"""What `thawd up` prints while somebody works on a function: changes, steps, failures."""

from __future__ import annotations

import re
import urllib.error
import urllib.request

from .conftest import ECHO, Project, Running, eventually


def test_a_change_is_named_with_its_steps_and_files_that_are_no_code_change_nothing(echo: Project) -> None:
    (echo.root / ".thawdignore").write_text("data/\n*.csv\n")
    (echo.root / "data").mkdir()
    with echo.up("--watch") as running:
        echo.code(ECHO.replace("VERSION = 1", "VERSION = 3"))  # may change before the watch begins, so has no name
        eventually(lambda: running.invoke("app", {}) == (3, None))
        (echo.root / "data" / "rows.bin").write_text("1")
        (echo.root / "rows.csv").write_text("1")
        (echo.root / ".cache").mkdir()
        (echo.root / ".cache" / "x.py").write_text("1")
        echo.code(ECHO.replace("VERSION = 1", "VERSION = 2"))
        running.until_said("app.py changed, building …")
        running.until_said("app: republished: app.py changed; built ")
        eventually(lambda: running.invoke("app", {}) == (2, None))
        assert sum("republished: app.py changed; " in line for line in running.output) <= 2
        said = [line for line in running.output if "republished" in line]
        assert not any(name in line for line in said for name in ("csv", "rows", "cache")), said
        echo.code(ECHO.replace("VERSION = 1", "VERSION = 1 / 0"))
        running.until_said("init failed: ZeroDivisionError: division by zero")
        running.until_said('  File "app.py", line 4, in <module>')
        running.until_said("  the version before this change still serves")
        assert running.invoke("app", {}) == (2, None)
        echo.code(ECHO.replace("VERSION = 1", "VERSION = 2"))
        running.until_said(", earlier snapshot reused ")
        (echo.root / "app.py").touch()
        running.until_said("nothing to publish")
        config = echo.root / "thawd.toml"
        config.write_text(config.read_text() + '[routes]\n"GET /added" = "app"\n')
        running.until_said("  route     GET /added")


SHOWN = """
import os

def handler(event, context):
    return [os.environ.get("LEVEL"), os.environ.get("TOKEN"), os.path.exists(".env")]
"""


def test_variables_come_from_a_file_and_a_change_of_it_republishes(project: Project) -> None:
    project.code(SHOWN)
    project.config('[functions.app]\nhandler = "app.handler"\nenvironment_file = ".env"\n')
    file = project.root / ".env"
    file.write_text("export LEVEL=1  # low\nTOKEN='canary-27182'\n")
    with project.up("--watch", "--ready-when", "published", command=("up",)) as running:
        assert running.invoke("app", {}) == (["1", "canary-27182", False], None)
        file.write_text("LEVEL=0\nTOKEN='canary-27182'\n")  # a change before the watch begins has no name
        eventually(lambda: running.invoke("app", {}) == (["0", "canary-27182", False], None))
        file.write_text("LEVEL=2\nTOKEN='canary-27182'\n")
        running.until_said(".env changed, building …")
        eventually(lambda: running.invoke("app", {}) == (["2", "canary-27182", False], None))
        file.write_text("LEVEL=3\ncanary-27182\n")
        running.until_said("line 2 of .env: no NAME=value")
        assert running.invoke("app", {})[0][0] == "2"
        assert not any("canary" in line for line in running.output)


def test_a_log_in_the_code_folder_that_changes_again_is_named_with_the_way_to_leave_it_out(echo: Project) -> None:
    with echo.up("--watch") as running:
        echo.code(ECHO.replace("VERSION = 1", "VERSION = 2"))  # a change before the watch begins has no name
        eventually(lambda: running.invoke("app", {}) == (2, None))
        advice = "so each change of it makes a new version"

        def logged() -> bool:
            with (echo.root / "worker.log").open("a") as log:  # again and again: a change may come between two watches
                log.write("1\n")
            return any(advice in line for line in running.output)

        eventually(logged, what="the advice")
        (said,) = [line for line in running.output if advice in line]
        assert said.startswith("thawd: worker.log counts as code, ")
        assert said.endswith("add worker.log to .thawdignore in the code folder")
        (echo.root / ".thawdignore").write_text("*.log\n")
        running.until_said(".thawdignore")


def test_run_takes_variables_by_docker_s_options(project: Project) -> None:
    project.code(SHOWN)
    (project.root / "dev.env").write_text("LEVEL=1\nTOKEN=canary-27182\n")
    options = ("--env-file", "dev.env", "--env", 'LEVEL="2" = 2', "--no-watch")
    with project.run("app.py", *options) as running:
        assert running.invoke("handler", {})[0] == ['"2" = 2', "canary-27182", False]
        written = project.root / ".thawd" / "run" / "thawd.toml"
        assert written.stat().st_mode & 0o077 == 0
        assert not any("canary" in line for line in running.output)
    refused = project.command("run", "app.py", "--env", "MISSING_HERE")
    assert "there is no environment variable MISSING_HERE to pass on; give it as MISSING_HERE=VALUE" in refused.stderr


def test_a_function_that_never_served_is_not_listed_with_a_kind_of_start(echo: Project) -> None:
    echo.code("1 / 0\n")
    with echo.up() as running:
        (line,) = [each for each in running.output if each.startswith("  function  app")]
        assert line.split() == ["function", "app", "-", "app.handler", "Failed:", "see", "above"]
        assert running.function("app")["start"] is None


def test_a_quiet_server_prints_only_problems(echo: Project) -> None:
    with echo.up("-q", "--ready-when", "published", command=("up",)) as running:
        assert running.invoke("app", {}) == (1, None)
    assert [line for line in running.output if not line.startswith("thawd: ")] == []


REQUESTS = """
import base64

def handler(event, context):
    path = event.get("rawPath", "")
    if path == "/teapot":
        return {"statusCode": 418, "body": "short"}
    print("decodes", path)
    return len(base64.b64decode(event["text"], validate=True))

def own_answer(event, context):
    print("it went wrong")
    return {"statusCode": 503, "body": "later"}
"""


def test_each_request_gets_a_line_and_a_failure_its_traceback(project: Project) -> None:
    project.code(REQUESTS)
    project.config(
        '[functions.f]\nhandler = "app.handler"\n[functions.g]\nhandler = "app.own_answer"\n'
        '[routes]\n"GET /d" = "f"\n"GET /teapot" = "f"\n"GET /g" = "g"\n'
    )
    with project.up() as running:
        assert _status(running, "/d") == 500
        running.until_said("f GET /d 500 ")
        (failed,) = [line for line in running.output if " f GET /d 500 " in line]
        assert re.fullmatch(r"\d\d:\d\d:\d\d f GET /d 500 \d+ ms \(thaw \d+ ms\) KeyError: 'text'", failed), failed
        at = running.output.index(failed)
        eventually(lambda: len(running.output) > at + 2)
        assert running.output[at + 1] == '  File "app.py", line 9, in handler'
        assert "event[" in running.output[at + 2]
        assert _status(running, "/teapot") == 418
        running.until_said("f GET /teapot 418 ")
        assert _status(running, "/g") == 503
        running.until_said("g GET /g 503 ")
        running.until_said("  it went wrong")
        assert _status(running, "/nowhere") == 404
        running.until_said("GET /nowhere 404 nothing is served")
        assert running.invoke("f", {"text": "YQ=="}) == (1, None)
        running.until_said(" f ok ")
        assert all(len(line) <= 80 for line in running.output if re.match(r"\d\d:\d\d:\d\d ", line))
        lines = project.command("logs", "f", "--grep", "decodes /d").stdout.splitlines()
        assert len(lines) == 1
        repeated = project.command("invoke", "f", "--last")
        assert (repeated.returncode, repeated.stdout) == (0, "1\n"), repeated.stderr
        missing = project.command("invoke", "F", "-p", "{}")
        assert "did you mean f?" in missing.stderr


def _status(running: Running, path: str) -> int:
    try:
        with urllib.request.urlopen(running.url + path, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
