"""Claims about `thawd.config.references`: mistakes that show only when tables are looked at together, each in full."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.test_config import HELLO, load, mistakes
from thawd import config

NODE = '[functions.hello]\nhandler = "index.handler"\nruntime = "nodejs22.x"\n'
SCHEDULE = "[[functions.hello.provisioned_schedule]]\nschedule = 'cron(0 8 * * ? *)'\ncount = 4\n"
QUEUE = "notifications = 'https://sqs.us-east-1.amazonaws.com/123456789012/%s'\n"
REMOTE = "[buckets.%s]\nurl = 's3://%s-pictures'\n"


def told(folder: Path, text: str) -> list[str]:
    (folder / "requirements.txt").touch()
    return [f"{problem.key}: {problem.found}; {problem.allowed}" for problem in mistakes(folder, text)]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (
            HELLO + 'application_log_level = "DEBUG"\nsystem_log_level = "WARN"\n',
            [
                'functions.hello.application_log_level: "DEBUG"; no level unless log_format = "JSON"',
                'functions.hello.system_log_level: "WARN"; no level unless log_format = "JSON"',
            ],
        ),
        (
            HELLO + "reserved_concurrency = 3\n" + SCHEDULE,
            ["functions.hello.provisioned_schedule[0].count: 4; at most reserved_concurrency, which is 3"],
        ),
        (
            HELLO + "reserved_concurrency = 3\nprovisioned_concurrency = 4\n",
            ["functions.hello.provisioned_concurrency: 4; at most reserved_concurrency, which is 3"],
        ),
        (
            HELLO + 'runtime = "python3.11"\npython = "/usr/bin/python3"\n',
            [
                'functions.hello.python: "/usr/bin/python3" beside a runtime; one of python and runtime; '
                "the interpreter of a runtime is set in [runtimes]"
            ],
        ),
        (
            NODE + 'requirements = "requirements.txt"\npython = "/usr/bin/python3"\nprime = {}\n',
            [
                "functions.hello.requirements: requirements; nothing: it is for Python functions, and the runtime is "
                '"nodejs22.x"',
                'functions.hello.python: python; nothing: it is for Python functions, and the runtime is "nodejs22.x"',
                'functions.hello.prime: prime; nothing: it is for Python functions, and the runtime is "nodejs22.x"',
            ],
        ),
        (
            HELLO + "[buckets.2015-03-31]\n",
            ["buckets.2015-03-31: a name that is a path of Lambda's API; any other name"],
        ),
        (
            HELLO + REMOTE % ("one", "a") + QUEUE % "q" + REMOTE % ("two", "b") + QUEUE % "q",
            ["buckets.two.notifications: the queue of bucket one; a queue of its own for each bucket"],
        ),
        (
            HELLO
            + "[server]\nhost = '0.0.0.0'\nkey = '"
            + "k" * 32
            + "'\n[functions.hello.url]\nauth_type = 'AWS_IAM'\n",
            [
                'functions.hello.url.auth_type: "AWS_IAM" without server.access_keys, though other machines can reach '
                "0.0.0.0; AWS_IAM with keys of your own in server.access_keys"
            ],
        ),
        (
            HELLO + "memory_mb = 129\n[server]\nmemory_mb = 128\n",
            ["functions.hello.memory_mb: 129; at most 128, which is server.memory_mb, the budget of all environments"],
        ),
        (
            HELLO + "reserved_concurrency = 3\n[functions.other]\nhandler = 'a.b'\n[server]\nmax_environments = 3\n",
            [
                "server.max_environments: 3; "
                "at least 4, as so many are reserved, provisioned or left for other functions"
            ],
        ),
        (
            HELLO + "[buckets.pictures]\n[routes]\n'GET nowhere' = 'hello'\n'GET /pictures/{id}' = 'hello'\n"
            "'$default' = 'helo'\n'GET /items/{id}' = 'hello'\n'GET /items/{name}' = 'hello'\n",
            [
                'routes."GET nowhere": the path "nowhere"; a path that begins with a slash, such as "/nowhere"',
                'routes."GET /pictures/{id}": a path under /pictures; first segments other than names of buckets: '
                "/pictures/KEY is an object of bucket pictures",
                'routes."$default": "helo"; "hello" (did you mean that?)',
                'routes."GET /items/{name}": the same requests as "GET /items/{id}"; one route for the same requests, '
                "whatever its parameters are called",
            ],
        ),
    ],
)
def test_what_does_not_go_together_is_told_where_it_stands(tmp_path: Path, text: str, lines: list[str]) -> None:
    assert told(tmp_path, text) == lines


@pytest.mark.parametrize(
    "text",
    [
        HELLO + 'log_format = "JSON"\napplication_log_level = "DEBUG"\nsystem_log_level = "WARN"\n',
        HELLO + "reserved_concurrency = 4\nprovisioned_concurrency = 4\n",
        HELLO + "reserved_concurrency = 4\n" + SCHEDULE,
        HELLO + 'runtime = "python3.11"\n',
        HELLO + 'python = "/usr/bin/python3"\n',
        NODE,
        HELLO + "[buckets.ours]\n[buckets.theirs]\nurl = 's3://theirs-pictures'\n",
        HELLO + REMOTE % ("one", "a") + QUEUE % "q" + REMOTE % ("two", "b") + QUEUE % "r",
        HELLO + "[functions.hello.url]\nauth_type = 'AWS_IAM'\n",
        HELLO + "[server]\nhost = '0.0.0.0'\nkey = '" + "k" * 32 + "'\n[functions.hello.url]\nauth_type = 'NONE'\n",
        HELLO + "memory_mb = 256\n[server]\nmemory_mb = 256\n",
        HELLO + "[routes]\n'GET /' = 'hello'\n'$default' = 'hello'\n",
    ],
)
def test_what_just_goes_together_is_accepted(tmp_path: Path, text: str) -> None:
    load(tmp_path, text)


def function(name: str, *lines: str) -> str:
    return "\n".join([f"[functions.{name}]", "handler = 'a.b'", *lines, ""])


@pytest.mark.parametrize(
    ("text", "environments"),
    [
        (function("a"), 1),
        (function("a") + function("b"), 1),  # they take turns
        (function("a", "provisioned_concurrency = 3") + function("b"), 3),
        (function("a", "provisioned_concurrency = 3") + function("b", "provisioned_concurrency = 2"), 5),
        (function("a", "reserved_concurrency = 4"), 4),
        (function("a", "reserved_concurrency = 4") + function("b"), 5),
        (function("a", "reserved_concurrency = 0") + function("b"), 1),  # it never runs
        (function("a", "reserved_concurrency = 4", "provisioned_concurrency = 2") + function("b"), 5),
    ],
)
def test_room_is_needed_for_what_is_reserved_and_provisioned_and_one_for_the_others(
    tmp_path: Path, text: str, environments: int
) -> None:
    assert config.required_environments(load(tmp_path, text)) == environments
    load(tmp_path, text + f"[server]\nmax_environments = {environments}\n")
