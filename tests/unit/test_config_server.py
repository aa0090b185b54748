"""The server's options in ``thawd.toml``, and the environment variables that override them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.config_files import HELLO, load, only_mistake
from thawd import config


def test_the_secret_of_webhooks_comes_from_the_environment_and_is_not_shown(tmp_path: Path) -> None:
    settings = load(tmp_path, HELLO, environ={"THAWD_WEBHOOK_SECRET": "whsec_c2VjcmV0"})

    assert settings.server.webhook_secret == "whsec_c2VjcmV0"
    assert "whsec" not in repr(settings)


@pytest.mark.parametrize("value", ["on", "AUTO", ""])
def test_snapshots_are_auto_all_or_off(tmp_path: Path, value: str) -> None:
    problem = only_mistake(tmp_path, f"[server]\nsnapshots = '{value}'\n" + HELLO)

    assert (problem.key, problem.allowed) == ("server.snapshots", '"auto" or "all" or "off"')
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


@pytest.mark.parametrize(
    "url", ["http://h:99999", "http://[::1", "http://h:otlp", "https://u:p@h", "ftp://h", "h:4318"]
)
def test_what_is_no_address_of_a_collector_is_refused(tmp_path: Path, url: str) -> None:
    assert only_mistake(tmp_path, f"[server]\ntraces = '{url}'\n" + HELLO).key == "server.traces"
    assert load(tmp_path, "[server]\ntraces = 'http://[::1]:4318/v'\n" + HELLO).server.traces == "http://[::1]:4318/v"


def test_the_process_environment_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THAWD_PORT", "4711")
    (tmp_path / "thawd.toml").write_text(HELLO)

    assert config.load(tmp_path / "thawd.toml").server.port == 4711
    assert config.process_environment()["THAWD_PORT"] == "4711"


@pytest.mark.parametrize(
    ("text", "environ", "wanted"),
    [
        ("[server]\nlog_format = 'json'\nmistake = 1\n", {}, "json"),
        ("[server]\nlog_format = 'xml'\n", {}, "text"),
        ("[server]\nlog_format = 'json'\n", {"THAWD_LOG_FORMAT": "journald"}, "journald"),
        ("[server\n", {}, "text"),
        ("server = 1\n", {}, "text"),
        (None, {"THAWD_LOG_FORMAT": "json"}, "json"),
    ],
)
def test_the_log_format_is_known_before_mistakes_are_printed(
    tmp_path: Path, text: str | None, environ: dict[str, str], wanted: str
) -> None:
    path = tmp_path / "thawd.toml"
    if text is not None:
        path.write_text(text)
    assert config.log_format_of(path, environ=environ) == wanted


def test_the_log_format_is_text_json_or_journald(tmp_path: Path) -> None:
    assert load(tmp_path, HELLO).server.log_format == "text"
    problem = only_mistake(tmp_path, "[server]\nlog_format = 'xml'\n" + HELLO)
    assert (problem.key, problem.allowed) == ("server.log_format", '"text" or "json" or "journald"')


@pytest.mark.parametrize("store", [".thawd", ".thawd/snapshots", ".thawd/snapshots/shared"])
def test_a_store_of_chunks_cannot_be_among_thawds_own_files(tmp_path: Path, store: str) -> None:
    problem = only_mistake(tmp_path, f"[server]\nsnapshot_store = '{store}'\n" + HELLO)

    assert problem.key == "server.snapshot_store"
    assert problem.allowed == "a folder of its own, a bucket or a registry"


@pytest.mark.parametrize("store", [".thawd/store", "snapshots", ".thawd-shared"])
def test_a_store_of_chunks_can_be_in_any_other_folder(tmp_path: Path, store: str) -> None:
    assert load(tmp_path, f"[server]\nsnapshot_store = '{store}'\n" + HELLO).server.snapshot_store == tmp_path / store
