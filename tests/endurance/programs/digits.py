"""Classifies made-up digits with ONNX Runtime and NumPy: before the freeze, and again in each copy.

    python digits.py IMAGE waiting|busy    with model.onnx in the working folder

Prints a digest of all results, freezes, and waits to be killed. A copy computes and prints the digest again, prints
``pass`` and ends normally. With ``busy``, five threads multiply matrices, classify and allocate memory before, during
and after the freeze. Each compares its results with its first ones.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

import numpy as np
import onnxruntime

from thawd.snapshot import engine

DEADLINE_S = 60.0
REST_S = 0.0005  # without a pause, the time of a copy would grow with its number of threads
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 2
options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # many copies share the processors
session = onnxruntime.InferenceSession("model.onnx", options, providers=["CPUExecutionProvider"])


def pictures(seed: int) -> np.ndarray:
    """Return pictures: (8, 64), float32, 0 to 1."""
    return (np.arange(seed, seed + 512, dtype=np.float32).reshape(8, 64) * 0.37) % 1


def classify(seed: int) -> bytes:
    """Return probabilities, float32 (8, 10), as bytes."""
    return bytes(session.run(None, {"pixels": pictures(seed)})[0].tobytes())


def multiply(seed: int) -> bytes:
    """Return a product of integers, large enough for the BLAS library to use its threads."""
    left = np.arange(seed, seed + 128 * 128, dtype=np.float64).reshape(128, 128) % 101
    return (left @ left.T).tobytes()


def allocate(seed: int) -> bytes:
    """Allocate and free Python objects, arrays and blocks of the C library."""
    names = {f"name {number}": [number] * (number % 50) for number in range(seed, seed + 200)}
    blocks = [libc.malloc(16 + number * 977 % 90000) for number in range(20)]
    for number, block in enumerate(blocks):
        ctypes.memset(block, number, 16 + number * 977 % 90000)
    taken = b"".join(ctypes.string_at(block, 16) for block in blocks)
    for block in reversed(blocks):
        libc.free(block)
    arrays = [np.zeros(1 + number * 991 % 9000) for number in range(10)]
    assert all(not array.any() for array in arrays)
    return taken + str(sum(map(len, names.values()))).encode()


class Busy(threading.Thread):
    """Repeats the same computation until it is told to stop."""

    def __init__(self, compute: Callable[[int], bytes], seed: int) -> None:
        super().__init__(name=f"{compute.__name__} {seed}", daemon=True)
        self.compute, self.seed = compute, seed
        self.stop, self.went_on, self.wrong = False, threading.Event(), ""

    def run(self) -> None:
        first = self.compute(self.seed)
        try:
            while not self.stop and not self.wrong:
                if self.compute(self.seed) != first:
                    self.wrong = "another result"
                self.went_on.set()
                time.sleep(REST_S)
        except Exception as error:
            self.wrong = repr(error)

    def goes_on(self) -> None:
        """Wait until a round ends, which shows that the thread still runs."""
        self.went_on.clear()
        assert self.went_on.wait(DEADLINE_S), f"{self.name} makes no progress"
        assert not self.wrong, f"{self.name}: {self.wrong}"


def digest() -> str:
    """Return a digest of all results."""
    results = [compute(seed) for seed in range(2) for compute in (classify, multiply, allocate)]
    return hashlib.sha256(b"".join(results)).hexdigest()


def main(image: str, mode: str) -> None:
    """Compute, freeze, compute again."""
    print(digest(), flush=True)
    busy = [Busy(*job) for job in ((multiply, 1), (multiply, 2), (classify, 3), (allocate, 4), (allocate, 5))]
    if mode != "busy":
        busy.clear()
    for thread in busy:
        thread.start()
    for thread in busy:
        thread.goes_on()
    if not engine.freeze(image).restored:
        os.write(1, b"frozen\n")
        signal.pause()
    print(digest())
    for thread in busy:
        thread.goes_on()
        thread.stop = True
        thread.join(DEADLINE_S)
        assert not thread.is_alive() and not thread.wrong, f"{thread.name}: {thread.wrong}"
    print("pass")


if __name__ == "__main__":
    main(*sys.argv[1:])
