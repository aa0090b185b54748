"""Freezes a function in a container image that is being built: a program, executed with the image as its root.

    python -m thawd.deploy.images.freeze_in_image FUNCTION CONFIGURATION STORE KEY

It serves the configuration until the function is published, and sends its snapshot to the folder STORE. The file KEY
gets the key of this function. The data folder is removed.
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
import tomllib
import urllib.request
from pathlib import Path
from typing import Any

_POLL_S = 0.02


def main() -> None:
    """The program itself; exits with status 1 and a reason if there is no snapshot."""
    function, config, store, key = sys.argv[1:]
    data = Path(tomllib.loads(Path(config).read_text(encoding="utf-8"))["server"]["data"])
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        own_key = _thawd("snapshot", "key", function, "--config", config)
        snapshot = _published(function, config)
        if "id" not in (snapshot or {}):
            sys.exit(f"{function} has no snapshot: {(snapshot or {}).get('refused') or 'it could not be published'}")
        print(_thawd("snapshot", "push", function, store, "--config", config).strip(), flush=True)
        with open(os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(own_key)
    finally:
        shutil.rmtree(data, ignore_errors=True)


def _published(function: str, config: str) -> Any:
    """Serve until the function is published. Returns what the status document says about its snapshot."""
    with tempfile.TemporaryDirectory() as folder:
        ready = Path(folder) / "ready"
        command = [sys.executable, "-m", "thawd", "up", "--config", config, "--port", "0"]
        command += ["--ready-file", str(ready), "--ready-when", "published"]
        with subprocess.Popen(command) as server:
            try:
                while not ready.exists():
                    if server.poll() is not None:
                        sys.exit(f"the server ended with status {server.returncode}")
                    time.sleep(_POLL_S)
                url = json.loads(ready.read_text(encoding="utf-8"))["url"]
                with urllib.request.urlopen(f"{url}/_thawd/status") as answer:
                    return json.load(answer)["functions"][function]["snapshot"]
            finally:
                server.send_signal(signal.SIGTERM)


def _thawd(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", "thawd", *arguments], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"thawd {' '.join(arguments)} ended with status {done.returncode}")
    return done.stdout


if __name__ == "__main__":
    main()
