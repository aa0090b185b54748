"""`thawd.snapshot.lint.rule_texts`: each rule finds what it is for, reports nothing else, and is documented.

Every case is the module of a function.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.unit.linted_function import ROOT, SECRET, VARIABLES, search
from thawd.snapshot.lint import search as lint

PAGE = ROOT / "docs" / "reference" / "snapshot-lint.md"


class Case(NamedTuple):
    """What a rule must find, as `where` -> module, and modules in which it must find nothing."""

    found: dict[str, str]
    clean: dict[str, str]


LISTENER = """
    import socket, threading
    _listener = socket.create_server(("127.0.0.1", 0))
    _address = _listener.getsockname()
    def _accepted():
        return _listener.accept()[0]
"""

CASES = {
    "TS001": Case(
        {
            "app.rng": "import random\nrng = random.Random(7)",
            "app.model.rng": "import random\nclass M:\n    def __init__(self): self.rng = random.Random()\nmodel = M()",
            "app.M.rng": "import random\nclass M:\n    rng = random.Random()",
            "app.slotted.rng": "import random\nclass S:\n    __slots__ = ('rng',)\nslotted = S()\n"
            "slotted.rng = random.Random()",
            "app.table['a'][1]": "import random\ntable = {'a': (1, random.Random())}",
            "app.draw.rng": "import random\ndef make():\n    rng = random.Random()\n    return lambda: rng\n"
            "draw = make()",
            "app.handler(default)": "import random\ndef handler(rng=random.Random()): pass",
            "app.bound": "import random\nbound = random.Random(1).random",
            "app.gen": "import numpy\ngen = numpy.random.default_rng(7)",
            "app.state": "import numpy\nstate = numpy.random.RandomState(7)",
            "app.bits": "import numpy\nbits = numpy.random.PCG64(7)",
            "app.seeds": "import numpy\nseeds = numpy.random.SeedSequence(7)",
        },
        {
            "the global generators": "import random\nfrom random import random as draw, shuffle\nimport numpy\n"
            "from numpy.random import rand\nown = random._inst\nlegacy = numpy.random.mtrand._rand",
            "the system's generator": "import random, secrets\nsystem = random.SystemRandom()\n"
            "own = secrets.SystemRandom",
            "a class": "import random\nRandom = random.Random\nclass Mine(random.Random): pass",
        },
    ),
    "TS002": Case(
        {
            "app.sock": "import socket\nsock = socket.socket()",
            "app.server": "import socket\nserver = socket.create_server(('127.0.0.1', 0))",
            "app.client": LISTENER + "    client = socket.create_connection(_address)\n    _listener.close()\n",
            "app.http.sock": LISTENER
            + "    import http.client\n    http = http.client.HTTPConnection(*_address)\n    http.connect()\n"
            "    _listener.close()\n",
            "descriptor 30": "import os, socket\nsock = socket.socket()\nos.dup2(sock.fileno(), 30)\nsock.close()",
        },
        {
            "a pair of sockets within the process": "import socket\none, other = socket.socketpair()",
            "a closed socket": "import socket\nsock = socket.socket()\nsock.close()",
            "clients that have not connected": "import http.client, urllib.request, httpx, boto3\n"
            "http = http.client.HTTPConnection('127.0.0.1', 9)\nopener = urllib.request.build_opener()\n"
            "client = httpx.Client(trust_env=False)",
        },
    ),
    "TS003": Case(
        {
            "thread 'poller'": "import threading\nstop = threading.Event()\n"
            "threading.Thread(target=stop.wait, name='poller', daemon=True).start()",
            "thread 'worker'": "import threading\nstop = threading.Event()\nclass T(threading.Thread):\n"
            "    def run(self): stop.wait()\nT(name='worker').start()",
        },
        {
            "threads that have ended or not begun": "import threading\nthread = threading.Thread(target=int)\n"
            "thread.start()\nthread.join()\nlater = threading.Thread(target=int)",
            "a pool without work has no warning": "from concurrent.futures import ThreadPoolExecutor\n"
            "pool = ThreadPoolExecutor(1)\npool.submit(int).result()",
        },
    ),
    "TS004": Case(
        {
            "app.TOKEN": "import os\nTOKEN = os.environ['API_TOKEN']",
            "app.raw": "import os\nraw = os.environb[b'API_TOKEN']",
            "app.settings['api']['key']": "import os\nsettings = {'api': {'key': os.environ['API_TOKEN']}}",
            "app.everything['API_TOKEN']": "import os\neverything = dict(os.environ)\ndel everything['SERVICE_KEY']",
            "app.client.key": "import os\nclass C:\n    def __init__(self, key): self.key = key\n"
            "client = C(os.environ['SERVICE_KEY'])",
            "app.credentials": "from botocore.credentials import Credentials\ncredentials = Credentials('a', 'b')",
            "app.session._session._credentials": "import boto3\nsession = boto3.Session('AKIA', 'secret')\n",
        },
        {
            "variables read when needed": "import os\nenvironment = os.environ\ndef handler():\n"
            "    return os.environ['API_TOKEN']",
            "what is no secret": "import os\nBUCKET = os.environ['BUCKET']\nMODEL = os.environ['MODEL_KEY']\n"
            "STAGE = os.environ['STAGE_KEY']",
            "what is too short to be known again": "import os\nPIN = os.environ['SHORT_KEY']",
            "credentials that renew themselves": "from botocore.credentials import RefreshableCredentials\n"
            "import datetime\nrole = RefreshableCredentials('a', 'b', 'c', None, None, 'm')",
        },
    ),
    "TS005": Case(
        {
            "app.START": "import time\nSTART = time.time()",
            "app.SECONDS": "import time\nSECONDS = int(time.time())",
            "app.NS": "import time\nNS = time.time_ns()",
            "app.MONO": "import time\nMONO = time.monotonic()",
            "app.MONO_NS": "import time\nMONO_NS = time.monotonic_ns()",
            "app.NOW": "import datetime\nNOW = datetime.datetime.now()",
            "app.UTC": "import datetime\nUTC = datetime.datetime.now(datetime.timezone.utc)",
            "app.ELSEWHERE": "import datetime\n"
            "ELSEWHERE = datetime.datetime.now(datetime.timezone(datetime.timedelta(hours=9)))",
            "app.ZONED": "import datetime\nfrom dateutil import tz\n"
            "ZONED = datetime.datetime.now(tz.tzoffset('x', 3600))",
            "app.TODAY": "import datetime\nTODAY = datetime.date.today()",
            "app.CALENDAR": "import time\nCALENDAR = time.localtime()",
            "app.handler(now)": "import time\ndef handler(event, *, now=time.time()): pass",
            "app.Config.loaded": "import time\nclass Config:\n    loaded = time.time()",
            "app.cache['at']": "import time\ncache = {'at': time.time()}",
        },
        {
            "constants": "import datetime, time\nEPOCH = datetime.datetime(2020, 1, 1)\n"
            "DAY = datetime.date(2024, 2, 29)\nLIMIT = 301.5\nN = 5\nMAX = 1 << 40\nZERO = 0.0\nT = time.gmtime(0)\n"
            "AWARE = datetime.datetime(2025, 5, 5, tzinfo=datetime.timezone.utc)\nODD = time.struct_time([0] * 9)",
            "clocks": "import time\nfrom time import time as now, monotonic\nclock = time.time\n"
            "def handler(event): return now()",
            "what libraries keep for themselves": "import logging, threading\nlog = logging.getLogger()\n"
            "record = logging.makeLogRecord({})",
            "a large table": "import time\ntable = [time.time()] * 1000",
        },
    ),
    "TS006": Case(
        {
            "app.loop": "import asyncio\nloop = asyncio.new_event_loop()",
            "app.fast": "import uvloop\nfast = uvloop.new_event_loop()",
            "asyncio.get_event_loop()": "import asyncio\nasyncio.set_event_loop(asyncio.new_event_loop())",
            "app.running": "import asyncio, threading\nrunning = asyncio.new_event_loop()\nruns = threading.Event()\n"
            "running.call_soon(runs.set)\nthreading.Thread(target=running.run_forever, daemon=True).start()\n"
            "runs.wait()",
        },
        {
            "loops that are closed": "import asyncio, uvloop\nasync def main(): pass\nasyncio.run(main())\n"
            "loop = asyncio.new_event_loop()\nloop.close()\nfast = uvloop.new_event_loop()\nfast.close()",
        },
    ),
    "TS007": Case(
        {
            "app.ID": "import uuid\nID = uuid.uuid4()",
            "app.TIMED": "import uuid\nTIMED = uuid.uuid1()",
            "app.TEXT": "import uuid\nTEXT = str(uuid.uuid4())",
            "app.service.id": "import uuid\nclass S:\n    def __init__(self): self.id = uuid.uuid4()\nservice = S()",
        },
        {
            "constants": "import uuid\nfrom uuid import NAMESPACE_DNS\nspaces = [uuid.NAMESPACE_URL, NAMESPACE_DNS]\n"
            "TENANT = uuid.UUID('0A1B2C3D-0000-4000-8000-00000000ABCD')\n"
            "PLAIN = uuid.UUID('0a1b2c3d000040008000000000abcde0')\nTEXT = '11111111-2222-4333-8444-555555555555'\n"
            "NAMED = uuid.uuid5(uuid.NAMESPACE_DNS, 'a')\nNIL = uuid.UUID(int=0)",
            "what a variable says": "import os, uuid\nTENANT = uuid.UUID(os.environ['TENANT'])\n"
            "TEXT = os.environ['TENANT']",
        },
    ),
    "TS008": Case(
        {
            "app.log": "log = open('log.txt', 'w')",
            "app.raw": "raw = open('log.txt', 'ab', buffering=0)",
            "app.data": "data = open(__file__)",
            "app.base": "import sqlite3\nbase = sqlite3.connect('base.db')\nbase.execute('create table t (a)')",
        },
        {
            "closed files": "log = open('log.txt', 'w')\nlog.close()\n"
            "import sqlite3\nbase = sqlite3.connect('base.db')\nbase.execute('create table t (a)')\nbase.close()",
            "what is no file on a disk": "import os, io, sys, sqlite3\nnull = open('/dev/null', 'w')\n"
            "text = io.StringIO()\nout = sys.stdout\n"
            "reading, writing = (open(fd, mode) for fd, mode in zip(os.pipe(), ('rb', 'wb')))\n"
            "base = sqlite3.connect(':memory:')\nbase.execute('create table t (a)')",
            "a mapped model": "import mmap\nwith open(__file__, 'rb') as file:\n"
            "    model = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)",
        },
    ),
    "TS009": Case(
        {
            "app.child": "import subprocess\nchild = subprocess.Popen(['cat'], stdin=subprocess.PIPE)",
            "app.worker": "import multiprocessing, time\nworker = multiprocessing.get_context('fork').Process("
            "target=time.sleep, args=(30,), daemon=True)\nworker.start()",
            "app.pool": "import multiprocessing\npool = multiprocessing.get_context('fork').Pool(1)",
            "app.executor": "import multiprocessing\nfrom concurrent.futures import ProcessPoolExecutor\n"
            "executor = ProcessPoolExecutor(1, multiprocessing.get_context('fork'))\nexecutor.submit(int).result()",
        },
        {
            "children that have ended": "import subprocess, os\nchild = subprocess.Popen(['true'])\n"
            "os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)\n"
            "waited = subprocess.Popen(['true'])\nwaited.wait()\nfailed = subprocess.run(['false'])",
            "this process, and what has not begun": "import multiprocessing\nme = multiprocessing.current_process()\n"
            "later = multiprocessing.Process(target=int)\nfrom concurrent.futures import ProcessPoolExecutor\n"
            "executor = ProcessPoolExecutor(1)\nfrom multiprocessing.pool import ThreadPool\n"
            "threads = ThreadPool(1)\nthreads.close()\nthreads.join()",
            "a pool that is closed": "import multiprocessing\npool = multiprocessing.get_context('fork').Pool(1)\n"
            "pool.terminate()\npool.join()",
        },
    ),
    "TS010": Case(
        {
            "app.folder": "import tempfile\nfolder = tempfile.TemporaryDirectory(dir='.')",
            "app.file": "import tempfile\nfile = tempfile.NamedTemporaryFile(dir='.')",
        },
        {
            "what is gone": "import tempfile\nfolder = tempfile.TemporaryDirectory(dir='.')\nfolder.cleanup()\n"
            "file = tempfile.NamedTemporaryFile(dir='.')\nfile.close()\n"
            "with tempfile.TemporaryDirectory(dir='.') as path: pass",
        },
    ),
    "TS011": Case(
        {
            "this process": "import _thread, time\nbegan = _thread.allocate_lock()\nbegan.acquire()\n"
            "def run():\n    began.release()\n    time.sleep(30)\n"
            "_thread.start_new_thread(run, ())\nbegan.acquire()",
        },
        {
            "Python's own threads": "import threading\nstop = threading.Event()\n"
            "threading.Thread(target=stop.wait, daemon=True).start()",
        },
    ),
    "TS012": Case(
        {"app.STREAM": "import os\nSTREAM = os.environ['AWS_LAMBDA_LOG_STREAM_NAME']"},
        {"what all copies share": "import os\nNAME = os.environ['AWS_LAMBDA_FUNCTION_NAME']"},
    ),
}


@pytest.mark.parametrize(
    ("rule", "where"), [(rule, where) for rule, case in CASES.items() for where in case.found], ids=str
)
def test_a_rule_finds_what_it_is_for_and_says_where(tmp_path: Path, rule: str, where: str) -> None:
    found, text = search(tmp_path, CASES[rule].found[where], **VARIABLES)
    assert [one.where for one in found if one.rule == rule] == [where], found
    assert lint.RULES[rule].way_out in text
    assert SECRET not in text
    assert SECRET[::-1] not in text


@pytest.mark.parametrize(
    ("rule", "what"), [(rule, what) for rule, case in CASES.items() for what in case.clean], ids=str
)
def test_a_rule_leaves_alone_what_it_is_not_for(tmp_path: Path, rule: str, what: str) -> None:
    found, _ = search(tmp_path, CASES[rule].clean[what], **VARIABLES)
    levels = {lint.WARNING} if what.endswith("no warning") else {lint.WARNING, lint.NOTE}
    assert [one for one in found if one.rule == rule and one.level in levels] == []


def test_a_loop_that_runs_is_a_warning_and_one_that_is_merely_open_a_note(tmp_path: Path) -> None:
    code = """
        import asyncio, threading, uvloop
        runs = threading.Event()
        def start(loop):
            loop.call_soon(runs.set)
            threading.Thread(target=loop.run_forever, daemon=True).start()
            runs.wait()
            runs.clear()
            return loop
        open_loop, open_uvloop = asyncio.new_event_loop(), uvloop.new_event_loop()
        running_loop, running_uvloop = start(asyncio.new_event_loop()), start(uvloop.new_event_loop())
    """
    found, _ = search(tmp_path, code)
    assert {one.where: one.level for one in found if one.rule == "TS006"} == {
        "app.open_loop": lint.NOTE,
        "app.open_uvloop": lint.NOTE,
        "app.running_loop": lint.WARNING,
        "app.running_uvloop": lint.WARNING,
    }
    assert "TS002" not in {one.rule for one in found}


def test_generators_of_libraries_are_known_by_the_names_of_their_classes(tmp_path: Path) -> None:
    code = """
        import sys, types
        def generator(module, name):
            return type(name, (), {"__module__": module})()
        torch = sys.modules["torch"] = types.ModuleType("torch")
        torch.default_generator = generator("torch._C", "Generator")
        known = torch.default_generator
        own = generator("torch._C", "Generator")
        stateful = generator("tensorflow.python.ops.stateful_random_ops", "Generator")
        layer = generator("keras.src.random.seed_generator", "SeedGenerator")
        unknown = generator("app", "Generator")
    """
    found, _ = search(tmp_path, code)
    assert [(one.where, one.level) for one in found if one.rule == "TS001"] == [
        ("app.own", lint.WARNING),
        ("app.stateful", lint.WARNING),
        ("app.layer", lint.NOTE),
    ]


def test_every_rule_has_cases_both_ways() -> None:
    assert set(CASES) | {"TS000"} == set(lint.RULES)
    assert all(case.found and case.clean for case in CASES.values())


@pytest.mark.parametrize("rule", sorted(lint.RULES))
def test_every_rule_is_documented_by_its_title_and_with_an_example(rule: str) -> None:
    page = PAGE.read_text()
    section = re.search(rf"^## {rule}: (.+?)$(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL)
    assert section is not None
    assert section[1] == lint.RULES[rule].title
    if rule in CASES:
        assert "```python" in section[2]


def test_the_documentation_knows_no_other_rules() -> None:
    assert set(re.findall(r"TS\d{3}", PAGE.read_text())) == set(lint.RULES)


def _examples() -> list[tuple[str, str]]:
    sections = re.findall(r"^## (TS\d{3}): .+?$(.*?)(?=^##|\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return [(rule, code) for rule, text in sections for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL)]


@pytest.mark.parametrize(("rule", "code"), _examples(), ids=lambda value: value if len(value) < 8 else "")
def test_the_examples_of_the_documentation_are_found(tmp_path: Path, rule: str, code: str) -> None:
    found, _ = search(tmp_path, code, **VARIABLES)
    assert rule in {one.rule for one in found}
