"""polars: lazy and streaming queries in polars' own threads, with its own jemalloc."""

from __future__ import annotations

import io
from typing import Any

import polars as pl
import scenario

ROWS = 50_000


class Frames:
    """A frame kept through the freeze. The threads of polars and tokio are running by then."""

    def __init__(self) -> None:
        self._frame = self._made(0)
        self._frame.lazy().group_by("key").len().collect(engine="streaming")

    def answer(self, number: int) -> Any:
        frame = self._made(number)
        file = io.BytesIO()
        frame.write_parquet(file)
        lazy = pl.scan_parquet(io.BytesIO(file.getvalue())).filter(pl.col("value") % 3 == 0)
        grouped = lazy.group_by("key").agg(pl.col("value").sum(), pl.len().alias("rows")).sort("key")
        joined = self._frame.join(frame.group_by("key").agg(pl.col("value").max().alias("top")), on="key")
        return {
            "memory": grouped.collect().head(20).rows(),
            "streaming": grouped.collect(engine="streaming").tail(20).rows(),
            "joined": joined.select(pl.col("top").sum(), pl.col("value").mean()).rows(),
            "text": frame["name"].str.to_uppercase().value_counts(sort=True).sort("name").rows(),
        }

    def exercise(self) -> None:
        for power in range(10, 22):
            zeros = pl.zeros(2**power, eager=True)
            assert zeros.sum() == 0
            written = (zeros + 1.5).sort()
            assert written.sum() == 1.5 * 2**power
        collected = pl.collect_all([self._frame.lazy().select(pl.col("value").sum())] * 8)
        assert len({frame.item() for frame in collected}) == 1

    @staticmethod
    def _made(number: int) -> pl.DataFrame:
        rows = range(ROWS)
        return pl.DataFrame(
            {
                "key": [row * (number + 7) % 1009 for row in rows],
                "value": [row * row % (number + 997) for row in rows],
                "name": [f"name {(row + number) % 11}" for row in rows],
            }
        )


if __name__ == "__main__":
    scenario.main(lambda _options: Frames())
