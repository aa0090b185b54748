"""`thawd.config.cross_checks`: mistakes that show only when several tables are compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.config_files import HELLO, load, mistakes
from thawd import config

NODE = '[functions.hello]\nhandler = "index.handler"\nruntime = "nodejs22.x"\n'
OPEN = "[server]\nhost = '0.0.0.0'\nkey = '" + "k" * 32 + "'\n"
SCHEDULE = "[[functions.hello.provisioned_schedule]]\nschedule = 'cron(0 8 * * ? *)'\ncount = 4\n"
QUEUE = "notifications = 'https://sqs.us-east-1.amazonaws.com/123456789012/%s'\n"
REMOTE = "[buckets.%s]\nurl = 's3://%s-pictures'\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            HELLO + 'application_log_level = "DEBUG"\nsystem_log_level = "WARN"\n',
            [
                ("functions.hello.application_log_level", '"DEBUG"', 'log_format = "JSON"'),
                ("functions.hello.system_log_level", '"WARN"', 'log_format = "JSON"'),
            ],
        ),
        (
            HELLO
            + 'keep_alive = "histogram"\nenvironment = { TMPDIR = "/x" }\ntenants = true\n'
            + '[schedules.s]\nfunction = "hello"\nschedule = "rate(1 hour)"\n'
            + '[buckets.bbb]\nnotify = [{ function = "hello" }]\n'
            + '[[functions.hello.sources]]\nsqs = "arn:aws:sqs:us-east-1:000000000000:q"\n',
            [
                ("functions.hello.keep_alive", '"histogram" beside tenants', '"fixed"'),
                ("functions.hello.environment.TMPDIR", "TMPDIR", "no TMPDIR"),
                *(
                    ("functions.hello.tenants", source, "name a tenant")
                    for source in ("bucket bbb", "schedule s", ":q")
                ),
            ],
        ),
        (
            HELLO + "reserved_concurrency = 3\n" + SCHEDULE,
            [("functions.hello.provisioned_schedule[0].count", "4", "reserved_concurrency, which is 3")],
        ),
        (
            HELLO + "reserved_concurrency = 3\nprovisioned_concurrency = 4\n",
            [("functions.hello.provisioned_concurrency", "4", "reserved_concurrency, which is 3")],
        ),
        (
            '[functions.hello]\nhandler = "index"\nruntime = "python3.11"\n',
            [("functions.hello.handler", '"index"', "handler")],
        ),
        (
            HELLO + 'runtime = "python3.11"\npython = "/usr/bin/python3"\n',
            [("functions.hello.python", '"/usr/bin/python3"', "[runtimes]")],
        ),
        (
            NODE + 'requirements = "requirements.txt"\npython = "/usr/bin/python3"\nprime = {}\nbatch = { size = 2 }\n',
            [
                (f"functions.hello.{option}", option, '"nodejs22.x"')
                for option in ("requirements", "python", "prime", "batch")
            ],
        ),
        (
            HELLO
            + "batch = { size = 2 }\n[functions.hello.url]\nauth_type = 'NONE'\ninvoke_mode = 'RESPONSE_STREAM'\n",
            [("functions.hello.url.invoke_mode", '"RESPONSE_STREAM" for a function with batch', '"BUFFERED"')],
        ),
        (HELLO + "[buckets.2015-03-31]\n", [("buckets.2015-03-31", "Lambda", "other name")]),
        (
            HELLO + REMOTE % ("one", "a") + QUEUE % "q" + REMOTE % ("two", "b") + QUEUE % "q",
            [("buckets.two.notifications", "bucket one", "queue")],
        ),
        (
            HELLO + OPEN + "[functions.hello.url]\nauth_type = 'AWS_IAM'\n",
            [("functions.hello.url.auth_type", "0.0.0.0", "server.access_keys")],
        ),
        (
            HELLO + "memory_mb = 129\n[server]\nmemory_mb = 128\n",
            [("functions.hello.memory_mb", "129", "128, which is server.memory_mb")],
        ),
        (
            HELLO + "reserved_concurrency = 3\n[functions.other]\nhandler = 'a.b'\n[server]\nmax_environments = 3\n",
            [("server.max_environments", "3", "at least 4")],
        ),
        (
            HELLO + "[buckets.pictures]\n[routes]\n'GET nowhere' = 'hello'\n'GET /pictures/{id}' = 'hello'\n"
            "'$default' = 'helo'\n'GET /items/{id}' = 'hello'\n'GET /items/{name}' = 'hello'\n",
            [
                ('routes."GET nowhere"', '"nowhere"', '"/nowhere"'),
                ('routes."GET /pictures/{id}"', "/pictures", "bucket pictures"),
                ('routes."$default"', '"helo"', '"hello" (did you mean that?)'),
                ('routes."GET /items/{name}"', '"GET /items/{id}"', "one route"),
            ],
        ),
    ],
)
def test_what_does_not_go_together_is_told_where_it_stands(
    tmp_path: Path, text: str, expected: list[tuple[str, str, str]]
) -> None:
    (tmp_path / "requirements.txt").touch()
    problems = mistakes(tmp_path, text)
    assert [problem.key for problem in problems] == [key for key, _, _ in expected]
    for problem, (_, found, allowed) in zip(problems, expected, strict=True):
        assert found in problem.found
        assert allowed in problem.allowed


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
        HELLO + OPEN + "[functions.hello.url]\nauth_type = 'NONE'\n",
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
        (function("a") + function("b"), 1),  # the functions take turns
        (function("a", "provisioned_concurrency = 3") + function("b"), 3),
        (function("a", "provisioned_concurrency = 3") + function("b", "provisioned_concurrency = 2"), 5),
        (function("a", "reserved_concurrency = 4"), 4),
        (function("a", "reserved_concurrency = 4") + function("b"), 5),
        (function("a", "reserved_concurrency = 0") + function("b"), 1),  # the first never runs
        (function("a", "reserved_concurrency = 4", "provisioned_concurrency = 2") + function("b"), 5),
    ],
)
def test_room_is_needed_for_what_is_reserved_and_provisioned_and_one_for_the_others(
    tmp_path: Path, text: str, environments: int
) -> None:
    assert config.required_environments(load(tmp_path, text)) == environments
    load(tmp_path, text + f"[server]\nmax_environments = {environments}\n")
