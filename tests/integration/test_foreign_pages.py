"""Pages of other sites in a browser on this machine, with a server without a key: rebinding and cross-site requests."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.integration.conftest import Project, Running

INVOKE = "/2015-03-31/functions/echo/invocations"
CROSS = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    project = Project(tmp_path_factory.mktemp("foreign"))
    project.code("def handler(event, context):\n    return 'called'\n")
    project.config(
        """
        names = ["build-box.example"]
        [functions.echo]
        handler = "app.handler"
        environment = { SECRET = "of-the-function" }
        [functions.echo.url]
        auth_type = "NONE"
        [functions.shared]
        handler = "app.handler"
        [functions.shared.url]
        auth_type = "NONE"
        cors = { allow_origins = ["*"] }
        [routes]
        "ANY /route" = "echo"
        [http.cors]
        allow_origins = ["https://shared.example"]
        [buckets.uploads]
        """
    )
    with project.up() as server:
        yield server


def ask(running: Running, path: str, *, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(running.url.removeprefix("http://"), timeout=60)
    with closing(connection):
        body = b"{}" if method == "POST" else None
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()


def url_of(running: Running, function: str) -> str:
    (line,) = (line for line in running.output if "/_urls/" in line and f" {function} " in f"{line} ")
    return "/_urls/" + line.partition("/_urls/")[2].split()[0]


PATHS = [
    ("GET", "/2015-03-31/functions/echo"),
    ("GET", "/2015-03-31/functions/echo/configuration"),
    ("GET", "/_thawd/status"),
    ("GET", "/metrics"),
    ("GET", "/route"),
    ("GET", "/uploads"),
    ("GET", "/nothing"),
    ("POST", INVOKE),
    ("GET", "URL"),
]


@pytest.mark.parametrize(("method", "path"), PATHS)
@pytest.mark.parametrize("host", ["evil.com", "evil.com:8350", "0.0.0.0", "localhost.evil.com"])
def test_a_page_whose_name_was_rebound_to_this_machine_is_told_nothing(
    running: Running, method: str, path: str, host: str
) -> None:
    # The page has the same origin as the address it calls. Only the host name shows the browser's request as foreign.
    headers = {"Host": host, "Sec_Fetch_Site": "same-origin", "Origin": f"http://{host}"}
    path = url_of(running, "echo") if path == "URL" else path
    status, _, body = ask(running, path, method=method, **headers)
    assert status == 403
    assert b"server.names" in body
    assert b"of-the-function" not in body


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_a_request_that_another_site_makes_is_refused(running: Running, method: str, path: str) -> None:
    path = url_of(running, "echo") if path == "URL" else path
    for referer in ({}, {"Referer": "https://evil.com/page"}):
        status, _, body = ask(running, path, method=method, Sec_Fetch_Site="cross-site", **referer)
        assert status == 403
        assert b"of-the-function" not in body


@pytest.mark.parametrize("host", ["localhost:{port}", "127.0.0.1", "127.9.9.9", "[::1]:{port}", "build-box.example"])
def test_names_of_this_machine_and_configured_ones_are_served(running: Running, host: str) -> None:
    host = host.format(port=running.url.rpartition(":")[2])
    assert ask(running, INVOKE, method="POST", Host=host)[::2] == (200, b'"called"')
    own = {"Host": host, "Origin": f"http://{host}", "Sec_Fetch_Site": "same-origin"}
    assert ask(running, "/route", method="POST", **own)[0] == 200


def test_what_cors_names_may_be_called_from_there(running: Running) -> None:
    shared = {"Sec_Fetch_Site": "cross-site", "Referer": "https://shared.example/"}
    assert ask(running, "/route", **shared)[0] == 200
    assert ask(running, "/route", method="POST", Sec_Fetch_Site="cross-site", Origin="https://shared.example")[0] == 200
    assert ask(running, "/metrics", **shared)[0] == 403
    assert ask(running, url_of(running, "shared"), Sec_Fetch_Site="cross-site")[0] == 200


def test_the_own_page_of_a_function_url_may_post_to_it(running: Running) -> None:
    identifier = url_of(running, "echo").split("/")[2]
    port = running.url.rpartition(":")[2]
    for host in (f"{identifier}.lambda-url.us-east-1.localhost:{port}", f"{identifier}.lambda-url.us-east-1.on.aws"):
        own = {"Host": host, "Origin": f"http://{host}", "Sec_Fetch_Site": "same-origin"}
        assert ask(running, "/any", method="POST", **own)[::2] == (200, b"called")
        assert ask(running, "/any", method="POST", Host=host, Origin="https://evil.com")[0] == 403


def test_a_page_in_a_bucket_does_not_run(running: Running) -> None:
    folder: Path = running.project.root / "uploads"
    (folder / "page.html").write_text("<script>fetch('/_thawd/status')</script>")
    for method in ("GET", "HEAD"):
        status, headers, _ = ask(running, "/uploads/page.html", method=method)
        assert (status, headers["x-content-type-options"]) == (200, "nosniff")
        assert "sandbox" in headers["content-security-policy"].split("; ")
    # A script that runs nevertheless has the origin "null".
    assert ask(running, INVOKE, method="POST", Origin="null")[0] == 403


def test_with_a_key_the_name_is_anybodys_and_the_key_decides(project: Project) -> None:
    project.code("def handler(event, context):\n    return 'called'\n")
    project.config('key = "long-enough"\n[functions.echo]\nhandler = "app.handler"\n')
    with project.up() as running:
        headers = {"Host": "thawd.example", "Sec_Fetch_Site": "cross-site"}
        assert ask(running, INVOKE, method="POST", **headers)[0] == 403
        assert ask(running, INVOKE, method="POST", X_Api_Key="long-enough", **headers)[0] == 200


def test_a_name_that_is_none_is_a_mistake_in_the_file(project: Project) -> None:
    project.config('names = ["good.example", "no/name", 5]\n')
    done = project.command("check")
    assert done.returncode != 0
    assert "server.names" in done.stderr + done.stdout
    assert json.dumps("no/name") in done.stderr + done.stdout
