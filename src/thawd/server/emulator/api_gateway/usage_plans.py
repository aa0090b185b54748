"""Counts the requests of API keys and enforces the limits of usage plans: rate, burst and quota.

The counts are not stored, so they are 0 when thawd starts.

Source: API Gateway developer guide, "Usage plans and API keys for REST APIs in API Gateway".
"""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_DAY_S = 86_400


class Refusal(enum.Enum):
    """Why a usage plan refuses a request."""

    THROTTLED = "THROTTLED"
    QUOTA_EXCEEDED = "QUOTA_EXCEEDED"


@dataclass(slots=True)
class _Count:
    tokens: float
    at_s: float
    period: tuple[str, int] = ("", 0)
    used: int = 0


class Usage:
    """Counts requests by usage plan and API key.

    Args:
        clock: seconds since the epoch.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], _Count] = {}

    def take(self, plan: str, key: str, *, throttle: Mapping[str, Any], quota: Mapping[str, Any]) -> Refusal | None:
        """Count a request. Returns the reason if the plan refuses it, else None.

        Args:
            plan: id of the usage plan.
            key: id of the API key.
            throttle: ``rateLimit`` (requests a second) and ``burstLimit``; empty: there is no limit.
            quota: ``limit``, ``offset`` (the count with which a period begins) and ``period`` (``DAY``, ``WEEK`` or
                ``MONTH``); empty: there is no quota.
        """
        now_s = self._clock()
        with self._lock:
            burst = float(throttle.get("burstLimit") or throttle.get("rateLimit") or 0)
            count = self._counts.setdefault((plan, key), _Count(burst, now_s))
            period = _period(str(quota.get("period", "")), now_s)
            if count.period != period:
                count.period, count.used = period, int(quota.get("offset") or 0)
            if throttle.get("rateLimit"):
                earned = max(0.0, now_s - count.at_s) * float(throttle["rateLimit"])
                count.tokens, count.at_s = min(burst, count.tokens + earned), now_s
                if count.tokens < 1:
                    return Refusal.THROTTLED
            if quota.get("limit") is not None and count.used >= int(quota["limit"]):
                return Refusal.QUOTA_EXCEEDED
            if throttle.get("rateLimit"):
                count.tokens -= 1
            count.used += 1
        return None


def _period(kind: str, now_s: float) -> tuple[str, int]:
    """Return the period that a time belongs to: a day, a week from Monday, or a month, all in UTC."""
    if kind == "MONTH":
        now = time.gmtime(now_s)
        return kind, now.tm_year * 12 + now.tm_mon
    days = int(now_s // _DAY_S)
    # The first day of the epoch was a Thursday.
    return kind, (days + 3) // 7 if kind == "WEEK" else days
