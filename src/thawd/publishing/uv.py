"""uv, the faster installer: where it is, and pip's settings in its words.

thawd's users configure pip: by ``PIP_*`` variables, by ``pip.conf``. What these say must hold whichever program
installs. Settings that uv has a word for are translated; with any other, pip installs. Nothing secret is put on a
command line, which all users of a machine can read: addresses, which may hold passwords, go into the environment.

Source: https://pip.pypa.io/en/stable/topics/configuration/, https://docs.astral.sh/uv/reference/environment/.
"""

from __future__ import annotations

import configparser
import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_OF_THE_MACHINE = Path("/etc/pip.conf")
# The second wins, whichever files they are in.
_SECTIONS = ("global", "install")
_TRUE = ("y", "yes", "t", "true", "on", "1")
# What pip takes from its environment without its being an option. The first names a file, which is read.
_NO_OPTIONS = ("config-file", "version", "help")
# Options that do not change what is installed into a new environment, or where from.
_WITHOUT_EFFECT = {
    *(
        "break-system-packages",
        "cache-dir",
        "disable-pip-version-check",
        "exists-action",
        "log",
        "no-clean",
        "no-color",
    ),
    *("no-input", "no-python-version-warning", "no-warn-conflicts", "no-warn-script-location", "progress-bar", "quiet"),
    *("require-virtualenv", "root-user-action", "upgrade", "upgrade-strategy", "verbose"),
}
_FLAGS = {
    "no-index": "--no-index",
    "pre": "--prerelease=allow",
    "require-hashes": "--require-hashes",
    "no-cache-dir": "--no-cache",
}
_LISTS = {"constraint": "--constraints", "no-binary": "--no-binary", "only-binary": "--only-binary"}
_VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "retries": "UV_HTTP_RETRIES",
}


@dataclass(slots=True)
class UvSettings:
    """What uv is run with, so that it installs what pip would.

    Attributes:
        arguments: for ``uv pip install``; nothing secret.
        variables: for its environment.
        why_pip: the setting of pip's that uv has no word for; None when uv can be used.
    """

    arguments: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    why_pip: str | None = None


def find_uv() -> Path | None:
    """The uv that is installed with thawd; None where there is none for this machine.

    One on ``PATH`` is not used: thawd is tested with the versions that it depends on.
    """
    try:
        from uv import find_uv_bin

        return Path(find_uv_bin())
    except (ImportError, FileNotFoundError):
        return None


def uv_settings(environ: Mapping[str, str]) -> UvSettings:
    """pip's settings in uv's words.

    Args:
        environ: environment variables that pip would be run with. uv's own among them hold where pip's say nothing.
    """
    settings = UvSettings()
    try:
        options = _options(environ)
    except (configparser.Error, OSError, UnicodeDecodeError) as error:
        settings.why_pip = f"pip's configuration cannot be read: {' '.join(str(error).split())}"
        return settings
    for name, value in options.items():
        if name in _FLAGS:
            settings.arguments += [_FLAGS[name]] if value.lower() in _TRUE else []
        elif name in _LISTS:
            settings.arguments += [f"{_LISTS[name]}={each}" for each in _listed(name, value)]
        elif name in _VARIABLES:
            settings.variables[_VARIABLES[name]] = _value(name, value)
        elif name not in _WITHOUT_EFFECT:
            settings.why_pip = f"uv has no word for pip's setting {name}"
    if "," in options.get("find-links", ""):
        settings.why_pip = "uv cannot be given a place with a comma (pip's setting find-links)"
    if "--no-cache" not in settings.arguments and not _can_cache(environ):
        settings.arguments.append("--no-cache")
    bundle = environ.get("REQUESTS_CA_BUNDLE") or environ.get("CURL_CA_BUNDLE")
    if bundle and not environ.get("SSL_CERT_FILE"):
        settings.variables.setdefault("SSL_CERT_FILE", bundle)
    return settings


def _can_cache(environ: Mapping[str, str]) -> bool:
    """Whether uv can make its cache. The user of a service often has no home: pip goes without a cache, uv fails."""
    if environ.get("UV_CACHE_DIR"):
        return True  # the user's own choice, whose failure is to be seen
    place = Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or Path.home(), ".cache"), "uv")
    for folder in (place, *place.parents):
        with contextlib.suppress(PermissionError):  # below a folder that may not be entered
            if folder.exists():
                return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
    return False


def _listed(name: str, value: str) -> list[str]:
    return value.split() if name == "constraint" else re.split(r"[,\s]+", value)


def _value(name: str, value: str) -> str:
    if name == "find-links":
        # An address would not survive being a Path.
        return ",".join(os.path.expanduser(place) for place in value.split())  # noqa: PTH111
    if name == "cert":
        return str(Path(value).expanduser())
    if name in ("timeout", "default-timeout"):
        return str(max(1, round(float(value)))) if re.fullmatch(r"\d+(\.\d+)?", value) else value
    return " ".join(value.split())


def _options(environ: Mapping[str, str]) -> dict[str, str]:
    """pip's options by name, without leading dashes; what is said last holds.

    Raises:
        configparser.Error: a file is not in pip's format.
        OSError: a file cannot be read.
    """
    sections: dict[str, dict[str, str]] = {section: {} for section in _SECTIONS}
    for file in _files(environ):
        # No interpolation, as with pip: passwords may hold percent signs.
        parser = configparser.RawConfigParser()
        parser.read(file, encoding="utf-8")
        for section, found in sections.items():
            if parser.has_section(section):
                found |= {_normal(name): value.strip() for name, value in parser.items(section)}
    options = {name: value for section in sections.values() for name, value in section.items()}
    for variable, value in environ.items():
        if variable.startswith("PIP_") and (name := _normal(variable[4:])) not in _NO_OPTIONS:
            options[name] = value.strip()
    return {name: value for name, value in options.items() if value}


def _files(environ: Mapping[str, str]) -> Iterator[Path]:
    """pip's configuration files, those that win last. A new virtual environment has none of its own."""
    named = environ.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return
    home = Path(environ.get("HOME") or Path.home())
    for folder in (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep):
        yield Path(folder, "pip", "pip.conf")
    yield _OF_THE_MACHINE
    if not named or not Path(named).exists():
        yield home / ".pip" / "pip.conf"
        yield Path(environ.get("XDG_CONFIG_HOME") or home / ".config", "pip", "pip.conf")
    if named:
        yield Path(named)


def _normal(name: str) -> str:
    name = name.lower().replace("_", "-")
    return name.removeprefix("--")
