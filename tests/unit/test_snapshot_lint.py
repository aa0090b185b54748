"""`thawd.snapshot.lint.search`: how far it searches, what it leaves unchanged, and what it reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.interpreters_here import INTERPRETERS
from tests.unit.linted_function import VARIABLES, search
from thawd.snapshot.lint import search as lint

TYPICAL = """
    import asyncio, datetime, http.client, json, logging, os, pickle, random, socket, sqlite3, subprocess, tempfile
    import threading, time, uuid
    rng = random.Random(1)
    listening = socket.create_server(("127.0.0.1", 0))
    sock = socket.create_connection(listening.getsockname())
    stop = threading.Event()
    threading.Thread(target=stop.wait, name="poller", daemon=True).start()
    TOKEN = os.environ["API_TOKEN"]
    START = time.time()
    NOW = datetime.datetime.now()
    loop = asyncio.new_event_loop()
    ID = uuid.uuid4()
    log = open("log.txt", "w")
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    folder = tempfile.TemporaryDirectory(dir=".")
    STREAM = os.environ["AWS_LAMBDA_LOG_STREAM_NAME"]
    class Model:
        __slots__ = ("rng", "__dict__")
        def __init__(self):
            self.rng = random.Random()
            self.made = time.time()
    model = Model()
    logger = logging.getLogger(__name__)
"""


@pytest.mark.parametrize("python", INTERPRETERS)
def test_every_supported_interpreter_finds_the_same(tmp_path: Path, python: str) -> None:
    found, _ = search(tmp_path, TYPICAL, python=python, **VARIABLES)
    assert [(one.rule, one.where) for one in found] == [
        ("TS001", "app.model.rng"),
        ("TS001", "app.rng"),
        ("TS002", "app.listening"),
        ("TS002", "app.sock"),
        ("TS003", "thread 'poller'"),
        ("TS004", "app.TOKEN"),
        ("TS005", "app.NOW"),
        ("TS005", "app.START"),
        ("TS005", "app.model.made"),
        ("TS007", "app.ID"),
        ("TS008", "app.log"),
        ("TS009", "app.child"),
        ("TS010", "app.folder"),
        ("TS012", "app.STREAM"),
        ("TS006", "app.loop"),  # a note, not an error
    ]


HOSTILE = """
    import random

    def fail(*args, **kwargs):
        raise SystemExit("the function's code was run")

    class Meta(type):
        __getattribute__ = __instancecheck__ = __subclasscheck__ = __call__ = fail
        __hash__ = __eq__ = fail
        mro = lambda cls: type.mro(cls)

    class Hostile:
        __getattribute__ = __getattr__ = __eq__ = __hash__ = __bool__ = __len__ = __iter__ = __repr__ = fail
        __getitem__ = __contains__ = __fspath__ = __index__ = __float__ = __str__ = fileno = __reduce__ = fail
        __class__ = property(fail)
        name = property(fail)

    class WithoutDict(Hostile):
        __dict__ = property(fail)

    class HostileDict(dict):
        __getattribute__ = __iter__ = items = keys = values = __len__ = __contains__ = __getitem__ = fail

    class HostileList(list):
        __getattribute__ = __iter__ = __len__ = __getitem__ = fail

    class HostileText(str):
        __getattribute__ = __hash__ = __eq__ = __len__ = fail

    class OfMeta(metaclass=Meta):
        pass

    hidden = random.Random()
    plain = object.__new__(Hostile)
    object.__setattr__(plain, "rng", random.Random())
    bare = object.__new__(WithoutDict)
    mapping = HostileDict(rng=random.Random())
    items = HostileList([random.Random()])
    text = HostileText("11111111-2222-4333-8444-555555555555")
    meta = object.__new__(OfMeta)
    key = {object.__new__(type("K", (), {})): 1, HostileText: 2}
    cycle = []
    cycle.append(cycle)
    deep = []
    for _ in range(100_000):
        deep = [deep]
