"""What `make bench` judges and shows, and how it comes to the environments that it needs."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from benchmarks import __main__ as program
from benchmarks import load, machine, needs, peer_servers, peers, progress, report, serving
from benchmarks.load import Measured
from benchmarks.report import AT_LEAST, AT_MOST, BenchmarkError, Figure, Skipped

from thawd.bench import memory
from thawd.bench.samples import OK, Samples


@pytest.fixture(autouse=True)
def _without_repeated_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no thread that would still print the progress of a step when its test has ended."""
    monkeypatch.setattr(progress._now, "repeats", True)


@pytest.mark.parametrize(
    ("figure", "holds", "shown"),
    [
        (Figure("f", 2.0, "x", AT_MOST, 3.0), True, "holds"),
        (Figure("f", 4.0, "x", AT_MOST, 3.0), False, "FAILS"),
        (Figure("f", 4.0, "x", AT_MOST, 5.0, target=3.0), True, "target at most 3 x: not yet"),
        (Figure("f", 4.0, "x", AT_LEAST, target=3.0), True, "target at least 3 x: reached"),
        (Figure("f", 2.0, "x", AT_LEAST, target=3.0), True, "target at least 3 x: not yet"),
        (Figure("f", 1.0, "x", AT_LEAST, 2.0, target=3.0), False, "FAILS"),
    ],
)
def test_a_bound_fails_and_a_target_is_only_shown(figure: Figure, holds: bool, shown: str) -> None:
    assert figure.holds is holds
    assert shown in report.show("title", [figure])


def module(*figures: Figure, error: Exception | None = None) -> SimpleNamespace:
    """A benchmark with these figures, or one that raises `error`."""

    def measure() -> list[Figure]:
        if error is not None:
            raise error
        return list(figures)

    return SimpleNamespace(TITLE="a title", measure=measure)


def test_what_cannot_be_measured_is_said_and_the_rest_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given a benchmark that lacks its environment before one that does not
    modules = {"lacking": module(error=Skipped("no package index")), "other": module(Figure("rate", 7.0, "x"))}
    monkeypatch.setattr(program, "BENCHMARKS", modules)
    monkeypatch.setattr(program, "RESULTS", serving.BUILD / "unit-test-bench.json")
    # When both run
    status = program.main([])
    # Then the second one is measured, and the first one is named at the end
    said = capsys.readouterr()
    assert status == 0
    assert "no package index" in said.out
    assert "7 x" in said.out
    assert "not measured: lacking" in said.out
    assert "all bounds hold" not in said.out
    assert "2 of 2, other" in said.err
    program.RESULTS.unlink()


def test_a_bound_that_does_not_hold_and_a_benchmark_that_breaks_end_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "RESULTS", serving.BUILD / "unit-test-bench.json")
    for broken in (module(Figure("rate", 7.0, "x", AT_MOST, 6.0)), module(error=BenchmarkError("no server"))):
        monkeypatch.setattr(program, "BENCHMARKS", {"one": broken})
        assert program.main([]) == 1
        assert "FAILS" in capsys.readouterr().out
    program.RESULTS.unlink()


def test_each_round_is_said_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(progress.rounds(2, "load")) == [0, 1]
    said = capsys.readouterr()
    assert "load 1 of 2" in said.err
    assert "load 2 of 2" in said.err
    assert not said.out


def test_bounds_in_time_are_never_below_those_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "REFERENCE_MS", 1e9)  # a machine that is far faster than the reference
    assert machine.bound(15.0) == 15.0
    monkeypatch.setattr(machine, "REFERENCE_MS", 1e-3)  # a far slower one
    assert machine.bound(15.0) > 15.0


# -- peers


def measured(rate_per_s: float, p50_us: float, p99_us: float) -> Measured:
    return Measured(p50_us=p50_us, p99_us=p99_us, rate_per_s=rate_per_s, requests=1)


def test_each_figure_compares_with_the_peer_that_is_best_at_it() -> None:
    # Given a peer with the higher rate, and one with the shorter latencies
    work = peers.Work(
        "classifier",
        (peer_servers.Setting("LitServe", "classifier"), peer_servers.Setting("BentoML", "classifier")),
        memory_mb=128,
        threads=(1,),
        is_slow=False,
        targets={"rate": 1.5, "p50": 0.8, "p99": 0.8},
        held=frozenset({(16, "p99")}),
    )
    one = {
        peers.OURS: measured(300, 100, 400),
        peers.ALL: measured(150, 1, 1),
        "LitServe": measured(200, 400, 800),
        "BentoML": measured(100, 200, 500),
    }
    # When the figures are made
    rate, p50, p99, of_all = peers._figures(work, {16: [one, one, one]})
    # Then each is the ratio to the better of the two
    assert [each.value for each in (rate, p50, p99, of_all)] == [1.5, 0.5, 0.8, 2.0]
    assert "of LitServe" in rate.note
    assert "of BentoML" in p50.note
    # And a target that is held is a bound
    assert (p99.bound, p99.target) == (0.8, None)
    assert (rate.bound, rate.target) == (None, 1.5)
    assert of_all.bound is None


