"""Mistakes as people type them: each message says where, what, and the way out."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from thawd.cli.program import main

GOOD = '[functions.f]\nhandler = "app.handler"\n'
HANDLER = "def handler(event, context):\n    return 1\n"
FILES = {"thawd.toml": GOOD, "app.py": HANDLER}

# Of each mistake: what is typed, the files that are in the folder, and what the message must contain.
MISTAKES: list[tuple[str, dict[str, str], list[str]]] = [
    ("invke f", FILES, ["invke", "did you mean invoke?"]),
    ("up --wach", FILES, ["--wach", "--watch"]),
    ("up -c thawd.tml", FILES, ["thawd.tml", "no such file", "thawd.toml"]),
    ("up", {}, ["thawd.toml", "no such file", "smallest"]),
    ("status", {}, ["thawd.toml", "no such file", "in the folder in which `thawd up` runs"]),
    ("up", {"thawd.toml": "[functions.f]\nhandler = app.handler\n"}, ["line 2", 'quotes: handler = "…"']),
    ("up", {"thawd.toml": GOOD + "snapshot = True\n"}, ["line 3", "snapshot = true"]),
    ("up", {"thawd.toml": GOOD + "python = None\n"}, ["line 3", "leave python out"]),
    ("up", {"thawd.toml": '[functions.f]\nhandler = "app.handler\n'}, ["line 2", "handler", "no closing quote"]),
    ("up", {"thawd.toml": GOOD + 'environment = {"A": "1"}\n'}, ["line 3", "{ name = value }"]),
    ("up", {"thawd.toml": GOOD + GOOD}, ["line 3", "functions"]),
    ("check", {"thawd.toml": GOOD.replace("functions", "function")}, ["function", "functions"]),
    ("check", {"thawd.toml": GOOD + "memory = 512\n"}, ["functions.f.memory", "memory_mb"]),
    ("check", {"thawd.toml": GOOD + 'memory_mb = "512"\n'}, ["functions.f.memory_mb", '"512"', "whole number"]),
    ("check", {"thawd.toml": GOOD + "timeout_s = 0\n"}, ["functions.f.timeout_s", "0", "1"]),
    ("check", {"thawd.toml": '[functions.f]\nhandler = "app"\n'}, ["functions.f.handler", "app", "module.function"]),
    ("check", {**FILES, "thawd.toml": GOOD.replace("app.", "ap.")}, ["ap", "app"]),
    ("check", {**FILES, "thawd.toml": GOOD.replace('handler"', 'handle"')}, ["handle", "handler"]),
    (
        "check",
        {**FILES, "thawd.toml": GOOD + '[routes]\n"GET /" = "g"\n'},
        ['routes."GET /"', '"g"', "functions of this file: f"],
    ),
    ("check", {**FILES, "thawd.toml": GOOD + '[routes]\n"get /" = "f"\n'}, ["get /", '"GET" (did you mean that?)']),
    (
        "check",
        {**FILES, "thawd.toml": GOOD + '[routes]\n"/d" = "f"\n'},
        ['"/d"', "one of GET", "a path such as /items"],
    ),
    ("check", {**FILES, "thawd.toml": GOOD + '[buckets.up]\nnotify = [{ function = "F" }]\n'}, ["notify", "f"]),
    ("check", {**FILES, "thawd.toml": GOOD + "[buckets.Up]\n"}, ["Up", "lower-case"]),
    ("check", {**FILES, "thawd.toml": GOOD + 'requirements = "reqs.txt"\n'}, ["requirements", "reqs.txt"]),
    ("check", {**FILES, "thawd.toml": GOOD + 'code = "src"\n'}, ["code", "src"]),
    ("invoke f", FILES, ["no thawd server", "thawd up"]),
    ("invoke f -p {n:1}", FILES, ["{n:1}", "not JSON", '{"n":1}']),
    ("invoke f -p app.py", FILES, ["app.py", "not JSON", "@app.py"]),
    ("invoke f -p @event.json", FILES, ["event.json", "cannot be read"]),
    ("logs ff", FILES, ["'ff'", "did you mean f?"]),
    ("logs f --since yesterday", FILES, ["yesterday", "10m"]),
    ("logs f --grep (", FILES, ["--grep", "'('", "[.]"]),
    ("logs f --request xyz", FILES, ["--request", "xyz", "REPORT"]),
    ("dead show x", FILES, ["'x'", "thawd dead list"]),
    ("dead redrive", FILES, ["ID", "--all"]),
    ("event s3put", FILES, ["s3put", "did you mean s3-put?"]),
    ("event sqs --set body", FILES, ["--set body", "NAME=VALUE"]),
    ("event sqs --set bdy=x", FILES, ["bdy", "did you mean body?"]),
    ("event sqs --set Records.1.body=x", FILES, ["Records.1.body", "0 to 0"]),
    ("run ap.py", {"app.py": HANDLER}, ["ap.py", "app.py"]),
    ("run app.py:handlr", {"app.py": HANDLER}, ["handlr", "handler"]),
    ("run app.py", {"app.py": "x = 1\n"}, ["app.py", "handler"]),
    ("run app.py", FILES, ["thawd.toml", "thawd up"]),
    ("run notes.txt", {"notes.txt": ""}, ["notes.txt", ".py"]),
    ("up --port 99999", FILES, ["99999", "65535"]),
    ("up --port abc", FILES, ["abc", "integer"]),
    ("up --host 0.0.0.0", FILES, ["0.0.0.0", "server.key"]),
    ("up --aws --aws-real", FILES, ["--aws", "--aws-real", "exclude"]),
    ("up --debug F", FILES, ["--debug F", "did you mean f?"]),
    ("up --debug-wait", FILES, ["--debug-wait", "--debug"]),
    ("tune ff", FILES, ["'ff'", "did you mean f?"]),
    ("tune f --memory 64", FILES, ["64", "128 to 10240"]),
    ("cost f", FILES, ["REPORT", "invoke the function", "--size"]),
    ("cost --size 1024", FILES, ["1024", "MEMORY:DURATION"]),
    ("table labls", {**FILES, "thawd.toml": GOOD + "[tables.labels]\n"}, ["labls", "did you mean labels?"]),
    ("package ff", FILES, ["'ff'", "did you mean f?"]),
    ("cost ff", FILES, ["'ff'", "did you mean f?"]),
    ("bench ff --engine cold", FILES, ["'ff'", "did you mean f?"]),
    ("snapshot lint ff", FILES, ["'ff'", "did you mean f?"]),
    ("init flask", {}, ["flask", "fastapi"]),
]


@pytest.mark.in_memory
def test_a_mistake_is_reported_with_its_place_and_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(MISTAKES) >= 40
    problems = []
    for number, (typed, files, wanted) in enumerate(MISTAKES):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text)
        monkeypatch.chdir(folder)
        done = CliRunner().invoke(main, typed.split(" "), prog_name="thawd", env={"COLUMNS": "200"})
        missing = [each for each in wanted if each not in done.output]
        is_traceback = done.exception is not None and not isinstance(done.exception, SystemExit)
        if missing or is_traceback or (done.exit_code == 0 and "note:" not in done.output):
            problems.append(f"thawd {typed}: lacks {missing}; exit {done.exit_code}; {done.exception!r}\n{done.output}")
    assert not problems, "\n".join(problems)
