"""The commands that operate a cluster: make one, join it with a token, drain a machine, leave."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from tests.integration.clusters import CODE, machines_of, until_alive
from tests.integration.conftest import Project, eventually
from tests.integration.postgresql import Postgresql

CONFIG = """
durability = "cluster"
state = "{state}"

[cluster]
name = "{name}"

[functions.app]
handler = "app.handler"
on_success = "table:done"
provisioned_concurrency = 2

[functions.slow]
handler = "app.handler"
reserved_concurrency = 1
on_success = "table:done"

[tables.done]
url = "{url}"
"""
PUBLISHED = ("--ready-when", "published")


@pytest.fixture(scope="module")
def server() -> Iterator[Postgresql]:
    with Postgresql() as running:
        yield running


def project(root: Path, name: str, server: Postgresql) -> Project:
    made = Project(root / name)
    made.root.mkdir()
    made.code(CODE)
    made.config(CONFIG.format(state=server.url(schema="verbs"), url=server.url(), name=name).lstrip())
    return made


def rows(server: Postgresql) -> int:
    with psycopg.connect(server.url(), autocommit=True) as sql:
        try:
            row = sql.execute("SELECT count(*) FROM done").fetchone()
        except psycopg.errors.UndefinedTable:
            return 0
    assert row is not None
    return int(row[0])


def test_machines_join_with_a_token_and_a_drained_one_drops_nothing(server: Postgresql, tmp_path: Path) -> None:
    first, second, stranger = (project(tmp_path, name, server) for name in ("a", "b", "c"))
    refused = first.command("up", "--port", "0")
    assert "has no credentials of a cluster" in refused.stderr
    with first.up(command=("cluster", "up", *PUBLISHED)) as a, ThreadPoolExecutor(1) as threads:
        address = str(machines_of(a)["a"]["address"])
        token = first.command("cluster", "token").stdout.strip()
        # A token of another cluster, or none at all, opens nothing, and only the first machine makes a cluster.
        wrong = token[:-64] + "0" * 64
        assert "does not belong to the cluster" in stranger.command("cluster", "join", address, "--token", wrong).stderr
        forged = "-".join((*token.split("-")[:2], "0" * 40, token[-64:]))
        assert "not one of this cluster" in stranger.command("cluster", "join", address, "--token", forged).stderr
        assert "has a cluster already" in stranger.command("cluster", "up").stderr
        with second.up(command=("cluster", "join", address, *PUBLISHED), environ={"THAWD_JOIN_TOKEN": token}) as b:
            until_alive(a, "ab")
            until_alive(b, "ab")
            for file in (second.data / "cluster").iterdir():
                assert stat.S_IMODE(file.stat().st_mode) == 0o600
            # They tell each other about themselves, with the certificates that they have got.
            assert re.search(r"^b +serving", first.command("status").stdout, re.MULTILINE)
            # Given a machine that runs a request, with events that wait
            eventually(lambda: b.function("app")["environments"]["idle"], what="one of the two on each machine")
            gate, late = tmp_path / "gate", tmp_path / "late"
            asked = threads.submit(b.invoke, "app", {"gate": str(gate)})
            eventually(lambda: b.function("app")["environments"]["busy"] == 1)
            payload = json.dumps({"gate": str(late)})
            for _ in range(3):
                b.client().invoke(FunctionName="slow", InvocationType="Event", Payload=payload)
            # When it leaves
            with ThreadPoolExecutor(1) as other:
                leaving = other.submit(second.command, "cluster", "leave")
                eventually(lambda: machines_of(a)["b"]["draining"], what="that b drains")
                # Then what enters there runs elsewhere, and what runs there is finished
                assert b.invoke("app", {})[0]["machine"] == "a"
                late.touch()
                gate.touch()
                assert asked.result(300)[0]["machine"] == "b"
                left = leaving.result(300)
            assert left.returncode == 0, left.stderr
            assert b.process.wait(300) == 0
            assert not (second.data / "cluster").exists()
            until_alive(a, "a")
            eventually(lambda: rows(server) == 3, what="a row for each event")
        # A machine that is left alone is not drained, because nobody could take over.
        alone = first.command("cluster", "drain")
        assert "no other machine of the cluster is alive" in alone.stderr
        assert a.invoke("app", {})[0]["machine"] == "a"
        assert "leads the cluster" in first.command("cluster", "status").stdout
        assert len(list((first.data / "cluster").iterdir())) == 4
