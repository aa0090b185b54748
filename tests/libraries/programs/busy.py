"""A process frozen during work: five threads that multiply, run ONNX Runtime and torch, allocate, and take locks."""

from __future__ import annotations

import hashlib
import os
import queue
import threading
from collections.abc import Callable
from typing import Any

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import memory
import numpy as np
import scenario
import sessions
import torch
from threadpoolctl import threadpool_limits

DEADLINE_S = 60.0
SIZE = 100
TURNS = 3  # turns that each thread must have made before the freeze, and again after the thaw


class Busy:
    """Threads that never stop, with a counter of turns for each."""

    def __init__(self, options: scenario.Options) -> None:
        torch.set_num_threads(options.threads)
        threadpool_limits(options.threads)
        self._sessions = sessions.Sessions(options)
        self._matrix = np.random.default_rng(1).standard_normal((SIZE, SIZE))
        self._tensor = torch.rand(SIZE, SIZE, generator=torch.Generator().manual_seed(1))
        self._queue: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._wrong: list[BaseException] = []
        kinds = (self._multiply, self._infer, self._torch, self._allocate, self._pass_on)
        self._turns = {work.__name__: threading.Semaphore(0) for work in kinds}
        # Daemon threads, so that a failed check ends the process.
        self._threads = [threading.Thread(target=self._go_on, args=(work,), daemon=True) for work in kinds]
        for thread in self._threads:
            thread.start()
        self._wait_for_turns()

    def answer(self, number: int) -> Any:
        given = np.random.default_rng(number).standard_normal((SIZE, SIZE))
        return {"product": (self._matrix @ given)[::20, ::20].tolist(), "onnx": self._sessions.answer(number)}

    def exercise(self) -> None:
        for turns in self._turns.values():
            while turns.acquire(blocking=False):
                pass
        self._wait_for_turns()
        self._ended.set()  # before anything forks: OpenBLAS hangs if one thread multiplies while another forks
        for thread in self._threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive()
        assert not self._wrong, self._wrong

    def _wait_for_turns(self) -> None:
        for name, turns in self._turns.items():
            for _ in range(TURNS):
                assert turns.acquire(timeout=DEADLINE_S), f"{name} makes no progress: {self._wrong}"

    def _go_on(self, work: Callable[[int], None]) -> None:
        turn = 0
        try:
            while not self._ended.is_set():
                work(turn)
                self._turns[work.__name__].release()
                turn += 1
        except BaseException as error:
            self._wrong.append(error)
            raise

    def _multiply(self, _turn: int) -> None:
        product = self._matrix @ self._matrix.T
        assert np.allclose(product, product.T)

    def _infer(self, turn: int) -> None:
        self._sessions.answer(turn % 5)

    def _torch(self, _turn: int) -> None:
        product = self._tensor @ self._tensor.T
        assert torch.allclose(product, product.T)

    def _allocate(self, turn: int) -> None:
        memory.churn(memory.CHeap(), seed=turn, steps=200)

    def _pass_on(self, turn: int) -> None:
        self._queue.put(turn)
        assert self._queue.get(timeout=10) == turn
        hashlib.sha256(bytes(100_000)).digest()


if __name__ == "__main__":
    scenario.main(Busy)
