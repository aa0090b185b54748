"""Computes the times at which an open loop sends its requests.

An open loop sends at times that do not depend on the answers, like independent users. The functions return offsets: the
times in seconds since the beginning of the load, ascending. Random times come from a random generator with a given
seed, so that a measurement can be repeated with the same times.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from pathlib import Path

from thawd.errors import StoreError

PATTERNS = ("constant", "poisson", "bursts")


def arrivals(
    pattern: str, *, rate_per_s: float, requests: int | None, duration_s: float | None, burst: int, seed: int
) -> Iterator[float]:
    """Generate offsets that follow a pattern.

    Args:
        pattern: one of `PATTERNS`: with ``constant``, the intervals between requests are equal; with ``poisson``,
            they are exponentially distributed, like those of independent callers; ``bursts`` sends groups of requests
            at equal intervals.
        rate_per_s: requests a second on average, above 0.
        requests: largest number of requests; None: no limit.
        duration_s: time after which no request is sent, seconds; None: no limit.
        burst: number of requests in a burst, 1 or more.
        seed: seed of the random intervals; the same seed gives the same times.
    """
    if pattern == "poisson":
        offsets = _poisson(rate_per_s, seed)
    elif pattern == "bursts":
        offsets = (index // burst * (burst / rate_per_s) for index in itertools.count())
    else:
        offsets = (index / rate_per_s for index in itertools.count())
    if duration_s is not None:
        end_s = duration_s
        offsets = itertools.takewhile(lambda offset: offset < end_s, offsets)
    return itertools.islice(offsets, requests)


def _poisson(rate_per_s: float, seed: int) -> Iterator[float]:
    chance = random.Random(seed)
    now_s = 0.0
    while True:
        now_s += chance.expovariate(rate_per_s)
        yield now_s


def recorded(path: Path, *, speed: float = 1.0) -> list[float]:
    """Read offsets from a file with a time in seconds on each line.

    In a line with commas, the first field is the time; ``#`` begins a comment. The first line may be a heading. The
    times may count from any moment, such as 1970: the offsets count from the earliest time.

    Args:
        path: the file.
        speed: factor by which requests are sent faster than recorded.

    Raises:
        StoreError: the file cannot be read, contains no times, or contains other text.
    """
    times = []
    try:
        with path.open() as lines:
            for number, line in enumerate(lines, 1):
                field = line.partition("#")[0].partition(",")[0].strip()
                if not field:
                    continue
                time_s = _seconds(field)
                if time_s is not None:
                    times.append(time_s)
                elif number > 1:  # the first line may be a heading
                    raise StoreError(f"{path}, line {number}: {field[:40]!r} is not a time in seconds; write a number")
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"the file of arrival times {path} cannot be read: {error}") from error
    times.sort()
    if not times:
        raise StoreError(f"{path} contains no arrival times: write a time in seconds on each line")
    return [(time_s - times[0]) / speed for time_s in times]


def _seconds(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
