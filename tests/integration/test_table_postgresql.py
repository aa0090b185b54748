"""Tables in PostgreSQL: the effects of a server crash, which tables are used, and what is reported."""

from __future__ import annotations

import asyncio
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from tests.integration.conftest import Project, eventually
from tests.integration.postgresql import PASSWORD, Postgresql
from thawd.errors import NothingStored, StoreError
from thawd.resources import StoreUrl, Table
from thawd.stores import threads
from thawd.stores.tables import postgresql
from thawd.stores.tables import threads as table_threads
from thawd.stores.tables.access import Tables, TableStore, read_item, read_table
from thawd.stores.tables.postgresql import SCHEMA_VERSION

WRITERS = 12
CRASHES = 4
BETWEEN_CRASHES = 60


@pytest.fixture(scope="module")
def server() -> Iterator[Postgresql]:
    with Postgresql() as running:
        yield running


def table_of(server: Postgresql, name: str, **parameters: str) -> Table:
    """Return a table with a URL as a configuration would give it."""
    url = StoreUrl(text=server.url(**parameters), shown="postgresql://thawd:***@there", secrets=(PASSWORD,))
    return Table(name=name, url=url)


@pytest.fixture
def sql(server: Postgresql) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """A connection to the database besides thawd's."""
    with psycopg.connect(server.url(), autocommit=True) as connection:
        yield connection


async def put_for_sure(store: TableStore, key: str, item: bytes) -> int:
    """Repeat a put until it is acknowledged. Return how many attempts were not."""
    failures = 0
    while True:
        try:
            await store.put(key, item)
        except StoreError as error:
            assert error.retryable
            assert PASSWORD not in str(error)
            failures += 1
            await asyncio.sleep(0.01)
        else:
            return failures


def test_a_server_that_crashes_under_load_loses_nothing_acknowledged_and_doubles_nothing(server: Postgresql) -> None:
    # Given writers that put numbered values under separate keys, without a pause
    tables = Tables({"load": table_of(server, "load")})
    acknowledged: dict[str, int] = {}
    progress = asyncio.Event()
    stop = False

    async def write(store: TableStore, writer: int) -> int:
        failures = 0
        number = 0
        while not stop:
            key = f"{writer}/{number % 7}"
            failures += await put_for_sure(store, key, json.dumps({"n": number}).encode())
            acknowledged[key] = number
            number += 1
            progress.set()
        return failures

    async def scenario() -> int:
        nonlocal stop
        store = await tables.get("load")
        writers = [asyncio.ensure_future(write(store, writer)) for writer in range(WRITERS)]
        for _ in range(CRASHES):
            target = sum(acknowledged.values()) + BETWEEN_CRASHES
            while sum(acknowledged.values()) < target:
                progress.clear()
                await progress.wait()
            # When the server stops abruptly during these operations, and starts again
            before = dict(acknowledged)
            await asyncio.to_thread(server.restart)
            # Then everything that had been acknowledged is there
            for key, number in before.items():
                item = None
                while item is None:
                    try:
                        item = await store.get(key)
                    except StoreError:
                        continue
                    assert item is not None, f"{key} is lost"
                assert json.loads(item)["n"] >= number
        stop = True
        failures = sum(await asyncio.gather(*writers))
        assert await store.count() == len(acknowledged)
        for key, item in await store.scan(limit=1000):
            assert json.loads(item)["n"] == acknowledged[key]
        return failures

    assert asyncio.run(scenario()) > 0, "no put met a crash"
    tables.close()


class AnswersLost:
    """A proxy in front of the server.

    It forwards everything, but breaks the connection instead of passing on an INSERT's answer.
    """

    def __init__(self, server: Postgresql, times: int) -> None:
        self._server = server
        self._left = times
        self.lost = 0
        self.folder = Path(tempfile.mkdtemp(prefix="thawd-pg-between-"))

    def __enter__(self) -> AnswersLost:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.folder / ".s.PGSQL.5432"))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        shutil.rmtree(self.folder)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server:
            server.connect(str(self._server.folder / ".s.PGSQL.5432"))
            inserting = False
            while True:
                for ready in select.select([client, server], [], [])[0]:
                    data = ready.recv(65536)
                    if not data:
                        return
                    if ready is client:
                        inserting = b"INSERT INTO" in data
                        server.sendall(data)
                    elif inserting and self._left:
                        self._left -= 1
                        self.lost += 1
                        return
                    else:
                        client.sendall(data)


