"""Statistics over the values of a metric in a period, by AWS's names.

Source: CloudWatch user guide, "CloudWatch statistics definitions".
"""

from __future__ import annotations

import re
from collections.abc import Callable

from thawd.telemetry.samples import Samples

Statistic = Callable[[Samples], float | None]

SIMPLE: dict[str, Statistic] = {
    "SampleCount": lambda samples: float(samples.count),
    "Average": lambda samples: samples.sum / samples.count,
    "Sum": lambda samples: float(samples.sum),
    "Minimum": lambda samples: float(samples.minimum),
    "Maximum": lambda samples: float(samples.maximum),
}
_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d{1,10})?|100)")
_TRIMMED = re.compile(r"tm(\d{1,2}(?:\.\d{1,10})?|100)|TM\((\d{1,2}(?:\.\d+)?)?%?:(\d{1,3}(?:\.\d+)?)?%?\)")


def parse(name: str) -> Statistic | None:
    """What computes a statistic; None: there is no such statistic, or it is not supported."""
    if name in SIMPLE:
        return SIMPLE[name]
    if match := _PERCENTILE.fullmatch(name):
        percent = float(match[1])
        return lambda samples: samples.percentile(percent)
    if name == "IQM":
        return lambda samples: samples.trimmed_mean(25, 75)
    if match := _TRIMMED.fullmatch(name):
        low, high = (0.0, float(match[1])) if match[1] else (float(match[2] or 0), float(match[3] or 100))
        return (lambda samples: samples.trimmed_mean(low, high)) if low < high <= 100 else None
    return None
