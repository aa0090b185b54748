"""uv, an installer that is faster than pip: finds it, and translates pip's settings for it.

thawd's users configure pip, with ``PIP_*`` variables or ``pip.conf``. Their settings must apply whichever program
installs. Settings that uv has, too, are translated, and settings that do not change what is installed are ignored; if
there is any other setting, pip installs. Nothing secret is put on a command line, which all users of a machine can
read: URLs may contain passwords, so they are passed in environment variables.

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
# The sections of pip.conf that apply to an installation. The second has precedence over the first, whichever files they
# are in.
_SECTIONS = ("global", "install")
_TRUE = ("y", "yes", "t", "true", "on", "1")
# PIP_* variables that are not options for an installation. `_files` reads the file that PIP_CONFIG_FILE names.
_NO_OPTIONS = ("config-file", "version", "help")
# Options that change neither what is installed into a new virtual environment nor from where.
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
    """Arguments and variables with which uv installs what pip would install.

    Attributes:
        arguments: arguments for ``uv pip install``; nothing secret.
        variables: environment variables for uv.
        why_pip: why pip must install, such as a setting that uv does not have; None: uv can be used.
    """

    arguments: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    why_pip: str | None = None


def find_uv() -> Path | None:
    """Return the path of the uv that is installed with thawd; None: it is not available for this machine.

    A uv on ``PATH`` is not used, because thawd is tested only with the versions that it depends on.
    """
    try:
        from uv import find_uv_bin

        return Path(find_uv_bin())
    except (ImportError, FileNotFoundError):
        return None


def uv_settings(environ: Mapping[str, str]) -> UvSettings:
    """Translate pip's settings for uv.

    Args:
        environ: environment variables that pip would be run with. uv's own variables apply where pip has no setting.
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
            settings.why_pip = f"uv has no setting for pip's setting {name}"
    if "://" in options.get("constraint", ""):
        settings.why_pip = "pip's setting constraint is a URL, and its password would be on uv's command line"
    if "," in options.get("find-links", ""):
        settings.why_pip = "uv cannot use a location that contains a comma (pip's setting find-links)"
    if "--no-cache" not in settings.arguments and not _can_cache(environ):
        settings.arguments.append("--no-cache")
    bundle = environ.get("REQUESTS_CA_BUNDLE") or environ.get("CURL_CA_BUNDLE")
    if bundle and not environ.get("SSL_CERT_FILE"):
        settings.variables.setdefault("SSL_CERT_FILE", bundle)
    return settings


def _can_cache(environ: Mapping[str, str]) -> bool:
    """Return whether uv can create its cache.

    A service's user often has no home folder. Then pip works without a cache, but uv fails.
    """
    if environ.get("UV_CACHE_DIR"):
        return True  # the user chose this folder, so the user should see the error if it is unusable
    place = Path(environ.get("XDG_CACHE_HOME") or _home(environ) / ".cache", "uv")
    for folder in (place, *place.parents):
        with contextlib.suppress(PermissionError):  # thawd has no permission to enter a folder above this one
            if folder.exists():
                return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
    return False


def _listed(name: str, value: str) -> list[str]:
    return value.split() if name == "constraint" else re.split(r"[,\s]+", value)


def _value(name: str, value: str) -> str:
    if name == "find-links":
        # os.path, because `Path` would turn the // of a URL into /.
        return ",".join(os.path.expanduser(place) for place in value.split())  # noqa: PTH111
    if name == "cert":
        return os.path.expanduser(value)  # noqa: PTH111 - `Path` raises an error if there is no such user
    if name in ("timeout", "default-timeout"):
        return str(max(1, round(float(value)))) if re.fullmatch(r"\d+(\.\d+)?", value) else value
    return " ".join(value.split())


def _options(environ: Mapping[str, str]) -> dict[str, str]:
    """Return pip's options by name, without leading dashes. The last setting of an option applies.

    Raises:
        configparser.Error: a file is not in pip's format.
        OSError: a file cannot be read.
    """
    sections: dict[str, dict[str, str]] = {section: {} for section in _SECTIONS}
    for file in _files(environ):
        # As in pip, values are not interpolated, because passwords may contain percent signs.
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
    """Yield pip's configuration files; later ones override earlier ones.

    pip also reads a file in the virtual environment. That one is left out, because a new virtual environment has none.
    """
    named = environ.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return
    home = _home(environ)
    for folder in (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep):
        yield Path(folder, "pip", "pip.conf")
    yield _OF_THE_MACHINE
    if not named or not Path(named).exists():
        yield home / ".pip" / "pip.conf"
        yield Path(environ.get("XDG_CONFIG_HOME") or home / ".config", "pip", "pip.conf")
    if named:
        yield Path(named)


def _home(environ: Mapping[str, str]) -> Path:
    """Return the user's home folder. As for pip, a user without one has the folder ``~`` in the working folder."""
    return Path(environ.get("HOME") or os.path.expanduser("~"))  # noqa: PTH111 - `Path.home` raises an error


def _normal(name: str) -> str:
    name = name.lower().replace("_", "-")
    return name.removeprefix("--")
