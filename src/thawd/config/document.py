"""Parses ``thawd.toml`` as TOML, and turns every failure into a `ConfigurationError` that users understand."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from thawd.errors import ConfigurationError, Problem

SMALLEST_FILE = '[functions.hello] with handler = "hello.handler" below it'
_ENTRY = re.compile(r"\s*(?P<name>[\w.-]+)\s*[=:]\s*(?P<value>[^#]*)")
_BARE = re.compile(r"[A-Za-z_./~@$][^\"'{}\[\],=]*")
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
    line = text.splitlines()[int(position[1]) - 1] if position[1] and int(position[1]) <= text.count("\n") + 1 else ""
    return f"broken TOML at {where}: {message[: position.start()]}{_remedy(line)}"


def _remedy(line: str) -> str:
    """What is probably meant by a line that is not TOML, as the end of a message; empty if that is not clear.

    The message does not repeat the value, which may be a secret.
    """
    entry = _ENTRY.match(line)
    if entry is None:
        return ""
    name, value = entry["name"], entry["value"].strip()
    meant = ""
    if value in ("True", "False", "yes", "no", "on", "off"):
        meant = f"write {name} = {'true' if value in ('True', 'yes', 'on') else 'false'}"
    elif value in ("None", "null", "nil", ""):
        meant = f"leave {name} out, or give it a value"
    elif _BARE.fullmatch(value):
        meant = f'texts need quotes: {name} = "…"'
    elif value.startswith(("{", "[")) and re.search(r'"\s*:|\w\s*:', value):
        meant = "in TOML, tables are written { name = value }, with = and not :"
    elif value[:1] in "\"'" and value.count(value[0]) == 1:
        meant = f"the text of {name} has no closing quote"
    return f"; {meant}" if meant else ""


def _read_text(path: Path) -> str:
    try:
        if path.is_dir():
            raise _refusal(path, "a folder", f"a TOML file, for example {path / 'thawd.toml'}")
        if path.exists() and not path.is_file():
            raise _refusal(path, "a device, pipe or socket", "a regular TOML file")
        content = path.read_bytes()
    except FileNotFoundError:
        there = sorted(each.name for each in path.parent.glob("*.toml") if each.name != "pyproject.toml")
        found = f" (there is {', '.join(there[:3])})" if there else ""
        allowed = (
            f"an existing TOML file{found}; the smallest one contains {SMALLEST_FILE}. Or run this in the folder in "
            "which `thawd up` runs"
        )
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
