"""Prices of AWS Lambda, from a dated file that says where they are from; nothing is fetched.

Source: AWS Lambda pricing page; each number's unit stands in ``prices.toml`` beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

PRICES_FILE = Path(__file__).with_name("prices.toml")
"""The prices that come along."""
ARCHITECTURES = ("x86_64", "arm64")


class CostError(ValueError):
    """What costs cannot be worked out from; the message says what it is and what to do."""


_Amount = Annotated[float, msgspec.Meta(ge=0)]


class ComputePrices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What depends on the processor.

    Attributes:
        duration_gb_s: steps: from so many GB-seconds a month on, the price of each; the first begins at 0.
        provisioned_gb_s: price of a GB-second of provisioned concurrency, used or not.
        provisioned_duration_gb_s: price of a GB-second of duration in it.
    """

    duration_gb_s: tuple[tuple[_Amount, _Amount], ...]
    provisioned_gb_s: _Amount
    provisioned_duration_gb_s: _Amount

    def __post_init__(self) -> None:
        begins = [begin for begin, _ in self.duration_gb_s]
        if not begins or begins[0] != 0 or begins != sorted(set(begins)):
            raise ValueError("duration_gb_s must be steps [from, price] in rising order, the first from 0")

    def duration(self, gb_s: float) -> float:
        """Price of so many GB-seconds of a month: each at the price of its step.

        Source: AWS Lambda pricing, "Tiered pricing": the price falls for what is above a step, not for all.
        """
        ends = [begin for begin, _ in self.duration_gb_s[1:]] + [float("inf")]
        steps = zip(self.duration_gb_s, ends, strict=True)
        return sum(max(0.0, min(gb_s, end) - begin) * price for (begin, price), end in steps)


class Prices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All prices of a region at a date.

    Attributes:
        source: where they are from.
        date: of when they are.
        region: AWS region.
        currency: of all of them.
        million_requests: price of a million of requests.
        storage_gb_s: price of a GB-second of ``/tmp`` above `storage_free_mb`.
        storage_free_mb: part of ``/tmp`` that costs nothing, MB.
        snapstart_cache_gb_s: price of keeping a GB of snapshot for a second.
        snapstart_cache_least_s: a snapshot is paid for so many seconds at least.
        snapstart_restore_gb: price of restoring a GB.
        provisioned_step_s: provisioned concurrency is billed in steps of so many seconds.
        free_requests: requests of a month that cost nothing.
        free_gb_s: GB-seconds of duration of a month that cost nothing.
        x86_64: what depends on the processor.
        arm64: the same.
    """

    source: str
    date: str
    region: str
    currency: str
    million_requests: _Amount
    storage_gb_s: _Amount
    storage_free_mb: _Amount
    snapstart_cache_gb_s: _Amount
    snapstart_cache_least_s: _Amount
    snapstart_restore_gb: _Amount
    provisioned_step_s: Annotated[float, msgspec.Meta(gt=0)]
    free_requests: _Amount
    free_gb_s: _Amount
    x86_64: ComputePrices
    arm64: ComputePrices

    def compute(self, architecture: str) -> ComputePrices:
        """Those of a processor, ``x86_64`` or ``arm64``."""
        return self.arm64 if architecture == "arm64" else self.x86_64


def load_prices(path: Path | None = None) -> Prices:
    """The prices in a file; None: those that come along.

    Raises:
        CostError: the file cannot be read or is no such file.
    """
    file = PRICES_FILE if path is None else path
    try:
        return msgspec.toml.decode(file.read_bytes(), type=Prices)
    except OSError as error:
        raise CostError(f"the prices {file} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CostError(f"{file} is no file of prices: {error}; take {PRICES_FILE} for a pattern") from error
