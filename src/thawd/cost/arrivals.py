"""Provides arrival times of requests, for the simulations of `thawd cost`: read from a file, or generated."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from thawd.cost.keep_warm import Arrival
from thawd.cost.prices import CostError

PATTERNS = "every=SECONDS, poisson=PER_HOUR, office=PER_HOUR or bursts=SIZExSECONDS"
# Generated arrivals begin on this Monday, from which the pattern `office` counts its working days. The arrivals have
# real dates, so that schedules of provisioned concurrency apply to them.
BEGIN_S = datetime(2026, 1, 5, tzinfo=UTC).timestamp()
_MOST = 2_000_000
# End of the year 9999. A larger number cannot be meant as a time in seconds.
_LATEST_S = 253_402_300_800.0


def read_arrivals(path: Path, *, duration_s: float) -> list[Arrival]:
    """Read arrivals from a file. Each line has a time, in seconds or ISO 8601, and optionally a duration in ms.

    The duration is that of the invocation. Fields are separated by commas, semicolons, tabs or blanks. Lines that begin
    with ``#`` are ignored, and so is the first line if it is a heading.

    Args:
        path: the file.
        duration_s: duration of invocations whose line contains no duration, seconds.

    Raises:
        CostError: the file cannot be read, or a line is not an arrival.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CostError(
            f"the file of arrival times {path} cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from error
    found = []
    for number, line in enumerate(lines, 1):
        fields = re.split(r"[,;\t ]+", line.strip())
        if not fields[0] or fields[0].startswith("#"):
            continue
        try:
            at_s = _seconds(fields[0])
            took_s = float(fields[1]) / 1000 if len(fields) > 1 and fields[1] else duration_s
            if not (abs(at_s) < _LATEST_S and 0 <= took_s < _LATEST_S):  # written so that nan is refused too
                raise ValueError(line)  # noqa: TRY301
            found.append(Arrival(at_s, took_s))
        except ValueError:
            if number > 1:
                raise CostError(f"{path}, line {number}: {line!r} is not TIME or TIME,DURATION_MS") from None
    if not found:
        raise CostError(f"{path} contains no arrival times; write TIME or TIME,DURATION_MS on each line")
    return sorted(found, key=lambda arrival: arrival.at_s)


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


def make_arrivals(pattern: str, *, hours: float, duration_s: float, seed: int = 1) -> list[Arrival]:
    """Generate arrivals that follow a pattern. The same seed gives the same arrivals.

    ``every=60`` means one arrival every 60 seconds. ``poisson=30`` means 30 random arrivals an hour on average.
    ``office=30`` means the same, but only from Monday to Friday, 9 to 17 o'clock UTC. ``bursts=20x600`` means 20
    arrivals within a second, every 600 seconds.

    Raises:
        CostError: there is no such pattern, or it generates more than two million arrivals.
    """
    name, _, value = pattern.partition("=")
    make = _MAKERS.get(name)
    try:
        if make is None:
            raise ValueError(name)  # noqa: TRY301
        times = list(_bounded(make(value, random.Random(seed)), hours * 3600))
    except CostError:
        raise
    except ValueError:
        raise CostError(f"{pattern!r} is not an arrival pattern; write {PATTERNS}") from None
    return [Arrival(BEGIN_S + at_s, duration_s) for at_s in times]


def _bounded(times: Iterator[float], end_s: float) -> Iterator[float]:
    for count, at_s in enumerate(times):
        if at_s >= end_s:
            return
        if count >= _MOST:
            raise CostError(f"the pattern generates more than {_MOST:,} arrivals; simulate fewer hours")
        yield at_s


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < 1e9:
        raise ValueError(text)
    return number


def _every(value: str, _chance: random.Random) -> Iterator[float]:
    period_s = _positive(value)
    at_s = 0.0
    while True:
        yield at_s
        at_s += period_s


def _poisson(value: str, chance: random.Random) -> Iterator[float]:
    rate_hz = _positive(value) / 3600
    at_s = 0.0
    while True:
        at_s += chance.expovariate(rate_hz)
        yield at_s


def _office(value: str, chance: random.Random) -> Iterator[float]:
    """Yield random times during office hours: Monday to Friday, 9 to 17 o'clock. Time 0 is the beginning of a Monday.

    The random times count only office hours, 8 on each of 5 days a week, and are then moved to these hours.
    """
    for worked_s in _poisson(value, chance):
        days, in_day_s = divmod(worked_s, 8 * 3600)
        weeks, weekday = divmod(days, 5)
        yield (weeks * 7 + weekday) * 86_400 + 9 * 3600 + in_day_s


def _bursts(value: str, chance: random.Random) -> Iterator[float]:
    size, _, period = value.partition("x")
    count, period_s = int(size), _positive(period)
    if count < 1 or period_s < 1:
        raise ValueError(value)
    begin_s = 0.0
    while True:
        yield from sorted(begin_s + chance.random() for _ in range(count))
        begin_s += period_s


_MAKERS: dict[str, Callable[[str, random.Random], Iterator[float]]] = {
    "every": _every,
    "poisson": _poisson,
    "office": _office,
    "bursts": _bursts,
}