@pytest.mark.parametrize("times", [1, 3])
def test_a_commit_whose_answer_was_lost_is_one_item(
    server: Postgresql, sql: psycopg.Connection[tuple[object, ...]], times: int
) -> None:
    # Given a table behind a connection that breaks after the server has committed and before its answer arrives
    name = f"doubt_{times}"
    with AnswersLost(server, times) as between:
        url = server.url().replace(quote(str(server.folder), safe=""), quote(str(between.folder), safe=""))
        tables = Tables({name: Table(name=name, url=StoreUrl(text=url, shown="postgresql://there"))})

        async def scenario() -> int:
            return await put_for_sure(await tables.get(name), "k", b'{"n":1}')

        # When it breaks once, the caller does not see it; when more often, the caller gets an error and repeats the put
        assert asyncio.run(scenario()) == (0 if times == 1 else 1)
        assert between.lost == times
        tables.close()
    # Then every attempt was committed, and together they made one item
    assert sql.execute(f"SELECT key, item::text FROM {name}").fetchall() == [("k", '{"n":1}')]


def test_a_connection_that_broke_while_nobody_used_it_is_not_noticed(
    server: Postgresql, sql: psycopg.Connection[tuple[object, ...]]
) -> None:
    tables = Tables({"idle": table_of(server, "idle")})

    async def scenario() -> None:
        store = await tables.get("idle")
        await store.put("k", b"{}")
        sql.execute("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'thawd'")
        assert await store.get("k") == b"{}"

    asyncio.run(scenario())
    tables.close()


def test_a_server_that_is_down_is_told_without_the_password_and_found_again(server: Postgresql) -> None:
    tables = Tables({"later": table_of(server, "later")})
    server.stop()

    async def scenario() -> None:
        try:
            store = await tables.get("later")
            with pytest.raises(StoreError, match="table later: postgresql://thawd") as caught:
                await store.put("k", b"{}")
            assert caught.value.retryable
            assert PASSWORD not in str(caught.value)
        finally:
            server.start()
        await store.put("k", b"{}")
        assert await store.count() == 1

    asyncio.run(scenario())
    tables.close()


def test_a_wrong_password_is_told_and_not_shown(server: Postgresql) -> None:
    tables = Tables({"t": table_of(server, "t", password="not-the-one")})
    with pytest.raises(StoreError, match="password authentication failed") as caught:
        asyncio.run(_count(tables, "t"))
    assert "not-the-one" not in repr(caught.value)
    tables.close()


async def _count(tables: Tables, name: str) -> int:
    return await (await tables.get(name)).count()


def test_tables_are_made_once_and_named_as_the_url_says(
    server: Postgresql, sql: psycopg.Connection[tuple[object, ...]]
) -> None:
    # Given several servers that create a table together, and a name that needs quoting
    sql.execute('CREATE SCHEMA "the results"')
    table = table_of(server, "any", table='La"bels; DROP', schema="the results")
    several = [Tables({"any": table}) for _ in range(6)]

    async def scenario() -> None:
        stores = [await tables.get("any") for tables in several]
        await asyncio.gather(*(store.put(f"{i}", b'{"label": "cat"}') for i, store in enumerate(stores)))

    asyncio.run(scenario())
    rows = sql.execute("""SELECT key, item->>'label' FROM "the results"."La""bels; DROP" ORDER BY key""").fetchall()
    assert rows == [(f"{i}", "cat") for i in range(6)]
    comment = sql.execute("""SELECT obj_description('"the results"."La""bels; DROP"'::regclass)""").fetchone()
    assert comment == (f"table of thawd, schema {SCHEMA_VERSION}",)
    for tables in several:
        tables.close()


def test_tables_of_others_and_of_a_newer_thawd_are_left_alone(
    server: Postgresql, sql: psycopg.Connection[tuple[object, ...]]
) -> None:
    sql.execute("CREATE TABLE theirs (key text PRIMARY KEY, item json)")
    sql.execute("CREATE TABLE newer (key text PRIMARY KEY, item json)")
    sql.execute("COMMENT ON TABLE newer IS 'table of thawd, schema 2'")
    tables = Tables({name: table_of(server, name) for name in ("theirs", "newer")})
    for name, said in (("theirs", "was not made by thawd"), ("newer", "by a newer thawd")):
        with pytest.raises(StoreError, match=said):
            asyncio.run(_count(tables, name))
    tables.close()


def test_a_table_that_was_dropped_is_made_again(
    server: Postgresql, sql: psycopg.Connection[tuple[object, ...]]
) -> None:
    tables = Tables({"dropped": table_of(server, "dropped")})

    async def scenario() -> None:
        store = await tables.get("dropped")
        await store.put("k", b"{}")
        sql.execute("DROP TABLE dropped")
        await put_for_sure(store, "k", b"{}")
        assert await store.count() == 1

    asyncio.run(scenario())
    tables.close()


def test_the_reader_makes_no_table(server: Postgresql, sql: psycopg.Connection[tuple[object, ...]]) -> None:
    with pytest.raises(NothingStored, match="has no table unmade"):
        list(read_table(table_of(server, "unmade")))
    assert sql.execute("SELECT to_regclass('unmade')").fetchone() == (None,)