"""


@pytest.mark.parametrize("python", INTERPRETERS)
def test_objects_whose_code_must_not_run_are_looked_at_all_the_same(tmp_path: Path, python: str) -> None:
    found, _ = search(tmp_path, HOSTILE, python=python)
    assert [one.where for one in found if one.rule == "TS001"] == [
        "app.hidden",
        "app.items[0]",
        "app.mapping['rng']",
        "app.plain.rng",
    ]


@pytest.mark.parametrize("options", ['{"max_objects": 50}', '{"max_s": 0}'])
def test_a_search_that_is_cut_short_says_so_and_keeps_what_it_found(tmp_path: Path, options: str) -> None:
    code = "import random\nrng = random.Random()\ntable = [object() for _ in range(100_000)]"
    found, _ = search(tmp_path, code, options=options)
    assert [(one.rule, one.level) for one in found] == [("TS001", "warning"), ("TS000", "note")]


def test_a_search_of_a_large_process_ends_in_time(tmp_path: Path) -> None:
    code = "table = {i: [str(i), float(i), {'a': (i,)}] for i in range(300_000)}"
    found, _ = search(tmp_path, code, options='{"max_s": 0.1}')
    assert [one.rule for one in found] == ["TS000"]


def test_each_thing_is_found_once_however_often_it_is_held(tmp_path: Path) -> None:
    found, _ = search(tmp_path, "import random\na = random.Random()\nb = [a, a]\nc = {'a': a}")
    assert [one.where for one in found] == ["app.a"]


def test_the_runtimes_own_descriptors_are_not_the_functions_business(tmp_path: Path) -> None:
    code = "import os, socket\nsock = socket.socket()\nos.dup2(sock.fileno(), 30)\nsock.close()"
    found, _ = search(tmp_path, code, options='{"own_fds": [30]}')
    assert found == []


def test_nothing_is_changed_by_a_search(tmp_path: Path) -> None:
    code = """
        import subprocess, os
        child = subprocess.Popen(["true"])
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        log = open("log.txt", "w")
        log.write("unwritten")
        import socket, threading
        sock = socket.socket()
        from thawd.snapshot.lint import search as lint
        before = os.listdir("/proc/self/fd")
        lint.findings(lint.user_modules(os.getcwd()))
        assert os.listdir("/proc/self/fd") == before
        assert os.path.getsize("log.txt") == 0
        assert child.returncode is None
        assert child.wait() == 0
    """
    search(tmp_path, code)


def test_the_functions_modules_are_those_of_its_folder_but_not_installed_packages(tmp_path: Path) -> None:
    generator = "import random\nrng = random.Random()\n"
    for path in (
        "own/__init__.py",
        "own/sub.py",
        "vendored/__init__.py",
        "lib/site-packages/installed.py",
        "single.py",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(generator)
    record = tmp_path / "vendored-1.0.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text('vendored/__init__.py,sha256=x,1\nsingle.py,,\n"vendored-1.0.dist-info/RECORD",,\n')
    code = """
        import sys
        sys.path.append("lib/site-packages")
        import installed, own.sub, single, vendored
        sys.modules["odd"] = None
        sys.modules["odder"] = object()
    """
    found, _ = search(tmp_path, code)
    assert [one.where for one in found] == ["own.rng", "own.sub.rng"]


def test_objects_of_libraries_that_the_function_holds_are_searched_but_not_the_libraries(tmp_path: Path) -> None:
    (tmp_path / "lib" / "site-packages").mkdir(parents=True)
    (tmp_path / "lib" / "site-packages" / "library.py").write_text(
        "import random\n_own = random.Random()\n"
        "class Client:\n    shared = random.Random()\n    def __init__(self): self.rng = random.Random()\n"
        "def helper(): return _own\n"
    )
    code = """
        import sys
        sys.path.append("lib/site-packages")
        import library
        from library import Client, helper
        client = Client()
    """
    found, _ = search(tmp_path, code)
    assert [one.where for one in found] == ["app.client.rng"]


def test_the_text_for_people_has_a_paragraph_for_each_finding() -> None:
    found = [lint.finding("TS001", "app.rng", "a random.Random"), lint.finding("TS011", "this process", "2 named 'x'")]
    first, second = lint.describe(found).split("\n\n")
    assert first.splitlines()[0] == "TS001 warning: app.rng: a random.Random"
    assert first.splitlines()[1].strip() == lint.RULES["TS001"].why
    assert first.splitlines()[2].strip() == lint.RULES["TS001"].way_out
    assert second.startswith("TS011 note: this process: ")
    assert lint.describe([]) == ""
