"""The init phase, trace headers, and what is reported and billed."""

from __future__ import annotations

import base64
import math
import re
import time
import urllib.request
from pathlib import Path

import pytest

from tests.integration.conftest import Project, eventually

TRACE = re.compile(r"Root=1-[0-9a-f]{8}-[0-9a-f]{24};Parent=[0-9a-f]{16};Sampled=0;Lineage=1:[0-9a-f]{8}:0")


@pytest.mark.parametrize("options", ["", "snapshot = false\n"])
def test_the_first_invocation_runs_an_init_again_that_failed_at_publication(
    project: Project, tmp_path: Path, options: str
) -> None:
    tried = tmp_path / "tried"
    project.code(
        f"""
        import pathlib
        tried = pathlib.Path({str(tried)!r})
        if not tried.exists():
            tried.touch()
            raise ConnectionError("not yet")
        def handler(event, context):
            return "served"
        """
    )
    project.config(f'[functions.f]\nhandler = "app.handler"\n{options}')
    with project.up() as server:
        if not options:
            assert server.function("f")["state"] == "Failed"
            assert server.invoke("f") == ("served", None)
        else:
            # Publishing runs no code here, so only the first invocation finds the error.
            assert server.invoke("f")[0]["errorType"] == "ConnectionError"
            eventually(lambda: server.invoke("f") == ("served", None), what="the next try")
        eventually(lambda: "REPORT RequestId" in project.command("logs", "f", "--raw").stdout, what="the log")
        log = project.command("logs", "f", "--raw").stdout
        (failed,) = [line for line in log.splitlines() if line.startswith("INIT_REPORT ")]
        assert re.fullmatch(
            r"INIT_REPORT Init Duration: [\d.]+ ms\tPhase: init\tStatus: error\tError Type: ConnectionError", failed
        )
        assert log.index("ConnectionError: not yet") < log.index("INIT_REPORT")


def test_an_init_that_takes_too_long_is_reported_as_a_timeout(project: Project) -> None:
    project.code("import time\ntime.sleep(30)\n")
    project.config('[functions.f]\nhandler = "app.handler"\ninit_timeout_s = 1\nsnapshot = false\n')
    with project.up() as server:
        document, error = server.invoke("f")
        assert (document["errorType"], error) == ("Sandbox.Timedout", "Unhandled")
        report = re.compile(r"INIT_REPORT Init Duration: [1-9]\d{3,}\.\d\d ms\tPhase: init\tStatus: timeout\n")
        eventually(lambda: report.search(project.command("logs", "f", "--raw").stdout), what="the report in the log")


def test_every_invocation_has_a_trace_header_and_one_that_is_given_is_passed_through(project: Project) -> None:
    project.code("import os\ndef handler(event, context):\n    return os.environ['_X_AMZN_TRACE_ID']\n")
    project.config('[functions.f]\nhandler = "app.handler"\n[routes]\n"GET /trace" = "f"\n')
    with project.up() as server:
        begun_s = int(time.time())
        made = [server.invoke("f")[0] for _ in range(3)]
        assert all(TRACE.fullmatch(header) for header in made)
        assert len(set(made)) == 3
        assert begun_s <= int(made[0].split("-")[1], 16) <= time.time()
        given = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"
        for path, data in (("/2015-03-31/functions/f/invocations", b"{}"), ("/trace", None)):
            request = urllib.request.Request(server.url + path, data=data, headers={"X-Amzn-Trace-Id": given})
            with urllib.request.urlopen(request, timeout=30) as answer:
                seen = answer.read().decode().strip('"')
                assert re.fullmatch(given + ";Lineage=1:[0-9a-f]{8}:0", seen)
                if data is not None:
                    assert answer.headers["X-Amzn-Trace-Id"] == seen
        with urllib.request.urlopen(f"{server.url}/trace", timeout=30) as answer:
            assert TRACE.fullmatch(answer.read().decode().strip('"'))


def test_billed_duration_is_rounded_up_and_counts_the_init_of_a_cold_start(project: Project) -> None:
    project.code("import time\ntime.sleep(0.2)\ndef handler(event, context):\n    time.sleep(0.0123)\n")
    project.config('[functions.f]\nhandler = "app.handler"\nsnapshot = false\n')
    with project.up() as server:
        for is_first in (True, False):
            answer = server.client().invoke(FunctionName="f", LogType="Tail")
            report = base64.b64decode(answer["LogResult"]).decode().splitlines()[-1]
            figures = dict(re.findall(r"([A-Z][A-Za-z ]+): ([\d.]+) ms", report))
            init_ms = float(figures.get("Init Duration", 0))
            assert (init_ms > 200) == is_first
            # Both figures are printed with two decimals.
            assert abs(int(figures["Billed Duration"]) - math.ceil(float(figures["Duration"]) + init_ms)) <= 1
            assert int(figures["Billed Duration"]) >= float(figures["Duration"]) + init_ms - 0.02


def test_reports_say_how_an_invocation_ended_that_did_not_end_well(project: Project) -> None:
    project.code("import os, time\ndef handler(event, context):\n    os._exit(1) if event else time.sleep(9)\n")
    project.config('[functions.f]\nhandler = "app.handler"\ntimeout_s = 1\n')
    with project.up() as server:
        for payload, said in ((b"1", "Status: error\tError Type: Runtime.ExitError\t"), (b"0", "Status: timeout\t")):
            answer = server.client().invoke(FunctionName="f", LogType="Tail", Payload=payload)
            assert base64.b64decode(answer["LogResult"]).decode().splitlines()[-1].endswith(f"\t{said}")


def test_an_environment_may_open_1024_files(project: Project) -> None:
    project.code(
        """
        import resource
        def handler(event, context):
            return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        """
    )
    project.config('[functions.f]\nhandler = "app.handler"\n[functions.c]\nhandler = "app.handler"\nsnapshot = false\n')
    with project.up() as server:
        assert [server.invoke(name)[0] for name in ("f", "c")] == [1024, 1024]