def test_the_reader_reads_pages_and_single_items(server: Postgresql) -> None:
    table = table_of(server, "read")
    tables = Tables({"read": table})

    async def fill() -> None:
        store = await tables.get("read")
        await asyncio.gather(*(store.put(f"{i:04d}", b'{"i":%d}' % i) for i in range(1100)))

    asyncio.run(fill())
    tables.close()
    assert list(read_table(table)) == [(f"{i:04d}", b'{"i":%d}' % i) for i in range(1100)]
    assert read_item(table, "0007") == b'{"i":7}'
    assert read_item(table, "x") is None


def test_a_function_and_the_command_line_use_it_with_the_password_from_the_environment(
    server: Postgresql, project: Project
) -> None:
    # Given a configuration that names the variable that holds the password
    project.code(
        """
        import thawd

        def handler(event, context):
            thawd.table("labels").put(event["key"], {"label": event["label"]})
            return thawd.table("labels").get(event["key"])

        def asynchronous(event, context):
            return {"n": event["n"]}
        """
    )
    url = server.url().replace(server.url().split(":", 2)[2].split("@")[0], "${RESULTS_PASSWORD}")
    project.config(
        f"""
        [functions.label]
        handler = "app.handler"

        [functions.later]
        handler = "app.asynchronous"
        on_success = "table:labels"

        [tables.labels]
        url = "{url}&table=from_functions"
        """
    )
    environ = {"RESULTS_PASSWORD": PASSWORD}
    with project.up(environ=environ) as running:
        assert running.invoke("label", {"key": "a", "label": "cat"}) == ({"label": "cat"}, None)
        running.client().invoke(FunctionName="later", InvocationType="Event", Payload=b'{"n": 7}')
        shown = eventually(lambda: len(rows := _rows(project, environ)) == 2 and rows, what="both rows")
        assert {"_key": "a", "label": "cat"} in shown
        assert [row["n"] for row in shown if "n" in row] == [7]
        said = "\n".join(running.output)
    # Then the table can be read without a server, too, and the password is shown nowhere
    assert len(_rows(project, environ)) == 2
    assert "${RESULTS_PASSWORD}" in said
    unset = project.command("check")
    assert unset.returncode == 1
    assert "tables.labels.url: found ${RESULTS_PASSWORD}, but no such environment variable is set" in unset.stderr
    wrong = project.command("table", "labels", env={**_environ(), "RESULTS_PASSWORD": "not-the-one"})
    assert wrong.returncode == 1
    for text in (said, wrong.stderr, wrong.stdout):
        assert PASSWORD not in text
        assert "not-the-one" not in text
    for path in project.data.rglob("*"):
        assert not path.is_file() or PASSWORD.encode() not in path.read_bytes(), path


def test_a_missing_library_is_told_at_the_start_with_its_extra(project: Project) -> None:
    project.config("[tables.labels]\nurl = 'postgresql://nowhere/db'")
    script = (
        "import importlib.util; found = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *a: None if name == 'psycopg' else found(name, *a)\n"
        "from thawd.cli import program as cli; cli.main()"
    )
    for verb in (["up"], ["table", "labels"]):
        done = subprocess.run([sys.executable, "-c", script, *verb], cwd=project.root, capture_output=True, text=True)
        assert done.returncode == 1
        assert "table labels: postgresql://nowhere/db needs psycopg" in done.stderr
        assert "pip install 'thawd[postgresql]'" in done.stderr


def _environ() -> dict[str, str]:
    return dict(os.environ)


def _rows(project: Project, environ: dict[str, str]) -> list[dict[str, object]]:
    done = project.command("table", "labels", "--json", env={**_environ(), **environ})
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_server_that_answers_nothing_any_more_does_not_keep_thawd_from_its_end(
    server: Postgresql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "PATIENCE_S", 0.1)
    tables = Tables({"frozen": table_of(server, "frozen")})

    async def scenario() -> None:
        store = await tables.get("frozen")
        await store.put("a", b"{}")
        with server.frozen():
            # Given as many operations as there are connections, and one that waits for a connection
            waiting = [asyncio.create_task(store.put(f"{n}", b"{}")) for n in range(table_threads.THREADS + 1)]
            await asyncio.sleep(0.1)
            # Then closing ends although the server is still silent
            tables.close()
            failures = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(failure, StoreError | asyncio.CancelledError) for failure in failures)

    asyncio.run(scenario())


def test_an_operation_that_gets_no_answer_fails_and_the_next_one_works(
    server: Postgresql, sql: psycopg.Connection[tuple[object, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql, "_ANSWER_S", 2.0)
    tables = Tables({"locked": table_of(server, "locked")})

    async def scenario() -> None:
        store = await tables.get("locked")
        await store.put("a", b"{}")
        # Given a table that another session has locked and keeps locked
        with sql.transaction():
            sql.execute("LOCK TABLE locked")
            with pytest.raises(StoreError) as caught:
                await store.put("a", b'{"n": 1}')
        assert caught.value.retryable
        await store.put("a", b'{"n": 2}')
        assert await store.get("a") == b'{"n": 2}'
        tables.close()

    asyncio.run(scenario())
