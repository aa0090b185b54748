"""`thawd.snapshot.uniqueness`: real processes with the same memory, like thawed copies.

The copies are made by the C library's own fork, so that none of Python's fork handlers runs in them. They see the same
pid if a test says so. Both are as after a thaw, and unlike after `os.fork`.
"""

from __future__ import annotations

import os
import subprocess
import textwrap

import pytest

from tests.unit.interpreters_here import INTERPRETERS
from tests.unit.renewed_copies import ROOT, told
from thawd.snapshot import uniqueness


@pytest.fixture(scope="session")
def same_pid(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A library for LD_PRELOAD that gives every process the pid 4242. In containers, every process may have pid 1."""
    folder = tmp_path_factory.mktemp("same-pid")
    (folder / "pid.c").write_text("int getpid(void) { return 4242; }\n")
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", "pid.so", "pid.c"], cwd=folder, check=True)
    return str(folder / "pid.so")


STREAMS = """
    import random, ssl, tempfile, uuid
    import multiprocessing, multiprocessing.synchronize

    # What follows is cached or half used when the copies are made.
    random.gauss(0, 1)
    ssl.RAND_bytes(8)
    uuid.uuid1()
    next(tempfile._get_candidate_names())
    next(multiprocessing.synchronize.SemLock._rand)
    multiprocessing.current_process().authkey

    def streams():
        return {
            "random": random.random(),
            "random's spare deviate": random.gauss(0, 1),
            "OpenSSL": ssl.RAND_bytes(16).hex(),
            "uuid1": [uuid.uuid1().clock_seq for _ in range(5)],
            "temporary names": next(tempfile._get_candidate_names()),
            "names of semaphores": next(multiprocessing.synchronize.SemLock._rand),
            "authkey": bytes(multiprocessing.current_process().authkey).hex(),
        }

    def renewed():
        renew()
        return streams()

    assert os.getpid() == 4242
    tell([copy(streams), copy(streams), copy(renewed), copy(renewed)])
"""


@pytest.mark.parametrize("python", INTERPRETERS)
def test_copies_with_the_same_pid_differ_in_everything_random_and_only_when_renewed(same_pid: str, python: str) -> None:
    one, other, renewed, renewed_other = told(STREAMS, python=python, LD_PRELOAD=same_pid)
    assert one == other  # without renewal they are equal, which shows that the test can fail
    assert len(renewed) == 7
    for name, value in renewed.items():
        assert len({str(value), str(renewed_other[name]), str(one[name])}) == 3, name


NUMPY = """
    import numpy
    numpy.random.seed(7)
    if {other_kind}:
        numpy.random.set_bit_generator(numpy.random.PCG64(7))
    numpy.random.randn()

    def streams():
        return [numpy.random.randn(), float(numpy.random.rand()), int(numpy.random.randint(1 << 60))]

    def renewed():
        renew()
        return streams() + [type(numpy.random.mtrand._rand._bit_generator).__name__]

    tell([copy(streams), copy(streams), copy(renewed), copy(renewed)])
"""


@pytest.mark.parametrize("kind", ["MT19937", "PCG64"])
def test_copies_draw_different_numbers_from_numpys_global_generator_of_whatever_kind(kind: str) -> None:
    one, other, renewed, renewed_other = told(NUMPY.replace("{other_kind}", str(kind == "PCG64")))
    assert one == other
    assert renewed.pop() == renewed_other.pop() == kind
    for values in zip(one, renewed, renewed_other, strict=True):
        assert len(set(values)) == 3


def test_a_spare_normal_deviate_does_not_survive_the_renewal() -> None:
    code = """
        import random
        import numpy
        numpy.random.set_bit_generator(numpy.random.PCG64(7))
        random.gauss(0, 1)
        numpy.random.randn()
        assert random._inst.gauss_next is not None
        assert numpy.random.get_state(legacy=False)["has_gauss"]
        def renewed():
            renew()
            return [random.gauss(0, 1), float(numpy.random.randn())]
        tell([copy(renewed), copy(renewed)])
    """
    one, other = told(code)
    assert one[0] != other[0]
    assert one[1] != other[1]


@pytest.mark.parametrize("python", INTERPRETERS)
def test_what_is_not_loaded_is_neither_loaded_nor_named(python: str) -> None:
    code = """
        before = set(sys.modules)
        done = renew()
        tell([done, sorted(set(sys.modules) - before)])
    """
    done, loaded = told(code, python=python)
    assert set(done) <= {*uniqueness.RENEWALS, "threading"}
    assert not {"random", "numpy.random.mtrand", "tempfile", "uuid", "_ssl"} & set(done)
    assert loaded == []


FAKES = """
    import types

    class Log(list):
        def __call__(self, *args):
            self.append(args)

    torch, tensorflow, polars, binding = map(types.ModuleType, ["torch", "tensorflow", "polars", "binding"])
    torch.default_generator = types.SimpleNamespace(seed=Log())
    torch.seed = None  # must not be called
    tensorflow.random = types.SimpleNamespace(set_seed=Log())
    polars.set_random_seed = Log()
    binding._openssl = types.SimpleNamespace(lib=types.SimpleNamespace(RAND_add=Log()))
    sys.modules.update(
        {"torch": torch, "tensorflow": tensorflow, "polars": polars, "cryptography.hazmat.bindings._rust": binding}
    )
"""


@pytest.mark.parametrize("python", INTERPRETERS)
def test_no_other_thread_gets_the_gil_while_a_copy_is_renewed(python: str) -> None:
    """In a copy the other threads wait, some of them for the GIL. A renewal that gave it up could wait for them."""
    turns = told(
        """
        import logging, platform, random, ssl, tempfile, threading, time, uuid
        import multiprocessing.process, multiprocessing.synchronize
        for name in "numpy.random", "cryptography.hazmat.bindings._rust":
            try:
                __import__(name)
            except ImportError:
                pass

        turns = 0

        def count():
            global turns
            while True:
                turns += 1
                time.sleep(0)

        for _ in range(3):
            threading.Thread(target=count, daemon=True).start()
        original = {"HOME": os.environ.get("HOME", ""), "TZ": "UTC", "TMPDIR": "/tmp"}
        uuid.uuid1(), tempfile.gettempdir(), platform.node()
        sys.setswitchinterval(60)
        time.sleep(0.01)
        before = turns
        uniqueness.environment({"TZ": "CET", "TMPDIR": "/var/tmp", "NEW": "new"}, original=original)
        renewed = renew()
        after = turns
        sys.setswitchinterval(0.005)
        tell([before > 0, after - before, sorted(renewed)])
        """,
        python=python,
    )
    standard = {"random", "_ssl", "uuid", "tempfile", "logging", "platform", "threading", "multiprocessing.process"}
    assert turns[:2] == [True, 0]
    assert standard < set(turns[2])


def test_libraries_are_given_fresh_seeds_of_their_full_width() -> None:
    code = """
        names = renew()
        renew()
        seeds = [polars.set_random_seed, tensorflow.random.set_seed]
        entropy = [args[0] for args in binding._openssl.lib.RAND_add]
        tell([names, torch.default_generator.seed, seeds, [len(set(entropy)), len(entropy[0])]])
    """
    names, torch, seeds, entropy = told(FAKES + textwrap.indent(textwrap.dedent(code), "    "))
    assert {"torch", "tensorflow", "polars", "cryptography.hazmat.bindings._rust"} <= set(names)
    assert torch == [[], []]
    for calls in seeds:
        first, second = (call[0] for call in calls)
        assert first != second
        assert first.bit_length() > 20
    assert entropy == [2, 48]


def test_a_library_that_refuses_is_named_and_the_others_are_renewed_nevertheless() -> None:
    code = """
        import random
        def refuse():
            raise RuntimeError("no entropy")
        torch.default_generator.seed = refuse
        random.seed(1)
        expected = random.random()
        random.seed(1)
        try:
            renew()
        except uniqueness.RenewalError as error:
            tell([str(error), random.random() == expected, len(polars.set_random_seed)])
    """
    text, unchanged, others = told(FAKES + textwrap.indent(textwrap.dedent(code), "    "))
    assert "torch (RuntimeError: no entropy)" in text
    assert "snapshot = false" in text
    assert not unchanged
    assert others == 1


def test_an_authkey_that_the_function_chose_and_a_temporary_folder_it_chose_stay() -> None:
    code = """
        import multiprocessing, tempfile
        multiprocessing.current_process().authkey = b"agreed with somebody"
        multiprocessing.current_process()._config["tempdir"] = "/tmp/pymp-1"
        tempfile.tempdir = "/chosen"
        renew()
        current = multiprocessing.current_process()
        tell([bytes(current.authkey).decode(), "tempdir" in current._config, tempfile.tempdir])
    """
    assert told(code) == ["agreed with somebody", False, "/chosen"]


@pytest.mark.parametrize("python", INTERPRETERS)
def test_uuid1_keeps_the_network_cards_address_and_asks_no_program_for_it(python: str) -> None:
    code = """
        import subprocess, uuid
        before = uuid.uuid1()
        def refused(*args, **kwargs):
            raise AssertionError("a program was started")
        subprocess.Popen = refused
        renew()
        after = [uuid.uuid1() for _ in range(1000)]
        tell([before.node, after[0].node, len(set(after)), after[0].version, uuid.getnode()])
    """
    before, after, different, version, getnode = told(code, python=python)
    is_random = before >> 40 & 1
    assert (after != before) if is_random else (after == before)
    assert getnode == after
    assert (different, version) == (1000, 1)


@pytest.mark.parametrize("python", INTERPRETERS)
def test_threads_have_their_new_native_ids_and_none_where_they_are_unknown(python: str) -> None:
    code = """
        import threading
        done = threading.Event()
        threads = [threading.Thread(target=done.wait, daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        known, unknown = threads
        ended = threading.Thread(target=int)
        ended.start()
        ended.join()
        before = ended.native_id
        new = {known.native_id: 777001}
        def ids():
            uniqueness.renew(OLD_PID, thread_ids=lambda tid: new.get(tid, 0))
            main = threading.main_thread()
            return [known.native_id, unknown.native_id, main.native_id == os.getpid() == threading.get_native_id(),
                    main.ident == threading.get_ident(), ended.native_id == before, main.native_id != OLD_PID]
        tell(copy(ids))
        done.set()
    """
    assert told(code, python=python) == [777001, None, True, True, True, True]


def test_a_main_thread_that_is_not_the_renewing_one_is_given_the_pid() -> None:
    code = """
        import threading
        main = threading.main_thread()
        main._native_id = OLD_PID
        os.getpid = lambda: 777002
        thread = threading.Thread(target=renew)
        thread.start()
        thread.join()
        tell(main.native_id)
    """
    assert told(code) == 777002


CHILDREN = """
    import multiprocessing, multiprocessing.util, signal
    # A signal that is blocked stays pending, where it can be seen.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    child = multiprocessing.get_context("fork").Process(target=signal.pause, daemon=True)
    child.start()

    def end_of_a_copy():
        children = None
        if {renews}:
            renew()
            children = len(multiprocessing.active_children())
        multiprocessing.util._exit_function()
        return children

    answer = copy(end_of_a_copy)
    with open(f"/proc/{child.pid}/status") as file:
        pending = next(int(line.split()[1], 16) for line in file if line.startswith("ShdPnd"))
    child.kill()
    child.join()
    tell([answer, bool(pending >> signal.SIGTERM - 1 & 1)])
"""


@pytest.mark.parametrize("python", INTERPRETERS)
def test_a_copy_that_ends_does_not_signal_the_children_of_the_frozen_process(same_pid: str, python: str) -> None:
    assert told(CHILDREN.replace("{renews}", "True"), python=python, LD_PRELOAD=same_pid) == [0, False]
    assert told(CHILDREN.replace("{renews}", "True"), python=python) == [0, False]


def test_a_copy_that_is_not_renewed_does_signal_them(same_pid: str) -> None:
    assert told(CHILDREN.replace("{renews}", "False"), LD_PRELOAD=same_pid) == [None, True]


@pytest.mark.parametrize("python", INTERPRETERS)
def test_asyncio_works_in_a_copy_of_a_process_that_has_run_a_loop(python: str) -> None:
    code = """
        import asyncio
        async def answer():
            assert asyncio.get_running_loop().is_running()
            await asyncio.sleep(0)
            return os.getpid()
        asyncio.run(answer())
        def runs():
            renew()
            return asyncio.run(answer()) == os.getpid() != OLD_PID
        tell(copy(runs))
    """
    assert told(code, python=python) is True


@pytest.mark.parametrize("python", INTERPRETERS)
def test_log_records_count_from_the_thaw_and_the_machines_name_is_asked_anew(python: str) -> None:
    code = """
        import logging, platform, time
        platform.uname()
        logging._startTime = type(logging._startTime)(1)
        renew()
        record = logging.LogRecord("a", 10, "p", 1, "m", None, None)
        os.uname = lambda: os.uname_result(("Linux", "another", "r", "v", "x86_64"))
        tell([0 <= record.relativeCreated < 60_000, platform.node()])
    """
    assert told(code, python=python) == [True, "another"]


def test_a_function_may_have_modules_named_logging_and_platform_of_its_own() -> None:
    code = """
        import types
        sys.modules["logging"] = types.ModuleType("logging")
        sys.modules["platform"] = types.ModuleType("platform")
        tell(renew())
    """
    assert {"logging", "platform"} <= set(told(code))


@pytest.mark.parametrize("name", [*uniqueness.RENEWALS, "threading"])
def test_every_renewal_is_documented(name: str) -> None:
    assert f"`{name}`" in (ROOT / "docs" / "explanation" / "uniqueness.md").read_text()
