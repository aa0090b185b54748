"""A program that starts slowly. To freeze and thaw it, run `answer.py freeze a.img`, then `thawd thaw a.img 3 4`."""

import random
import sys
import time

from thawd import snapshot


def load() -> "list[list[float]]":
    """Take a second or two, as a program does that loads a model."""
    generator = random.Random(7)
    return [[generator.random() for _ in range(1000)] for _ in range(3000)]


def main() -> None:
    started_s = time.monotonic()
    model = load()
    if sys.argv[1:2] == ["freeze"]:
        outcome = snapshot.freeze(sys.argv[2])
        if not outcome.restored:
            print(f"frozen: {outcome.data_bytes >> 20} MiB; try: thawd thaw {sys.argv[2]} 3 4")
            return
        row, column = map(int, outcome.arguments)
        print(f"{model[row][column]:.6f} (thawed in {outcome.restore_ms:.1f} ms)")
    else:
        row, column = map(int, sys.argv[1:])
        print(f"{model[row][column]:.6f} (loaded in {time.monotonic() - started_s:.1f} s)")


if __name__ == "__main__":
    main()
