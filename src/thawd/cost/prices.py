"""Reads the prices of AWS Lambda from a file that names their date and source. Nothing is downloaded.

Source: AWS Lambda pricing page. ``prices.toml`` explains the unit of each number.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

PRICES_FILE = Path(__file__).with_name("prices.toml")
"""The price file that is part of this package."""
ARCHITECTURES = ("x86_64", "arm64")


class CostError(ValueError):
    """The options or files do not allow an estimate; the message says why and what to do."""


_Amount = Annotated[float, msgspec.Meta(ge=0)]


class ComputePrices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prices that depend on the processor.

    Attributes:
        duration_gb_s: price tiers of duration. For each tier: the GB-seconds a month at which it begins, and the price
            of a GB-second in it. The first tier begins at 0.
        provisioned_gb_s: price of keeping provisioned environments of a GB initialised for a second, used or not.
        provisioned_duration_gb_s: price of a GB-second of duration in a provisioned environment.
    """

    duration_gb_s: tuple[tuple[_Amount, _Amount], ...]
    provisioned_gb_s: _Amount
    provisioned_duration_gb_s: _Amount

    def __post_init__(self) -> None:
        begins = [begin for begin, _ in self.duration_gb_s]
        if not begins or begins[0] != 0 or begins != sorted(set(begins)):
            raise ValueError("duration_gb_s must be a list of tiers [from, price] in rising order, the first from 0")

    def duration(self, gb_s: float) -> float:
        """Return the price of a month's GB-seconds. The price of a tier applies only to the part within that tier.

        Source: AWS Lambda pricing, "Tiered pricing".
        """
        ends = [begin for begin, _ in self.duration_gb_s[1:]] + [float("inf")]
        steps = zip(self.duration_gb_s, ends, strict=True)
        return sum(max(0.0, min(gb_s, end) - begin) * price for (begin, price), end in steps)


class Prices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All prices of a region at a date.

    Attributes:
        source: where the prices are from.
        date: date of the prices.
        region: AWS region.
        currency: currency of all prices.
        million_requests: price of a million requests.
        storage_gb_s: price of a GB-second of ``/tmp`` above `storage_free_mb`.
        storage_free_mb: free part of ``/tmp``, MB.
        snapstart_cache_gb_s: price of keeping a GB of snapshot for a second.
        snapstart_cache_least_s: minimum time for which a snapshot is billed, seconds.
        snapstart_restore_gb: price of restoring a GB.
        provisioned_step_s: the time of provisioned concurrency is rounded up to a multiple of this, seconds.
        free_requests: free requests a month.
        free_gb_s: free GB-seconds of duration a month.
        x86_64: prices for x86_64 processors.
        arm64: prices for arm64 processors.
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
        """Return the prices for a processor architecture, ``x86_64`` or ``arm64``."""
        return self.arm64 if architecture == "arm64" else self.x86_64


def load_prices(path: Path | None = None) -> Prices:
    """Read the prices from a file; None: from the included file.

    Raises:
        CostError: the file cannot be read or is not a price file.
    """
    file = PRICES_FILE if path is None else path
    try:
        return msgspec.toml.decode(file.read_bytes(), type=Prices)
    except OSError as error:
        raise CostError(f"the price file {file} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CostError(f"{file} is not a price file: {error}; see {PRICES_FILE} for an example") from error
