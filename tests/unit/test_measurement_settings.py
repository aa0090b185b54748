"""`thawd.server.measurement.serving`: servers for measurements have nothing to do with the machines of a cluster."""

from __future__ import annotations

from pathlib import Path

from thawd import config
from thawd.server.measurement.serving import alone

CONFIG = """
[server]
state = "postgresql://thawd@10.0.0.9/thawd"
durability = "cluster"

[cluster]
name = "a"
key = "a-key-of-more-than-sixteen-characters"
machines = { a = "127.0.0.1:7000", b = "127.0.0.1:7001" }

[functions.f]
handler = "app.handler"
"""


def test_a_server_for_measurements_joins_no_cluster_and_takes_over_no_events(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("def handler(event, context):\n    return event\n")
    (tmp_path / "thawd.toml").write_text(CONFIG)
    configured = config.load(tmp_path / "thawd.toml", environ={})
    assert configured.server.state is not None
    assert configured.cluster is not None
    settings = alone(configured, configured.functions.values(), data=tmp_path / "data", environments=1)
    assert (settings.cluster, settings.server.state, settings.server.durability) == (None, None, "machine")
