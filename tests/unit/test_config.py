"""What ``thawd.toml`` may hold, what is made of it, and how mistakes are told."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.privileges import as_nobody
from thawd import config
from thawd.errors import ConfigurationError, Problem
from thawd.resources import Destination, Function, Route

HELLO = '[functions.hello]\nhandler = "hello.handler"\n'


def load(folder: Path, text: str, *, environ: Mapping[str, str] | None = None) -> config.Settings:
    file = folder / "thawd.toml"
    file.write_text(text)
    return config.load(file, environ=environ or {})


def mistakes(folder: Path, text: str, *, environ: Mapping[str, str] | None = None) -> list[Problem]:
    with pytest.raises(ConfigurationError) as refused:
        load(folder, text, environ=environ)
    return refused.value.problems


def only_mistake(folder: Path, text: str, *, environ: Mapping[str, str] | None = None) -> Problem:
    problems = mistakes(folder, text, environ=environ)
    assert len(problems) == 1, problems
    return problems[0]


def test_the_smallest_file_gets_every_default(tmp_path: Path) -> None:
    settings = load(tmp_path, HELLO)

    assert settings.path == tmp_path / "thawd.toml"
    assert settings.server == config.ServerSettings(data=tmp_path / ".thawd")
    assert settings.functions == {"hello": Function(name="hello", handler="hello.handler", code=tmp_path)}
    assert (settings.buckets, settings.tables, settings.routes) == ({}, {}, ())


def test_reading_makes_no_folder(tmp_path: Path) -> None:
    load(tmp_path, HELLO + "[buckets.uploads]\n[tables.labels]\n")

    assert [entry.name for entry in tmp_path.iterdir()] == ["thawd.toml"]


def test_every_mistake_is_told_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = """
[server]
prot = 80
[functions.classify]
handler = "classify"
memory_mb = 96
requirements = "requirments.txt"
on_success = "table:lables"
[buckets.uploads]
notify = [{ function = "clasify" }]
[routes]
"POST /classify" = "nobody"
[tables.labels]
[tabels.more]
"""

    problems = mistakes(tmp_path, text)

    assert [problem.key for problem in problems] == [
        "server.prot",
        "functions.classify.handler",
        "functions.classify.memory_mb",
        "functions.classify.requirements",
        "functions.classify.on_success",
        "buckets.uploads.notify[0].function",
        'routes."POST /classify"',
        "tabels",
    ]
    assert {problem.file for problem in problems} == {str(tmp_path / "thawd.toml")}


def test_a_mistake_tells_what_was_found_and_what_is_allowed(tmp_path: Path) -> None:
    problem = only_mistake(tmp_path, HELLO + "memory_mb = 96")

    assert str(problem) == (
        f"{tmp_path}/thawd.toml: functions.hello.memory_mb: found 96; allowed: a whole number from 128 to 10240"
    )


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('memory_mb = "512"', 'the text "512"'),
        ("memory_mb = true", "true"),
        ("memory_mb = 512.0", "512.0"),
        ("memory_mb = 10241", "10241"),
        ("memory_mb = [512]", "a list of 1"),
        ("memory_mb = { mb = 512 }", "a table"),
        ("memory_mb = 2024-01-01", "the date or time 2024-01-01"),
        ("timeout_s = 0", "0"),
        ("timeout_s = 901", "901"),
        ("idle_timeout_s = nan", "nan"),
        ("idle_timeout_s = inf", "inf"),
        ("idle_timeout_s = true", "true"),
        ('snapshot = "yes"', 'the text "yes"'),
        ("snapshot = 1", "1"),
        ("prime = 1", "the number 1"),
        ('prime = ""', '""'),
        ("prime = []", "an empty list"),
        ("python = 3.11", "the number 3.11"),
        ('python = "3.8"', '"3.8"'),
        ('python = "3.15"', '"3.15"'),
        ('python = ""', '""'),
        ("maximum_retry_attempts = 3", "3"),
        ("maximum_event_age_s = 59", "59"),
        ("reserved_concurrency = -1", "-1"),
        ('on_success = "labels"', '"labels"'),
        ('on_failure = "queue:x"', '"queue:x"'),
    ],
)
def test_a_value_of_the_wrong_kind_or_range_is_refused(tmp_path: Path, line: str, found: str) -> None:
    problem = only_mistake(tmp_path, HELLO + line)

    assert problem.key == "functions.hello." + line.split(" ", maxsplit=1)[0]
    assert problem.found == found


@pytest.mark.parametrize("python", ["3.9", "3.14", "3.10.13", "python3", "/usr/bin/python3", ".venv", "~/venv"])
def test_versions_commands_and_paths_of_interpreters_are_taken(tmp_path: Path, python: str) -> None:
    assert load(tmp_path, HELLO + f'python = "{python}"').functions["hello"].python == python


@pytest.mark.parametrize("handler", ["a.b", "a.b.c", "a/b.c", "pkg/my-module.handler", "größe.lesen"])
def test_handlers_as_on_lambda_are_taken(tmp_path: Path, handler: str) -> None:
    settings = load(tmp_path, f'[functions.f]\nhandler = "{handler}"')

    assert settings.functions["f"].handler == handler


@pytest.mark.parametrize(
    "handler", ["", "handler", ".handler", "a.", "a..b", "a.b-c", "a b.c", "/a.b", "1a.b", "a." + "b" * 127]
)
def test_other_handlers_are_refused(tmp_path: Path, handler: str) -> None:
    assert only_mistake(tmp_path, f'[functions.f]\nhandler = "{handler}"').key == "functions.f.handler"


def test_a_missing_handler_is_told_with_an_example(tmp_path: Path) -> None:
    problem = only_mistake(tmp_path, "[functions.f]\nmemory_mb = 512")

    assert (problem.key, problem.found) == ("functions.f.handler", "nothing")
    assert "classify.handler" in problem.allowed


def test_options_directly_under_functions_are_told(tmp_path: Path) -> None:
    problem = only_mistake(tmp_path, '[functions]\nhandler = "a.b"')

    assert (problem.key, problem.allowed) == ("functions.handler", "a table of options")


@pytest.mark.parametrize("name", ["functions", "buckets", "tables", "routes", "server"])
def test_a_section_that_is_no_table_is_told(tmp_path: Path, name: str) -> None:
    rest = "" if name == "functions" else HELLO

    assert [problem.key for problem in mistakes(tmp_path, f"{name} = 3\n{rest}")] == [name]


@pytest.mark.parametrize(
    ("text", "key", "suggestion"),
    [
        (HELLO + "memroy_mb = 256", "functions.hello.memroy_mb", '"memory_mb" (did you mean that?)'),
        (HELLO + "[sever]\n", "sever", '"server" (did you mean that?)'),
        (HELLO + "on_failure = 'bucket:faild'\n[buckets.failed]", "functions.hello.on_failure", '"bucket:failed" (did'),
        (HELLO + "[routes]\n'GET /x' = 'Hello'", 'routes."GET /x"', '"hello" (did you mean that?)'),
        (HELLO + "[routes]\n'get /x' = 'hello'", 'routes."get /x"', '"GET" (did you mean that?)'),
        (HELLO + "[routes]\n'GET /x' = 'zzz'", 'routes."GET /x"', "one of the functions of this file: hello"),
        (
            HELLO + "[buckets.inn]\nnotify = [{ function = 'hello', events = ['s3:ObjectCreated:Putt'] }]",
            "buckets.inn.notify[0].events[0]",
            '"s3:ObjectCreated:Put" (did you mean that?)',
        ),
    ],
)  # fmt: skip
def test_a_misspelt_name_is_told_with_the_closest_one(tmp_path: Path, text: str, key: str, suggestion: str) -> None:
    problem = only_mistake(tmp_path, text)

    assert problem.key == key
    assert problem.allowed.startswith(suggestion)


def test_a_destination_without_any_such_table_is_told(tmp_path: Path) -> None:
    problem = only_mistake(tmp_path, HELLO + "on_success = 'table:labels'")

    assert problem.allowed == "nothing, as there are no tables of this file"


TWO = "[functions.one]\nhandler = 'app.handler'\n[functions.two]\nhandler = 'app.handler'\n"
SQS = "arn:aws:sqs:eu-west-1:123456789012:done"


@pytest.mark.parametrize(
    ("text", "kind", "name"),
    [
        ("function:one", "function", "one"),
        ("function:one:live", "function", "one:live"),
        ("function:one:$LATEST", "function", "one:$LATEST"),
        ("arn:aws:lambda:us-east-1:000000000000:function:made-by-the-api:3", "function", "made-by-the-api:3"),
        ("https://example.com/hook?token=1", "http", "https://example.com/hook?token=1"),
        ("http://127.0.0.1:8000", "http", "http://127.0.0.1:8000"),
        ("http://[::1]:8000/", "http", "http://[::1]:8000/"),
        ("http://localhost/", "http", "http://localhost/"),
        (SQS, "sqs", SQS),
        ("arn:aws-cn:sns:cn-north-1:123456789012:t", "sns", "arn:aws-cn:sns:cn-north-1:123456789012:t"),
        (
            "arn:aws:events:us-east-1:123456789012:event-bus/b",
            "events",
            "arn:aws:events:us-east-1:123456789012:event-bus/b",
        ),
        ("arn:aws:s3:::failed", "s3", "failed"),
        ("arn:aws:dynamodb:us-east-1:000000000000:table/t", "table", "t"),
    ],
)
def test_a_destination_is_read_by_its_form(tmp_path: Path, text: str, kind: str, name: str) -> None:
    settings = load(tmp_path, TWO + f"on_failure = '{text}'\n[tables.t]")

    assert settings.functions["two"].on_failure == Destination(kind, name)


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("function:tow", '"function:two" (did you mean that?)'),
        ("function:own", "another function: a function cannot be its own destination"),
        ("function:own:live", "another function: a function cannot be its own destination"),
        ("arn:aws:lambda:us-east-1:000000000000:function:own", "another function"),
        ("http://example.com/hook", "https:// for other machines than this one, or webhooks_plain_http"),
        ("https://me:secret@example.com/", "a URL without; requests are signed"),
        ("https:///hook", "a URL with a host name"),
        ("https://example.com:99999/", "a URL with a host name"),
        ("arn:aws:sqs:us-east-1:123456789012:q.fifo", "standard queues and topics, as on Lambda"),
        ("arn:aws:lambda:us-east-1:123456789012:function:one", '"table:NAME", "bucket:NAME"'),
        ("arn:aws:kinesis:us-east-1:123456789012:stream/s", '"table:NAME", "bucket:NAME"'),
        ("ftp://example.com", '"table:NAME", "bucket:NAME"'),
        ("function:a b", '"table:NAME", "bucket:NAME"'),
        ("somewhere", '"table:NAME", "bucket:NAME"'),
    ],
)
def test_a_destination_that_cannot_work_is_told(tmp_path: Path, text: str, allowed: str) -> None:
    problem = only_mistake(tmp_path, TWO + f"[functions.own]\nhandler = 'app.handler'\non_success = '{text}'")

    assert problem.key == "functions.own.on_success"
    assert problem.allowed.startswith(allowed)
    assert "secret" not in problem.found


@pytest.mark.parametrize(
    ("own", "other", "notify"),
    [
        ("bucket:there", "", '{ function = "own" }'),
        ("bucket:there", "", '{ function = "own", suffix = ".json" }'),
        ("arn:aws:s3:::there", "", '{ function = "own", prefix = "aws/lambda/" }'),
        ("bucket:there", "function:own", '{ function = "two" }'),
    ],
)
def test_a_bucket_that_leads_back_to_its_function_is_told(tmp_path: Path, own: str, other: str, notify: str) -> None:
    problem = only_mistake(tmp_path, circle(own, other, notify))
    assert problem.key == "functions.own.on_success"
    assert problem.allowed == 'a bucket or keys whose notifications do not lead back to "own"; it would run for ever'


@pytest.mark.parametrize(
    ("own", "other", "notify"),
    [
        ("bucket:there", "", '{ function = "own", suffix = ".png" }'),
        ("bucket:there", "", '{ function = "own", prefix = "in/" }'),
        ("bucket:there", "", '{ function = "own", events = ["s3:ObjectRemoved:*"] }'),
        ("arn:aws:s3:::there", "", '{ function = "own", suffix = ".json" }'),
        ("bucket:there", "", '{ function = "two" }'),
    ],
)
def test_a_bucket_that_does_not_lead_back_is_a_destination(tmp_path: Path, own: str, other: str, notify: str) -> None:
    assert load(tmp_path, circle(own, other, notify)).functions["own"].on_success is not None


def circle(own: str, other: str, notify: str) -> str:
    """Functions ``own`` and ``two`` with these destinations, and a bucket ``there``."""
    told = f"on_success = '{other}'\n" if other else ""
    return f"""
