"""The whole way in one go: train a model, start thawd, drop 360 pictures into a bucket, read 360 rows from a table.

Run by ``make demo``. It starts from an empty bucket and table each time, keeps what takes long to make (the model,
the function's packages), stops what it started and removes what it put into the bucket, also after Ctrl-C.

    python examples/digits/demo.py
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

HERE = Path(__file__).resolve().parent
CONFIGURATION = HERE / "thawd.toml"
MODEL = HERE / "function" / "digits.onnx"
TRAINING = HERE / "train.py"
HELD_OUT = HERE / "held-out"
BUCKET = HERE / "uploads"
DATA = HERE / ".thawd"
PACKAGES = DATA / "environments"

FEWEST_RIGHT = 350
ROWS_SHOWN = 5
START_S = 900.0  # the first start downloads the function's packages
STALLED_S = 60.0
STOP_S = 45.0
POLL_S = 0.05


class DemoError(Exception):
    """A step did not do what it should; the message says which and what is known."""


class Screen:
    """Lines of output; one of them, the last, may change while it is being worked on."""

    def __init__(self) -> None:
        self._live = sys.stdout.isatty()
        self._said_s = 0.0

    def line(self, text: str = "") -> None:
        """Write one line for good, in place of what `working` showed."""
        print(f"\r\x1b[K{text}" if self._live else text, flush=True)
        self._said_s = time.monotonic()

    def step(self, title: str, text: str) -> None:
        """Write what a step came to."""
        self.line(f"  {title:<10} {text}")

    def working(self, title: str, text: str) -> None:
        """Show how far a step is: at once on a terminal, every few seconds elsewhere."""
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[K{f'  {title:<10} {text}'[:width]}", end="", flush=True)
        elif time.monotonic() - self._said_s > 5:
            self.step(title, text)


@dataclass(frozen=True, slots=True)
class Server:
    """The running thawd.

    Attributes:
        url: where it listens.
        pid: its process.
    """

    url: str
    pid: int

    def get(self, path: str) -> Any:
        """The JSON under `path`."""
        with urllib.request.urlopen(self.url + path, timeout=10) as response:
            return json.load(response)

    def post(self, path: str, body: bytes) -> tuple[int, Any]:
        """Status and JSON that a picture posted to `path` is answered with."""
        request = urllib.request.Request(self.url + path, data=body, headers={"Content-Type": "image/png"})
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, json.load(response)
