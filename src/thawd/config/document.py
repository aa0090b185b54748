"""Parses ``thawd.toml`` as TOML, and turns every failure into a `ConfigurationError` that users understand."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from thawd.errors import ConfigurationError, Problem

SMALLEST_FILE = '[functions.hello] with handler = "hello.handler" below it'
_POSITION = re.compile(r" ?\(at (?:line (\d+), column (\d+)|end of document)\)$")


def read_document(path: Path) -> dict[str, object]:
    """Return the parsed contents of ``thawd.toml``.

    Raises:
        ConfigurationError: the file cannot be read or is not TOML. The error has one problem, which says where and why.
    """
    text = _read_text(path)
    try:
        return tomllib.loads(text)
    except ValueError as error:
        raise _refusal(path, _broken(str(error), text), "valid TOML (https://toml.io)") from None
    except RecursionError:
        raise _refusal(path, "lists or tables nested hundreds of levels deep", "TOML with a few levels") from None


def _broken(message: str, text: str) -> str:
    position = _POSITION.search(message)
    if position is None:
        # TOML allows some texts that Python cannot read, such as a number of thousands of digits. tomllib's message
        # about such a text contains no position.
        return f"broken TOML: {message}"
    where = f"line {position[1]}, column {position[2]}" if position[1] else f"its end (line {text.count(chr(10)) + 1})"
    return f"broken TOML at {where}: {message[: position.start()]}"


def _read_text(path: Path) -> str:
    try:
        if path.is_dir():
            raise _refusal(path, "a folder", f"a TOML file, for example {path / 'thawd.toml'}")
        if path.exists() and not path.is_file():
            raise _refusal(path, "a device, pipe or socket", "a regular TOML file")
        content = path.read_bytes()
    except FileNotFoundError:
        allowed = f"an existing TOML file; the smallest one contains {SMALLEST_FILE}"
        raise _refusal(path, "no such file", allowed) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise _refusal(path, f"a file that cannot be read ({reason})", "a readable TOML file") from None
    try:
        # Some editors begin a file with a byte order mark, which tomllib would refuse.
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        found = f"a byte that is not UTF-8 on line {line} (0x{content[error.start]:02x})"
        raise _refusal(path, found, "TOML, saved as UTF-8") from None


def _refusal(path: Path, found: str, allowed: str) -> ConfigurationError:
    return ConfigurationError([Problem(str(path), "", found, allowed)])