[functions.two]
handler = 'app.handler'
{told}
[functions.own]
handler = 'app.handler'
on_success = '{own}'
[buckets.there]
notify = [{notify}]
"""


def test_a_dead_letter_queue_is_a_standard_queue_or_topic(tmp_path: Path) -> None:
    settings = load(tmp_path, HELLO + f"dead_letter = '{SQS}'")

    assert settings.functions["hello"].dead_letter == Destination("sqs", SQS)
    problem = only_mistake(tmp_path, HELLO + "dead_letter = 'arn:aws:s3:::failed'")
    assert problem.allowed == "the ARN of an SQS queue or an SNS topic"
    problem = only_mistake(tmp_path, HELLO + f"dead_letter = '{SQS}.fifo'")
    assert problem.allowed == "standard queues and topics, as on Lambda"


def test_an_address_of_another_machine_without_encryption_is_taken_when_told_so(tmp_path: Path) -> None:
    settings = load(
        tmp_path, "[server]\nwebhooks_plain_http = true\n" + HELLO + "on_success = 'http://example.com/hook'"
    )

    assert str(settings.functions["hello"].on_success) == "http://example.com/..."


def test_the_secret_of_webhooks_comes_from_the_environment_and_is_not_shown(tmp_path: Path) -> None:
    settings = load(tmp_path, HELLO, environ={"THAWD_WEBHOOK_SECRET": "whsec_c2VjcmV0"})

    assert settings.server.webhook_secret == "whsec_c2VjcmV0"
    assert "whsec" not in repr(settings)


@pytest.mark.parametrize("section", ["functions", "buckets", "tables"])
@pytest.mark.parametrize("name", ["a b", "ü" * 5, "x" * 300, "a/b"])
def test_names_outside_the_character_sets_are_refused(tmp_path: Path, section: str, name: str) -> None:
    handler = "handler = 'a.b'" if section == "functions" else ""
    text = f'[{section}."{name}"]\n{handler}\n' + (HELLO if section != "functions" else "")

    first = mistakes(tmp_path, text)[0]

    assert first.key == f'{section}."{name}"' or name == "x" * 300
    assert first.found.startswith('the name "')


@pytest.mark.parametrize("name", ["Uploads", "ab", "a..b", "-ab", "ab-", "192.168.0.1", "a_b"])
def test_bucket_names_that_s3_refuses_are_refused(tmp_path: Path, name: str) -> None:
    assert only_mistake(tmp_path, HELLO + f'[buckets."{name}"]').found == f'the name "{name}"'


def test_a_table_name_too_long_for_a_file_name_wants_a_path(tmp_path: Path) -> None:
    name = "t" * 250

    assert only_mistake(tmp_path, HELLO + f"[tables.{name}]").found == "a file name of 253 bytes"
    assert load(tmp_path, HELLO + f"[tables.{name}]\npath = 'short.db'").tables[name].path == tmp_path / "short.db"


@pytest.mark.parametrize(
    "name", ["AWS_LAMBDA_FUNCTION_NAME", "AWS_REGION", "_HANDLER", "LAMBDA_TASK_ROOT", "THAWD_KEY"]
)
def test_reserved_environment_variables_are_refused(tmp_path: Path, name: str) -> None:
    problem = only_mistake(tmp_path, HELLO + f"environment = {{ {name} = 'x' }}")

    assert (problem.key, problem.found) == (f"functions.hello.environment.{name}", "a reserved name")


def test_an_environment_of_more_than_4096_bytes_is_refused(tmp_path: Path) -> None:
    assert load(tmp_path, HELLO + f"environment = {{ AB = '{'x' * 4094}' }}")
    assert only_mistake(tmp_path, HELLO + f"environment = {{ AB = '{'x' * 4095}' }}").found == "4097 bytes"


def test_values_of_secrets_are_never_shown(tmp_path: Path) -> None:
    text = "[server]\nkey = 'hunter2'\n" + HELLO + "environment = { TOKEN = 31337, 1X = 'hunter3' }"

    told = "\n".join(map(str, mistakes(tmp_path, text, environ={"THAWD_KEY": "hunter 4"})))

    assert not re.search("hunter|31337", told)
    assert "server.key" in told and "environment.TOKEN" in told and "THAWD_KEY" in told


def test_provisioned_environments_must_fit(tmp_path: Path) -> None:
    text = "[server]\nmax_environments = 3\nmemory_mb = 256\n" + HELLO
    text += "reserved_concurrency = 1\nprovisioned_concurrency = 4\nmemory_mb = 512"

    problems = mistakes(tmp_path, text)

    assert [(problem.key, problem.allowed) for problem in problems] == [
        ("server.max_environments", "at least 4, which are reserved, provisioned or left for other functions"),
        ("functions.hello.provisioned_concurrency", "at most reserved_concurrency, which is 1"),
        ("functions.hello.memory_mb", "at most 256, which is server.memory_mb, the budget of all environments"),
    ]


# Priming events.


def test_a_priming_event_is_a_table_or_a_file_and_becomes_json(tmp_path: Path) -> None:
    (tmp_path / "event.json").write_text('[1, "ü"]')
    text = HELLO + 'prime = { image = "a.png", sizes = [1, 2.5], deep = { x = true } }\n'

    assert json.loads(load(tmp_path, text).functions["hello"].prime or b"") == {
        "image": "a.png",
        "sizes": [1, 2.5],
        "deep": {"x": True},
    }
    assert load(tmp_path, HELLO + 'prime = "event.json"').functions["hello"].prime == '[1, "ü"]'.encode()
    assert load(tmp_path, HELLO).functions["hello"].prime is None


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (None, "nothing at"),
        (b"{", "which is not JSON"),
        (b'"\xff"', "which is not JSON"),
        (b"[" * 100_000, "which is not JSON"),
        (b'"' + b"x" * 6_291_556 + b'"', "6291558 bytes"),
    ],
)
def test_a_file_that_is_no_event_is_told(tmp_path: Path, content: bytes | None, found: str) -> None:
    if content is not None:
        (tmp_path / "event.json").write_bytes(content)

    problem = only_mistake(tmp_path, HELLO + 'prime = "event.json"')

    assert problem.key == "functions.hello.prime"
    assert found in problem.found


@pytest.mark.parametrize("value", ["{ at = 2024-01-01 }", "{ x = nan }"])
def test_a_table_that_is_no_json_is_told(tmp_path: Path, value: str) -> None:
    problem = only_mistake(tmp_path, HELLO + f"prime = {value}")

    assert (problem.key, problem.found[:26]) == ("functions.hello.prime", "a table that is not JSON (")


def test_a_priming_event_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "event.json")

    problem = only_mistake(tmp_path, HELLO + 'prime = "event.json"')

    assert problem.found == f"something else at {tmp_path}/event.json"


# The server's options, and what the environment overrides.


@pytest.mark.parametrize("value", ["on", "AUTO", ""])
def test_snapshots_are_auto_or_off(tmp_path: Path, value: str) -> None:
    problem = only_mistake(tmp_path, f"[server]\nsnapshots = '{value}'\n" + HELLO)

    assert (problem.key, problem.allowed) == ("server.snapshots", '"auto" or "off"')
    assert load(tmp_path, HELLO, environ={"THAWD_SNAPSHOTS": "off"}).server.snapshots == "off"


def test_the_environment_overrides_the_file(tmp_path: Path) -> None:
    environ = {
        "THAWD_HOST": "0.0.0.0",
        "THAWD_PORT": "0",
        "THAWD_KEY": "x" * 20,
        "THAWD_DATA": "~/data",
        "HOME": "/home/me",
    }

    server = load(tmp_path, "[server]\nport = 1\nkey = 'yyyyyyyy'\n" + HELLO, environ=environ).server

    assert (server.host, server.port, server.key, server.data) == ("0.0.0.0", 0, "x" * 20, Path("/home/me/data"))


def test_an_empty_variable_counts_as_unset(tmp_path: Path) -> None:
    server = load(tmp_path, HELLO, environ={"THAWD_PORT": "", "THAWD_KEY": "", "THAWD_HOST": ""}).server

    assert (server.host, server.port, server.key) == ("127.0.0.1", 8350, None)


@pytest.mark.parametrize("port", ["80a", "-1", "65536", "8.5", "٨٠", "9" * 40])
def test_a_bad_variable_is_told_by_its_name(tmp_path: Path, port: str) -> None:
    problem = only_mistake(tmp_path, HELLO, environ={"THAWD_PORT": port})

    assert (problem.file, problem.key) == ("environment", "THAWD_PORT")
    assert problem.allowed == "a whole number from 0 to 65535"


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "gpu-box.lan"])
def test_a_host_that_others_can_reach_needs_a_key(tmp_path: Path, host: str) -> None:
    problem = only_mistake(tmp_path, f"[server]\nhost = '{host}'\n" + HELLO)

    assert (problem.key, problem.found) == ("server.key", f"no key, though other machines can reach {host}")
    assert load(tmp_path, f"[server]\nhost = '{host}'\n" + HELLO, environ={"THAWD_KEY": "k" * 8})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_a_loopback_host_needs_no_key(tmp_path: Path, host: str) -> None:
    assert load(tmp_path, f"[server]\nhost = '{host}'\n" + HELLO).server.key is None


@pytest.mark.parametrize("host", ["", "http://x", "256.1.1.1", "a b", "-x"])
def test_what_is_no_host_is_refused(tmp_path: Path, host: str) -> None:
    assert only_mistake(tmp_path, f"[server]\nhost = '{host}'\n" + HELLO).key == "server.host"


def test_the_process_environment_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THAWD_PORT", "4711")
    (tmp_path / "thawd.toml").write_text(HELLO)

    assert config.load(tmp_path / "thawd.toml").server.port == 4711
    assert config.process_environment()["THAWD_PORT"] == "4711"


# Routes.


@pytest.mark.parametrize("key", ["$default", "GET /", "ANY /x", "GET /a/{id}", "GET /a/{rest+}", "DELETE /{x}/b-c/~d"])
def test_route_keys_of_api_gateway_are_taken(tmp_path: Path, key: str) -> None:
    assert load(tmp_path, HELLO + f"[routes]\n'{key}' = 'hello'").routes == (Route(key=key, function="hello"),)


@pytest.mark.parametrize(
    ("key", "found"),
    [
        ("/x", 'the route "/x"'),
        ("$defaul", 'the route "$defaul"'),
        ("FETCH /x", 'the method "FETCH"'),
        ("GET x", 'the path "x"'),
        ("GET  /x", 'the path " /x"'),
        ("GET /x/", "an empty path segment"),
        ("GET //x", "an empty path segment"),
        ("GET /{a+}/b", "{a+} before the end"),
        ("GET /{}", 'the path segment "{}"'),
        ("GET /a{b}", 'the path segment "a{b}"'),
        ("GET /a b", 'the path segment "a b"'),
        ("GET /a?b", 'the path segment "a?b"'),
        ("GET /{a}/{a}", "the parameter {a} twice"),
        ("GET /_thawd/x", "a path under /_thawd"),
        ("POST /2015-03-31/functions", "a path under /2015-03-31"),
        ("GET /uploads/{key+}", "a path under /uploads"),
    ],
)
def test_other_route_keys_are_refused(tmp_path: Path, key: str, found: str) -> None:
    problem = only_mistake(tmp_path, HELLO + f"[buckets.uploads]\n[routes]\n'{key}' = 'hello'")

    assert (problem.key, problem.found) == (f'routes."{key}"', found)


def test_routes_that_differ_in_parameter_names_only_are_refused(tmp_path: Path) -> None:
    routes = "[routes]\n'GET /a/{id}' = 'hello'\n'GET /a/{id+}' = 'hello'\n'ANY /a/{id}' = 'hello'\n"
    load(tmp_path, HELLO + routes)

    problem = only_mistake(tmp_path, HELLO + routes + "'GET /a/{name}' = 'hello'")

    assert problem.found == 'the same requests as "GET /a/{id}"'


# Notifications.


def test_a_notification_is_told_by_its_place_in_the_list(tmp_path: Path) -> None:
    notify = (
        "[{ function = 'hello' }, { suffix = '.png' }, 3, { function = 'hello', events = [] }, { function = 'hello' }]"
    )

    problems = mistakes(tmp_path, HELLO + f"[buckets.uploads]\nnotify = {notify}")

    assert [(problem.key.removeprefix("buckets.uploads.notify"), problem.found) for problem in problems] == [
        ("[1].function", "nothing"),
        ("[2]", "3"),
        ("[3]", "the same notification again"),
        ("[3].events", "an empty list"),
        ("[4]", "the same notification again"),
    ]


def test_a_prefix_that_no_key_can_have_is_refused(tmp_path: Path) -> None:
    text = HELLO + "[buckets.uploads]\nnotify = [{ function = 'hello', prefix = '/cats' }]"

    assert only_mistake(tmp_path, text).allowed == "a text; keys do not begin with a slash"


# Files and folders.


@pytest.mark.parametrize(
    ("text", "key", "found"),
    [
        ("[functions.f]\nhandler='a.b'\ncode='nope'", "functions.f.code", "nothing at {}/nope"),
        ("[functions.f]\nhandler='a.b'\ncode='file'", "functions.f.code", "a file at {}/file"),
        (HELLO + "requirements='nope'", "functions.hello.requirements", "nothing at {}/nope"),
        (HELLO + "requirements='sub'", "functions.hello.requirements", "a folder at {}/sub"),
        (HELLO + "[buckets.uploads]\npath='file'", "buckets.uploads.path", "a file at {}/file"),
        (HELLO + "[tables.labels]\npath='sub'", "tables.labels.path", "a folder at {}/sub"),
        ("[server]\ndata='file'\n" + HELLO, "server.data", "a file at {}/file"),
        ("[server]\ndata='.'\n" + HELLO, "server.data", "a folder that holds the code of hello"),
        (HELLO + "requirements='a\\u0000b'", "functions.hello.requirements", ""),
        (HELLO + "code=''", "functions.hello.code", '""'),
    ],
)
def test_paths_that_are_not_what_they_must_be_are_told(tmp_path: Path, text: str, key: str, found: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "sub").mkdir()

    problem = only_mistake(tmp_path, text.replace("'a\\u0000b'", '"a\\u0000b"'))

    assert problem.key == key
    assert problem.found == found.format(tmp_path) or not found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[buckets.one]\npath='.'", "a folder that holds this configuration and the data folder and the code"),
        ("[buckets.one]\npath='.thawd'", "a folder that holds the data folder"),
        ("[buckets.one]\npath='link'", "a folder that holds the code of function other"),
        ("[tables.t]\npath='one/t.db'\n[buckets.one]", "a folder that holds the file of table t"),
        ("[buckets.one]\n[buckets.two]\npath='one'", "{0}/one, which overlaps {0}/one of bucket one"),
        ("[buckets.one]\n[buckets.two]\npath='one/two'", "{0}/one/two, which overlaps {0}/one of bucket one"),
        ("[buckets.one]\npath='a/b'\n[buckets.two]\npath='a'", "{0}/a, which overlaps {0}/a/b of bucket one"),
        ("[buckets.one]\npath='src/../src'", "a folder that holds the code of function other"),
    ],
)
def test_folders_that_may_not_meet_are_told(tmp_path: Path, text: str, found: str) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "link").symlink_to("src")
    functions = HELLO + "[functions.other]\nhandler='a.b'\ncode='src'\n"

    assert only_mistake(tmp_path, functions + text).found.startswith(found.format(tmp_path))


def test_buckets_beside_each_other_in_the_code_folder_are_fine(tmp_path: Path) -> None:
    assert len(load(tmp_path, HELLO + "[buckets.one]\n[buckets.one-more]\n[buckets.two]\npath='a/b'").buckets) == 3


def test_two_tables_may_not_share_a_file(tmp_path: Path) -> None:
    problem = only_mistake(tmp_path, HELLO + "[tables.a]\n[tables.b]\npath='.thawd/tables/a.db'")

    assert (problem.key, problem.found) == ("tables.b.path", "the file of table a")


def test_what_a_server_writes_and_its_configuration_are_no_code(tmp_path: Path) -> None:
    settings = load(tmp_path, HELLO + "[buckets.uploads]\n[tables.t]\npath='t.db'")

    names = {path.name for path in settings.not_code()}

    assert names == {"thawd.toml", ".thawd", "uploads", "t.db", "t.db-wal", "t.db-shm", "t.db-journal"}


# Files that are no configuration at all.


def test_an_empty_file_tells_what_the_smallest_one_holds(tmp_path: Path) -> None:
    problem = only_mistake(tmp_path, "")

    assert (problem.key, problem.found) == ("", "nothing")
    assert '[functions.hello] with handler = "hello.handler"' in problem.allowed


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("[functions.f]\nhandler = \n", "line 2, column 11"),
        ("[functions.f]\nhandler = 'a.b'\nhandler = 'c.d'\n", "line 3, column"),
        ("[functions.f", "its end (line 1)"),
        ('a = """\n\nx', "its end (line 3)"),
        ("a = 2024-13-45\n", "line 1, column"),
    ],
)
def test_broken_toml_is_told_with_line_and_column(tmp_path: Path, text: str, where: str) -> None:
    assert only_mistake(tmp_path, text).found.startswith(f"broken TOML at {where}")


