"""``[cluster]`` of ``thawd.toml``, and what each machine does of the configuration that all of them share."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.unit.config_files import HELLO, load, mistakes, only_mistake
from thawd.cluster.identity import Identities
from thawd.cluster.local_settings import localized
from thawd.environments.version import Version

KEY = "a-key-that-is-only-for-tests"
CLUSTER = (
    f"[cluster]\nname = 'a'\nkey = '{KEY}'\n"
    "machines = { a = '127.0.0.1:8351', b = '127.0.0.1:8352', c = '[::1]:8353' }\n"
)


def test_a_cluster_has_names_and_addresses_and_its_key_is_not_shown(tmp_path: Path) -> None:
    settings = load(tmp_path, HELLO + CLUSTER)
    assert settings.cluster is not None
    assert settings.cluster.machines["c"] == ("::1", 8353)
    assert KEY not in repr(settings)
    assert load(tmp_path, HELLO).cluster is None


def test_name_key_and_address_can_come_from_the_environment(tmp_path: Path) -> None:
    environ = {"THAWD_MACHINE": "b", "THAWD_CLUSTER_KEY": "another-key-of-length"}
    environ["THAWD_CLUSTER_ADDRESS"] = "127.0.0.1:8399"
    cluster = load(tmp_path, HELLO + CLUSTER, environ=environ).cluster
    assert cluster is not None
    assert (cluster.name, cluster.key) == ("b", "another-key-of-length")
    assert cluster.address == ("127.0.0.1", 8399)


@pytest.mark.parametrize(
    ("old", "new", "key", "found"),
    [
        ("name = 'a'", "name = 'd'", "cluster.name", '"d"'),
        (f"key = '{KEY}'", "key = 'short'", "cluster.key", "a text (not shown)"),
        (f"key = '{KEY}'\n", "", "cluster.key", "nothing"),
        ("127.0.0.1:8352", "127.0.0.1", "cluster.machines.b", '"127.0.0.1"'),
        ("127.0.0.1:8352", "127.0.0.1:0", "cluster.machines.b", '"127.0.0.1:0"'),
        ("127.0.0.1:8352", "127.0.0.1:65536", "cluster.machines.b", '"127.0.0.1:65536"'),
        ("127.0.0.1:8352", "b..example:8352", "cluster.machines.b", '"b..example:8352"'),
        ("b =", "B =", "cluster.machines.B", 'the name "B"'),
        ("key =", "authority = 'x'\nkey =", "cluster.certificate", "only one of the two"),
        (
            "127.0.0.1:8352",
            "10.0.0.2:8352",
            "cluster.certificate",
            "no certificate, though requests are sent over the network",
        ),
    ],
)
def test_a_mistake_in_the_cluster_is_told(tmp_path: Path, old: str, new: str, key: str, found: str) -> None:
    mistake = only_mistake(tmp_path, HELLO + CLUSTER.replace(old, new))
    assert (mistake.key, mistake.found) == (key, found)


def test_a_network_without_encryption_must_be_named(tmp_path: Path) -> None:
    text = HELLO + CLUSTER.replace("127.0.0.1:8352", "10.0.0.2:8352") + "unencrypted = true"
    assert load(tmp_path, text).cluster is not None


def test_what_machines_cannot_share_is_refused(tmp_path: Path) -> None:
    text = HELLO + "reserved_concurrency = 2\n" + CLUSTER + "[buckets.uploads]\n[tables.labels]\n"
    assert [(each.key, each.found) for each in mistakes(tmp_path, text)] == [
        ("functions.hello.reserved_concurrency", "2"),
        ("buckets.uploads", "a folder"),
        ("tables.labels", "a table in a file"),
    ]


def test_shares_of_all_machines_add_up_and_only_the_first_machine_has_schedules(tmp_path: Path) -> None:
    function = HELLO + "reserved_concurrency = 7\nprovisioned_concurrency = 4\n"
    text = function + CLUSTER + "[schedules.often]\nfunction = 'hello'\nschedule = 'rate(1 minute)'\n"
    machines = [localized(load(tmp_path, text, environ={"THAWD_MACHINE": name})) for name in "abc"]
    functions = [each.functions["hello"] for each in machines]
    assert [each.reserved_concurrency for each in functions] == [3, 2, 2]
    assert [each.provisioned_concurrency for each in functions] == [2, 1, 1]
    assert [list(each.schedules) for each in machines] == [["often"], [], []]
    alone = load(tmp_path, function)
    assert localized(alone) is alone


STATE = "[server]\nstate = 'postgresql://db.example/thawd'\n"
SCHEDULE = "[schedules.often]\nfunction = 'hello'\nschedule = 'rate(1 minute)'\n"
LISTED = "[buckets.pictures]\nurl = 's3://pictures'\nnotify = [{ function = 'hello' }]\n"


def test_machines_that_find_each_other_need_a_database_and_share_nothing_beforehand(tmp_path: Path) -> None:
    function = HELLO + "reserved_concurrency = 7\n"
    settings = load(tmp_path, STATE + "durability = 'cluster'\n" + function + SCHEDULE + "[cluster]\n")
    assert settings.cluster is not None
    assert (settings.cluster.machines, settings.cluster.address) == ({}, ("127.0.0.1", 0))
    assert localized(settings) is settings
    assert only_mistake(tmp_path, function + "[cluster]\n").key == "cluster.machines"


@pytest.mark.parametrize(
    ("text", "key", "found"),
    [
        (SCHEDULE, "schedules.often", 'a schedule with server.durability = "machine"'),
        (LISTED, "buckets.pictures.notify", "a bucket that is listed"),
    ],
)
def test_sources_whose_progress_the_next_leader_would_not_know_are_refused(
    tmp_path: Path, text: str, key: str, found: str
) -> None:
    mistake = only_mistake(tmp_path, STATE + HELLO + text + "[cluster]\n")
    assert (mistake.key, mistake.found) == (key, found)


def test_an_address_on_the_network_needs_a_certificate_unless_the_cluster_issues_it(tmp_path: Path) -> None:
    text = STATE + HELLO + "[cluster]\naddress = '10.0.0.1:8351'\n"
    assert load(tmp_path, text).cluster is not None
    assert only_mistake(tmp_path, text + f"key = '{KEY}'\n").key == "cluster.certificate"


def test_a_version_has_the_same_identifier_wherever_its_folders_are(tmp_path: Path) -> None:
    function = load(tmp_path, HELLO).functions["hello"]

    def version(root: str, *, code: str = "digest", **changes: object) -> Version:
        changed = msgspec.structs.replace(function, code=Path(root), **changes)
        return Version(changed, 1, Path(root, "bin/python"), "3.11.7", f"{root}/packages/{code}", {"PWD": root})

    def identifier(made: Version, key: str = KEY) -> str:
        return Identities(key).of(made)

    one = identifier(version("/a"))
    assert one == identifier(version("/b"))
    assert one == identifier(version("/b", reserved_concurrency=3))
    others = [
        identifier(version("/a", code="other")),
        identifier(version("/a", environment={"SECRET": "1"})),
        identifier(version("/a", memory_mb=128)),
        identifier(version("/a", handler="hello.other")),
        identifier(version("/a"), key="another-key-of-length"),
    ]
    assert len({one, *others}) == 6
