"""When a function is invoked: recorded in a file, or made by a rule."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from thawd.cost.keep_warm import Arrival
from thawd.cost.prices import CostError

PATTERNS = "every=SECONDS, poisson=PER_HOUR, office=PER_HOUR or bursts=SIZExSECONDS"
# Made arrivals begin on a Monday, so that schedules of workdays mean something.
BEGIN_S = datetime(2026, 1, 5, tzinfo=UTC).timestamp()
_MOST = 2_000_000
# Year 9999; what is later is no time in seconds.
_LATEST_S = 253_402_300_800.0


def read_arrivals(path: Path, *, duration_s: float) -> list[Arrival]:
    """Arrivals from a file: a line each, a time in seconds or as ISO 8601, and the duration in ms where it is known.

    Fields are separated by commas, tabs or blanks; lines that begin with ``#``, and a heading, are passed over.

    Args:
        path: the file.
        duration_s: of those that do not tell, seconds.

    Raises:
        CostError: it cannot be read, or a line is none.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CostError(f"the arrivals {path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    found = []
    for number, line in enumerate(lines, 1):
        fields = re.split(r"[,;\t ]+", line.strip())
        if not fields[0] or fields[0].startswith("#"):
            continue
        try:
            at_s = _seconds(fields[0])
            took_s = float(fields[1]) / 1000 if len(fields) > 1 and fields[1] else duration_s
            if not (abs(at_s) < _LATEST_S and 0 <= took_s < _LATEST_S):  # nan neither
                raise ValueError(line)  # noqa: TRY301
            found.append(Arrival(at_s, took_s))
        except ValueError:
            if number > 1:
                raise CostError(f"{path}, line {number}: {line!r} is not TIME or TIME,DURATION_MS") from None
    if not found:
        raise CostError(f"{path} holds no arrivals")
    return sorted(found, key=lambda arrival: arrival.at_s)


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


def make_arrivals(pattern: str, *, hours: float, duration_s: float, seed: int = 1) -> list[Arrival]:
    """Arrivals by a rule, the same for the same seed.

    ``every=60`` is a timer; ``poisson=30`` is by chance, 30 an hour; ``office=30`` the same, Monday to Friday, 9 to
    17 o'clock UTC, and nothing else; ``bursts=20x600`` is 20 within a second, every 600 seconds.

    Raises:
        CostError: there is no such rule, or it makes more than two million.
    """
    name, _, given = pattern.partition("=")
    make = _MAKERS.get(name)
    try:
        if make is None:
            raise ValueError(name)  # noqa: TRY301
        times = list(_bounded(make(given, random.Random(seed)), hours * 3600))
    except CostError:
        raise
    except ValueError:
        raise CostError(f"{pattern!r} is no pattern of arrivals; there are {PATTERNS}") from None
    return [Arrival(BEGIN_S + at_s, duration_s) for at_s in times]


def _bounded(times: Iterator[float], end_s: float) -> Iterator[float]:
    for count, at_s in enumerate(times):
        if at_s >= end_s:
            return
        if count >= _MOST:
            raise CostError(f"the pattern makes more than {_MOST:,} arrivals; take fewer hours")
        yield at_s


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e9:
        raise ValueError(text)
    return value


def _every(given: str, _chance: random.Random) -> Iterator[float]:
    period_s = _positive(given)
    at_s = 0.0
    while True:
        yield at_s
        at_s += period_s


def _poisson(given: str, chance: random.Random) -> Iterator[float]:
    rate_hz = _positive(given) / 3600
    at_s = 0.0
    while True:
        at_s += chance.expovariate(rate_hz)
        yield at_s


def _office(given: str, chance: random.Random) -> Iterator[float]:
    """Poisson on the time that counts: 8 hours of 5 days a week."""
    for worked_s in _poisson(given, chance):
        days, in_day_s = divmod(worked_s, 8 * 3600)
        weeks, weekday = divmod(days, 5)
        yield (weeks * 7 + weekday) * 86_400 + 9 * 3600 + in_day_s


def _bursts(given: str, chance: random.Random) -> Iterator[float]:
    size, _, period = given.partition("x")
    count, period_s = int(size), _positive(period)
    if count < 1 or period_s < 1:
        raise ValueError(given)
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