def test_a_number_too_long_to_read_is_told(tmp_path: Path) -> None:
    assert only_mistake(tmp_path, "port = " + "9" * 5000).found.startswith("broken TOML: Exceeds the limit")


def test_files_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b"a = 1\n# gr\xf6\xdfe\n")
    deep = tmp_path / "deep.toml"
    deep.write_text("a = " + "[" * 100_000)

    def found(path: Path) -> str:
        with pytest.raises(ConfigurationError) as refused:
            config.load(path, environ={})
        [problem] = refused.value.problems
        assert problem.file == str(path)
        return problem.found

    assert found(tmp_path / "thawd.toml") == "no such file"
    assert found(tmp_path) == "a folder"
    assert found(Path("/dev/null")) == "a device, pipe or socket"
    assert found(latin) == "a byte that is not UTF-8 on line 2 (0xf6)"
    assert found(deep) == "lists or tables nested hundreds deep"
    assert found(tmp_path / "thawd.toml" / "x") == "no such file"
    assert found(tmp_path / ("x" * 300)) == "a file that cannot be read (File name too long)"


def test_a_file_that_may_not_be_read_is_told(tmp_path: Path) -> None:
    file = tmp_path / "thawd.toml"
    file.write_text(HELLO)
    file.chmod(0)

    with as_nobody(), pytest.raises(ConfigurationError, match=r"cannot be read \(Permission denied\)"):
        config.load(file, environ={})


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "thawd.toml").write_bytes(b"\xef\xbb\xbf" + HELLO.encode())

    assert config.load(tmp_path / "thawd.toml", environ={}).functions
