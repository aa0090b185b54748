"""What `thawd tune` chooses among memory sizes, and its page."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thawd.cli.tune import _noise
from thawd.cost.prices import load_prices
from thawd.cost.records import Measured
from thawd.cost.tune import Size, Tuned, default_sizes, interval_of, priced
from thawd.cost.tune_page import page

PRICES = load_prices()


def size(memory_mb: int, warm_ms: float) -> Size:
    measured = Measured(memory_mb=memory_mb, warm_ms=warm_ms, cold_ms=warm_ms + 1000, count=10)
    return Size(
        memory_mb=memory_mb, cpus=memory_mb / 1769, measured=measured, warm_median_ms=warm_ms, most_memory_mb=90
    )


def tuned(*sizes: Size, weight: float = 0.5, function: str = "f") -> Tuned:
    return priced(function, sizes, PRICES, architecture="x86_64", limited=True, weight=weight)


def test_cheapest_fastest_and_balanced_by_hand() -> None:
    # GB-ms: 128 MB x 1,000 ms = 125, 512 x 300 = 150, 1,769 x 200 = 345.5. With the price per request, a million
    # invocations cost 2.283, 2.7 and 5.958. Balanced: 0.383 + 1, 0.453 + 0.3, 1 + 0.2.
    found = tuned(size(128, 1000), size(512, 300), size(1769, 200))
    assert found.per_million == {
        128: pytest.approx(2.283, abs=0.001),
        512: pytest.approx(2.7, abs=0.001),
        1769: pytest.approx(5.958, abs=0.001),
    }
    assert (found.cheapest, found.fastest, found.balanced) == (128, 1769, 512)


def test_the_weight_goes_from_the_fastest_to_the_cheapest() -> None:
    sizes = (size(128, 1000), size(512, 300), size(1769, 200))
    assert tuned(*sizes, weight=0.0).balanced == 1769
    assert tuned(*sizes, weight=1.0).balanced == 128


def test_a_size_that_failed_is_not_chosen_and_all_may_fail() -> None:
    failed = Size(memory_mb=128, cpus=0.07, failure="Runtime.ExitError <script>")
    found = tuned(failed, size(512, 300))
    assert (found.cheapest, found.fastest, found.balanced) == (512, 512, 512)
    nothing = tuned(failed)
    assert (nothing.cheapest, nothing.fastest, nothing.balanced) == (None, None, None)
    text = page(nothing, prices_said="x", runs=1)
    assert "the function failed at every size" in text.lower()
    assert "<script>" not in text


def test_sizes_that_may_be_equally_fast_are_named() -> None:
    sizes = [size(128, 300), size(256, 103), size(512, 100), size(1024, 101)]
    known = [
        msgspec.structs.replace(each, warm_interval_ms=(each.measured.warm_ms - 2, each.measured.warm_ms + 2))
        for each in sizes
        if each.measured is not None
    ]
    found = tuned(*known)
    assert found.fastest == 512
    assert found.as_fast == (256, 512, 1024)
    said = _noise(found)
    assert said is not None
    assert said.startswith("256-1,024 MB are within noise")
    assert "256 MB costs least" in said
    assert tuned(known[0], known[2]).as_fast == (512,)
    assert _noise(tuned(known[0], known[2])) is None
    assert "too few runs" in (_noise(tuned(*sizes)) or "")


def test_the_interval_of_a_mean_contains_it_and_narrows_with_more_runs() -> None:
    few = [100.0 + step % 7 for step in range(20)]
    low, high = interval_of(few) or (0.0, 0.0)
    assert low < 103 < high
    narrow = interval_of(few * 20) or (0.0, 0.0)
    assert narrow[1] - narrow[0] < (high - low) / 2
    assert interval_of([100.0] * 4) is None


def test_default_sizes_are_those_for_which_there_are_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    assert default_sizes() == [128, 256, 512, 1024, 1536, 1769]
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert default_sizes()[-1] == 3008


@given(
    st.dictionaries(st.integers(128, 10_240), st.floats(0.5, 900_000), min_size=1, max_size=12),
    st.floats(0, 1),
)
def test_the_choice_is_one_of_the_sizes_and_the_plot_stays_within_its_frame(
    times: dict[int, float], weight: float
) -> None:
    found = tuned(*(size(memory_mb, warm_ms) for memory_mb, warm_ms in sorted(times.items())), weight=weight)
    assert {found.cheapest, found.fastest, found.balanced} <= set(times)
    text = page(found, prices_said="us-east-1, prices of 2026-09 in USD", runs=10)
    svg = ET.fromstring(text[text.index("<svg") : text.index("</svg>") + 6])
    for circle in svg.iter("circle"):
        assert 74 <= float(circle.attrib["cx"]) <= 760 - 74
        assert 83 <= float(circle.attrib["cy"]) <= 420 - 57


def test_names_are_escaped() -> None:
    assert "<b>" not in page(tuned(size(128, 5), function="<b>"), prices_said="<b>", runs=1)
