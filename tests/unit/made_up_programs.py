"""Programs that a test makes up: shell scripts, some of which answer as interpreters do."""

from __future__ import annotations

import textwrap
from pathlib import Path


def program(path: Path, text: str) -> Path:
    """An executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + textwrap.dedent(text))
    path.chmod(0o755)
    return path


def python(path: Path, version: str, *, implementation: str = "cpython") -> Path:
    """A program that answers like an interpreter of that version."""
    return program(path, f"printf 'thawd:\\n%s\\n%s\\n%s\\n' {implementation} {version} $0\n")
