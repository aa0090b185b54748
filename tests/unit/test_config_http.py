"""The tables of thawd.toml that say how functions are called over HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.config_files import HELLO, load, mistakes, only_mistake
from thawd.resources import Cors, FunctionUrl, HttpApi, Route


def test_a_route_is_a_function_or_a_table_that_says_more(tmp_path: Path) -> None:
    text = HELLO + "[routes]\n'GET /a' = 'hello'\n'GET /b' = { function = 'hello', payload_format = '1.0' }\n"
    assert load(tmp_path, text).routes == (
        Route(key="GET /a", function="hello", payload_format="2.0"),
        Route(key="GET /b", function="hello", payload_format="1.0"),
    )


@pytest.mark.parametrize(
    ("route", "key"),
    [
        ("7", 'routes."GET /a"'),
        ("'helo'", 'routes."GET /a"'),
        ("{ function = 'helo' }", 'routes."GET /a"'),
        ("{ payload_format = '1.0' }", 'routes."GET /a".function'),
        ("{ function = 'hello', payload_format = '3.0' }", 'routes."GET /a".payload_format'),
        ("{ function = 'hello', payload_format = 1.0 }", 'routes."GET /a".payload_format'),
        ("{ function = 'hello', format = '1.0' }", 'routes."GET /a".format'),
    ],
)
def test_a_mistake_in_a_route_is_told_once_and_by_its_place(tmp_path: Path, route: str, key: str) -> None:
    assert [problem.key for problem in mistakes(tmp_path, f"{HELLO}[routes]\n'GET /a' = {route}\n")] == [key]


def test_stage_variables_and_cors_belong_to_all_routes(tmp_path: Path) -> None:
    text = HELLO + (
        "[http]\nstage_variables = { mode = 'a/b?c=1' }\n"
        "[http.cors]\nallow_origins = ['https://shop.example', 'http://localhost:3000', 'http://[::1]:80', 'https://*']\n"
        "allow_methods = ['GET', '*']\nallow_headers = ['x-a']\nexpose_headers = ['*']\nmax_age_s = 300\n"
        "allow_credentials = true\n"
    )
    assert load(tmp_path, text).http == HttpApi(
        stage_variables={"mode": "a/b?c=1"},
        cors=Cors(
            allow_origins=("https://shop.example", "http://localhost:3000", "http://[::1]:80", "https://*"),
            allow_methods=("GET", "*"),
            allow_headers=("x-a",),
            expose_headers=("*",),
            max_age_s=300,
            allow_credentials=True,
        ),
    )
    assert load(tmp_path, HELLO).http == HttpApi()


@pytest.mark.parametrize(
    ("lines", "key"),
    [
        ("[http]\nstages = 1", "http.stages"),
        ("[http]\nstage_variables = { 'a-b' = 'x' }", "http.stage_variables.a-b"),
        ("[http]\nstage_variables = { a = 'two words' }", "http.stage_variables.a"),
        ("[http]\nstage_variables = { a = 7 }", "http.stage_variables.a"),
        ("[http]\ncors = true", "http.cors"),
        ("[http.cors]\nallow_origins = 'https://a.example'", "http.cors.allow_origins"),
        ("[http.cors]\nallow_origins = ['shop.example']", "http.cors.allow_origins[0]"),
        ("[http.cors]\nallow_origins = ['https://a.example/path']", "http.cors.allow_origins[0]"),
        ("[http.cors]\nallow_methods = ['get']", "http.cors.allow_methods[0]"),
        ("[http.cors]\nallow_headers = ['x-a', 'x b']", "http.cors.allow_headers[1]"),
        ("[http.cors]\nexpose_headers = [7]", "http.cors.expose_headers[0]"),
        ("[http.cors]\nmax_age_s = 86401", "http.cors.max_age_s"),
        ("[http.cors]\nallow_origins = ['*']\nallow_credentials = true", "http.cors.allow_origins"),
    ],
)
def test_mistakes_are_told_by_their_place(tmp_path: Path, lines: str, key: str) -> None:
    assert [problem.key for problem in mistakes(tmp_path, HELLO + lines + "\n")] == [key]


def test_a_function_url_says_who_may_call_and_how_it_answers(tmp_path: Path) -> None:
    text = HELLO + (
        "[functions.hello.url]\nauth_type = 'NONE'\ninvoke_mode = 'RESPONSE_STREAM'\n"
        "cors = { allow_origins = ['*'] }\n[functions.other]\nhandler = 'a.b'\nurl = { auth_type = 'AWS_IAM' }\n"
    )
    settings = load(tmp_path, text)
    assert settings.urls == {
        "hello": FunctionUrl(auth_type="NONE", invoke_mode="RESPONSE_STREAM", cors=Cors(allow_origins=("*",))),
        "other": FunctionUrl(auth_type="AWS_IAM"),
    }


@pytest.mark.parametrize(
    ("lines", "key"),
    [
        ("url = true", "functions.hello.url"),
        ("url = { }", "functions.hello.url.auth_type"),
        ("url = { auth_type = 'IAM' }", "functions.hello.url.auth_type"),
        ("url = { auth_type = 'NONE', invoke_mode = 'STREAM' }", "functions.hello.url.invoke_mode"),
        ("url = { auth_type = 'NONE', cors = { origins = [] } }", "functions.hello.url.cors.origins"),
        ("url = { auth_type = 'NONE', path = '/x' }", "functions.hello.url.path"),
    ],
)
def test_mistakes_in_a_function_url_are_told_by_their_place(tmp_path: Path, lines: str, key: str) -> None:
    assert [problem.key for problem in mistakes(tmp_path, HELLO + lines + "\n")] == [key]


def test_access_keys_are_read_and_never_shown(tmp_path: Path) -> None:
    settings = load(tmp_path, HELLO + "[server.access_keys]\nAKIALOCAL = 'very-secret'\n")
    assert settings.server.access_keys == {"AKIALOCAL": "very-secret"}
    assert "very-secret" not in repr(settings)
    problems = mistakes(tmp_path, HELLO + "[server.access_keys]\nAKIALOCAL = 'very secret'\n'very secret' = 'id'\n")
    assert [problem.key for problem in problems] == ["server.access_keys", "server.access_keys.AKIALOCAL"]
    assert not any("very" in str(problem) for problem in problems)
    (problem,) = mistakes(tmp_path, HELLO + "[server]\naccess_keys = 'very-secret'\n")
    assert (problem.key, "very" in str(problem)) == ("server.access_keys", False)


def test_access_keys_may_come_from_the_environment(tmp_path: Path) -> None:
    text = HELLO + "[server.access_keys]\nINFILE = 'secret'\n"
    assert load(tmp_path, text, environ={"THAWD_ACCESS_KEYS": ""}).server.access_keys == {"INFILE": "secret"}
    keys = load(tmp_path, text, environ={"THAWD_ACCESS_KEYS": " AKIAONE:a/b+c:d\n AKIATWO:other "}).server.access_keys
    assert keys == {"AKIAONE": "a/b+c:d", "AKIATWO": "other"}


@pytest.mark.parametrize(
    "value", ["very-secret", "AKIAONE:very-secret very-secret", "A B:very-secret", "AKIAONE:not", "very-secret:AKIAONE"]
)
def test_mistaken_access_keys_of_the_environment_are_told_and_not_shown(tmp_path: Path, value: str) -> None:
    (problem,) = mistakes(tmp_path, HELLO, environ={"THAWD_ACCESS_KEYS": value})
    assert "access_keys" in problem.key or problem.key == "THAWD_ACCESS_KEYS"
    assert not any(word in str(problem) for word in ("very-secret", '"not"'))


def test_signed_urls_that_other_machines_can_reach_need_keys_of_their_own(tmp_path: Path) -> None:
    """Everybody knows the default pair test, test."""
    text = HELLO + "url = { auth_type = 'AWS_IAM' }\n[server]\nhost = '0.0.0.0'\n"
    (problem,) = mistakes(tmp_path, text, environ={"THAWD_KEY": "a-long-key"})
    assert problem.key == "functions.hello.url.auth_type"
    assert load(tmp_path, text + "access_keys = { AKIALOCAL = 'secret' }\n", environ={"THAWD_KEY": "a-long-key"}).urls


def test_no_route_lies_where_function_urls_are(tmp_path: Path) -> None:
    (problem,) = mistakes(tmp_path, HELLO + "[routes]\n'GET /_urls/x' = 'hello'\n")
    assert problem.key == 'routes."GET /_urls/x"'


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
