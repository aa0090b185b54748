"""pandas and pyarrow: joins, groups, Parquet, and the three memory pools of pyarrow."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import scenario

ROWS = 20_000


class Columns:
    """A data frame and a table kept through the freeze."""

    def __init__(self, options: scenario.Options) -> None:
        pa.set_cpu_count(options.threads)
        pa.set_io_thread_count(options.threads)
        self._frame = self._made(0)
        self._table = pa.Table.from_pandas(self._frame)

    def answer(self, number: int) -> Any:
        frame = self._made(number)
        joined = frame.merge(self._frame.groupby("key", as_index=False)["value"].mean(), on="key")
        file = io.BytesIO()
        pq.write_table(pa.Table.from_pandas(frame), file)
        read = pq.read_table(io.BytesIO(file.getvalue()), use_threads=True)
        groups = (
            self._table.join(read, "key", right_suffix="_read").group_by("name").aggregate([("value_read", "mean")])
        )
        return {
            "joined": float((joined["value_x"] * joined["value_y"]).sum()),
            "by_name": frame.groupby("name")["value"].median().to_dict(),
            "arrow": {row["name"]: row["value_read_mean"] for row in groups.to_pylist()},
            "filtered": read.filter(pc.greater(read["value"], 0.5)).num_rows,
        }

    def exercise(self) -> None:
        for pool in (pa.system_memory_pool(), pa.jemalloc_memory_pool(), pa.mimalloc_memory_pool()):
            column = pa.array(np.arange(200_000.0), from_pandas=True)
            doubled = pc.add(column, column, memory_pool=pool)
            assert pool.bytes_allocated() >= 8 * 200_000
            assert pc.sum(doubled).as_py() == 199_999 * 200_000
            assert pc.sort_indices(column, sort_keys=[("", "descending")])[0].as_py() == 199_999
            del doubled
            pool.release_unused()

    @staticmethod
    def _made(number: int) -> pd.DataFrame:
        chance = np.random.default_rng(number)
        keys = chance.integers(0, 2000, ROWS)
        return pd.DataFrame({"key": keys, "value": chance.random(ROWS), "name": [f"name {key % 7}" for key in keys]})


if __name__ == "__main__":
    scenario.main(Columns)
