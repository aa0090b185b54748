"""Claims about monitoring files of ``thawd service``: a real Prometheus reads, alerts, and answers the dashboard."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from thawd.cli.service import FILES

from .conftest import Project, Running, eventually

PROGRAM = shutil.which("prometheus")
TRACE = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Prometheus; Debian: apt-get install prometheus")


class Prometheus:
    """Prometheus' HTTP API."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **query: str) -> Any:
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}") as answer:
            document = json.load(answer)
        assert document["status"] == "success"
        return document["data"]

    def values(self, query: str) -> list[Any]:
        """Return the value or the histogram of each series."""
        return [series.get("histogram") or series["value"] for series in self.get("query", query=query)["result"]]


@contextlib.contextmanager
def prometheus(folder: Path, running: Running, *options: str) -> Iterator[Prometheus]:
    """Run Prometheus with the configuration of `thawd service`, every second in place of every 15 s, until the end."""
    folder.mkdir()
    config = (FILES / "prometheus" / "prometheus.yml").read_text()
    config = config.replace("15s", "1s").replace("127.0.0.1:8350", running.url.removeprefix("http://"))
    (folder / "prometheus.yml").write_text(config)
    shutil.copy(FILES / "prometheus" / "thawd.rules.yml", folder)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = "{}:{}".format(*listening.getsockname())
    process = subprocess.Popen(
        [
            *(str(PROGRAM), f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"),
            *(f"--web.listen-address={address}", "--log.level=error", *options),
        ]
    )

    def is_up() -> bool:
        assert process.poll() is None, "Prometheus ended"
        with contextlib.suppress(OSError):
            return bool(api.values("thawd_build_info"))
        return False

    api = Prometheus(f"http://{address}")
    try:
        eventually(is_up, what="Prometheus' first reading")
        yield api
    finally:
        process.terminate()
        process.wait()


@pytest.fixture
def served(project: Project) -> Iterator[Running]:
    project.code("""
        def works(event, context):
            return event

        def fails(event, context):
            raise ValueError("no such pixel")
    """)
    project.config("""
        [functions.works]
        handler = "app.works"

        [functions.fails]
        handler = "app.fails"
        maximum_retry_attempts = 0

        [schedules.often]
        function = "works"
        schedule = "rate(1 minute)"
    """)
    with project.up() as running:
        yield running


def test_alerts_fire_and_every_panel_of_the_dashboard_shows_something(served: Running, tmp_path: Path) -> None:
    with prometheus(tmp_path / "prometheus", served, "--enable-feature=exemplar-storage") as api:
        before = api.values('thawd_events_given_up_total{function="fails"}')
        assert [value for _, value in before] == ["0"], "the first dead letter would not count as an increase"
        request = urllib.request.Request(
            f"{served.url}/2015-03-31/functions/works/invocations", data=b"1", headers={"X-Amzn-Trace-Id": TRACE}
        )
        with urllib.request.urlopen(request) as answer:
            assert answer.read() == b"1"
        served.client().invoke(FunctionName="fails", InvocationType="Event", Payload="{}")

        def firing() -> set[tuple[str, str]]:
            alerts = api.get("alerts")["alerts"]
            return {
                (alert["labels"]["alertname"], alert["labels"]["function"])
                for alert in alerts
                if alert["state"] == "firing"
            }

        eventually(lambda: ("ThawdDeadLetters", "fails") in firing(), what="the alert")
        assert {name for name, _ in firing()} == {"ThawdDeadLetters"}
        rules = [rule for group in api.get("rules")["groups"] for rule in group["rules"]]
        assert [rule["lastError"] for rule in rules if rule.get("lastError")] == []
        eventually(lambda: api.values('thawd:error_ratio:rate5m{function="fails"}'), what="a recorded series")
        found = api.get("query_exemplars", query="thawd_invocations_seconds_bucket", start="0", end="4000000000")
        traces = {exemplar["labels"]["trace_id"] for series in found for exemplar in series["exemplars"]}
        assert "5759e988bd862e3fe1be46a994272793" in traces
        # A query that selects what is unusual (`> 0`) may find nothing; every other panel shows something.
        queries = [
            target["expr"]
            for panel in json.loads((FILES / "grafana" / "thawd.json").read_text())["panels"]
            for target in panel.get("targets", [])
        ]
        filled = [
            query.replace("$__rate_interval", "1m").replace("$instance", ".*").replace("$function", ".*")
            for query in queries
            if not query.endswith("> 0") and "thawd_deliveries" not in query
        ]
        for query in filled:
            eventually(lambda query=query: api.values(query), what=f"a value of the panel {query}")


def test_native_histograms_arrive(served: Running, tmp_path: Path) -> None:
    for number in range(20):
        served.invoke("works", number)
    with prometheus(tmp_path / "prometheus", served, "--enable-feature=native-histograms") as api:
        query = 'thawd_invocations_seconds{function="works",kind="warm"}'
        [(_, histogram)] = api.values(query)
        assert int(histogram["count"]) >= 19  # the first was a thaw
        [(_, median)] = api.values(f"histogram_quantile(0.5, {query})")
        status = served.status()["functions"]["works"]["invocations"]["warm"]
        assert float(median) * 1000 == pytest.approx(status["p50_ms"], rel=0.05)