def test_each_figure_is_that_of_the_best_own_setting() -> None:
    work = peers.Work(
        "resnet50",
        (peer_servers.Setting("LitServe", "resnet50"),),
        memory_mb=128,
        threads=(1, 2),
        is_slow=True,
        targets={"rate": 1.0},
        held=frozenset(),
    )
    one = {
        peers.OURS: measured(300, 400, 1000),
        f"{peers.OURS}, 2 threads": measured(200, 100, 200),
        peers.ALL: measured(300, 1, 1),
        "LitServe": measured(200, 200, 400),
    }
    rate, p50, p99, of_all = peers._figures(work, {1: [one, one, one]})
    assert [each.value for each in (rate, p50, p99, of_all)] == [1.5, 0.5, 0.5, 1.0]
    assert rate.note.startswith("300/s against 200/s")
    assert "with 2 threads" in p99.note


def test_targets_that_are_held_exist() -> None:
    for work in peers.WORKS:
        assert {key for _, key in work.held} <= set(work.targets)
        assert {clients for clients, _ in work.held} <= set(peers.CLIENTS)


def test_no_process_of_a_peer_outlives_it_even_one_of_its_own_session() -> None:
    # Given a server with a process in a session of its own, which no signal to the server's group reaches
    start = "subprocess.Popen(['sleep', '1000'], start_new_session=True)"
    code = f"import subprocess; child = {start}; print(child.pid, flush=True); child.wait()"
    server = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    pid = int(server.stdout.readline())
    assert pid in memory.descendants(server.pid)
    pidfd = os.pidfd_open(pid)
    # When the server is ended
    peer_servers._end(server)
    # Then both have ended
    assert server.returncode is not None
    assert select.select([pidfd], [], [], 0)[0]
    os.close(pidfd)
    server.stdout.close()


@pytest.mark.parametrize("document", [{"label": "three"}, {"digit": 3}, [3]])
def test_a_server_that_answers_without_a_label_is_not_measured(document: object) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(document).encode())

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(BenchmarkError, match="answered"):
            peer_servers.label(f"http://127.0.0.1:{server.server_port}/predict")
        thread.join()


def test_a_server_that_takes_no_connections_yet_has_no_label() -> None:
    assert peer_servers.label(f"http://127.0.0.1:{peer_servers._free_port()}/predict") is None


def test_the_99th_percentile_is_the_latency_that_one_in_a_hundred_exceeds(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = Samples()
    for number in range(1, 101):
        samples.add(0, 0, number * 1_000_000, OK, b"")

    class Loop:
        def __init__(self, *_: object, **__: object) -> None: ...

        async def run(self, connections: int) -> Samples:
            return samples

    monkeypatch.setattr(load, "ClosedLoop", Loop)
    seen = load.drive("http://127.0.0.1:1/", body=b"{}", connections=1, duration_s=1.0)
    assert (seen.p50_us, seen.p99_us, seen.rate_per_s) == (50_500.0, 99_000.0, 1000.0)


# -- environments


MAKEFILE = """
.venv-peers/.installed:
\tmkdir -p .venv-peers/bin
\tprintf '#!/bin/sh\\nexec {python} "$$@"\\n' >.venv-peers/bin/python
\tchmod +x .venv-peers/bin/python
\t{then}
\ttouch $@
"""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a Makefile of its own; json stands for the packages."""
    monkeypatch.setattr(serving, "REPOSITORY", tmp_path)
    monkeypatch.setattr(serving, "BUILD", tmp_path / "build")
    monkeypatch.setattr(needs, "_PEERS", ("json",))
    (tmp_path / "Makefile").write_text(MAKEFILE.format(python=sys.executable, then="true"))
    return tmp_path


def test_an_environment_is_made_by_its_rule(repository: Path) -> None:
    python = needs.peers()
    assert python == str(repository / ".venv-peers" / "bin" / "python")
    assert not needs.missing(python, ["json"])


def test_an_environment_that_cannot_be_made_skips_the_measurement_with_the_reason(repository: Path) -> None:
    # Given an installation that breaks off when the interpreter is there already
    (repository / "Makefile").write_text(MAKEFILE.format(python=sys.executable, then="@echo no such index >&2; exit 1"))
    # Then the incomplete environment is not used, the second time neither
    for _ in range(2):
        with pytest.raises(Skipped, match="no such index"):
            needs.peers()


def test_an_environment_that_was_complete_is_used_where_it_cannot_be_brought_up_to_date(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given a complete environment, and a newer pyproject.toml without a package index
    python = needs.peers()
    makefile = MAKEFILE.format(python=sys.executable, then="@echo no such index >&2; exit 1")
    (repository / "Makefile").write_text(makefile.replace(".installed:", ".installed: pyproject.toml"))
    (repository / "pyproject.toml").touch()
    os.utime(repository / ".venv-peers" / ".installed", (0, 0))
    # Then it is used, and that is said
    assert needs.peers() == python
    assert "used as it is" in capsys.readouterr().err


def test_an_environment_without_a_package_is_not_used(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "_PEERS", ("json", "no_such_package"))
    with pytest.raises(Skipped, match="lacks no_such_package"):
        needs.peers()


def test_a_named_interpreter_without_the_libraries_skips_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(needs.LIBRARIES_VARIABLE, "/no/such/python")
    with pytest.raises(Skipped, match="lacks torch"):
        needs.libraries()
