"""Estimates of a deployment's cost, from the functions' local logs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from thawd import config
from thawd.config import Settings
from thawd.cost.prices import load_prices
from thawd.deploy.aws.estimate import Estimate, estimate

LINE = (
    "2026-11-20T10:00:0{second}.000Z\tstream\tREPORT RequestId: 00000000-0000-4000-8000-000000000000\t"
    "Duration: 100.00 ms\tBilled Duration: 100 ms\tMemory Size: {memory} MB\tMax Memory Used: 90 MB\t\n"
)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "thawd.toml").write_text(
        '[functions.f]\nhandler = "app.handler"\nmemory_mb = 1024\n[functions.g]\nhandler = "app.handler"\n'
    )
    logs = tmp_path / ".thawd" / "logs"
    logs.mkdir(parents=True)
    lines = [LINE.format(second=second, memory=1024 if second < 4 else 512) for second in range(6)]
    (logs / "f.log").write_text("".join(lines))
    return config.load(tmp_path / "thawd.toml", environ={})


def test_a_function_costs_what_its_invocations_of_the_present_memory_size_took(settings: Settings) -> None:
    prices = load_prices()
    measured, unmeasured = estimate(settings, prices, invocations=1e6)
    # A million invocations of 0.1 s with 1 GB.
    month = prices.million_requests + 1e5 * prices.x86_64.duration_gb_s[0][1]
    assert (measured.kind, measured.measured, measured.month) == ("on demand", 4, pytest.approx(month))
    assert unmeasured == Estimate(function="g", month=None)


def test_the_price_is_that_of_the_architecture(settings: Settings) -> None:
    prices = load_prices()
    arm = msgspec.structs.replace(
        settings, deployment=msgspec.structs.replace(settings.deployment, architecture="arm64")
    )
    month = prices.million_requests + 1e5 * prices.arm64.duration_gb_s[0][1]
    assert estimate(arm, prices, invocations=1e6)[0].month == pytest.approx(month)
