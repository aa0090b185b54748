"""Programs that a test makes: shell scripts, some of which answer like interpreters."""

from __future__ import annotations

import textwrap
from pathlib import Path


def program(path: Path, text: str) -> Path:
    """Make an executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + textwrap.dedent(text))
    path.chmod(0o755)
    return path


def python(path: Path, version: str, *, implementation: str = "cpython") -> Path:
    """Make a program that answers like an interpreter of this version."""
    return program(path, f"printf 'thawd:\\n%s\\n%s\\n%s\\n' {implementation} {version} $0\n")
