"""The boto3 installed beside thawd, for Python functions that bring none: where it is, and which Python it needs.

`thawd.runtime.sdk` uses this information in a function's process.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import msgspec

VARIABLE = "THAWD_BOTO3"
"""The environment variable that tells a function's process where boto3 is; `boto3_for` returns its value."""

_FIRST = "boto3"
# Names of modules by the names of their packages, where the two differ.
_MODULES = {"python-dateutil": "dateutil"}
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*(?:\[[^\]]*\])?\s*\(?([^;)]*)\)?\s*(?:;(.*))?")
_COMPARISON = re.compile(r"(~=|==|!=|<=|>=|<|>)\s*([0-9][0-9A-Za-z.]*)")
_PYTHON_MARKER = re.compile(r"python_version\s*(~=|==|!=|<=|>=|<|>)\s*[\"']([0-9.]+)[\"']")
_MISSING = (
    "boto3 is neither in the function's code nor in its requirements. Lambda would provide it, but thawd cannot: no "
    "boto3 is installed beside thawd. Install it there (pip install boto3), or name it in the function's requirements"
)

Comparison = tuple[str, str]


class OfferedPackage(msgspec.Struct, frozen=True):
    """A package that is installed beside thawd and that functions may import.

    Attributes:
        folder: the folder that contains the module.
        distribution: name of the package, in lower case with hyphens.
        version: version of the package.
        allows: the versions that the other offered packages allow, as comparisons such as ``(">=", "1.21")``. If a
            function brings this package itself, that copy must have one of these versions.
    """

    folder: str
    distribution: str
    version: str
    allows: list[Comparison]


@dataclass(slots=True)
class _ClosurePackage:
    """boto3 or a package that it needs, with the versions of it that the other packages allow."""

    found: Distribution
    allows: list[Comparison]


def boto3_for(python: tuple[int, int]) -> str:
    """Return the value of `VARIABLE` for a function's process: JSON with either ``modules`` or ``missing``.

    ``modules`` contains an `OfferedPackage` for each module; ``missing`` is the reason why boto3 cannot be offered.

    Args:
        python: major and minor version of the function's interpreter.
    """
    try:
        return _offer(python)
    except PackageNotFoundError:
        return msgspec.json.encode({"missing": _MISSING}).decode()


@functools.cache
def _offer(python: tuple[int, int]) -> str:
    """See `boto3_for`. Cached, because reading the metadata of all packages takes 10 ms.

    Raises:
        PackageNotFoundError: boto3, or a package that it needs, is not installed.
    """
    closure = _closure(python)
    for name, wanted in closure.items():
        needs = wanted.found.metadata["Requires-Python"]
        if not _meets(python, _COMPARISON.findall(needs or "")):
            why = (
                f"{name} {wanted.found.version}, which thawd offers to functions without boto3, needs Python {needs}, "
                f"but this function runs on Python {python[0]}.{python[1]}. Name boto3 in the function's requirements, "
                "or run the function on a newer Python"
            )
            return msgspec.json.encode({"missing": why}).decode()
    modules = {
        _MODULES.get(name, name): OfferedPackage(
            folder=str(_folder(wanted.found)),
            distribution=name,
            version=wanted.found.version,
            allows=wanted.allows,
        )
        for name, wanted in closure.items()
    }
    return msgspec.json.encode({"modules": modules}).decode()


def folders() -> list[Path]:
    """Return the folders that contain the offered packages; empty when boto3 is not installed."""
    try:
        return sorted({_folder(wanted.found) for wanted in _closure((3, 12)).values()})
    except PackageNotFoundError:
        return []


def _folder(found: Distribution) -> Path:
    return Path(str(found.locate_file(""))).resolve()


@functools.cache
def _closure(python: tuple[int, int]) -> dict[str, _ClosurePackage]:
    """boto3 and the packages that it needs on this Python version, by name.

    Raises:
        PackageNotFoundError: boto3, or a package that it needs, is not installed.
    """
    closure = {_FIRST: _ClosurePackage(distribution(_FIRST), [])}
    waiting = [_FIRST]
    while waiting:
        for name, comparisons in _requirements(closure[waiting.pop()].found, python):
            if name not in closure:
                closure[name] = _ClosurePackage(distribution(name), [])
                waiting.append(name)
            closure[name].allows += comparisons
    return closure


def _requirements(found: Distribution, python: tuple[int, int]) -> Iterator[tuple[str, list[Comparison]]]:
    for text in found.requires or ():
        match = _REQUIREMENT.match(text)
        marker = (match and match[3]) or ""
        if match is None or "extra" in marker or not _meets(python, _PYTHON_MARKER.findall(marker)):
            continue
        yield re.sub(r"[-_.]+", "-", match[1]).lower(), _COMPARISON.findall(match[2])


def _meets(python: tuple[int, int], comparisons: list[Comparison]) -> bool:
    """Return whether a Python version meets all comparisons, such as ``(">=", "3.10")``; only major and minor count."""
    for operator, text in comparisons:
        parts = text.rstrip(".").split(".")
        if len(parts) == 1:
            parts.append("0")
        than = (int(parts[0]), int(re.sub(r"\D.*", "", parts[1]) or 0))
        met = {"<": python < than, "<=": python <= than, ">": python > than, ">=": python >= than}
        equal = {"==": python == than, "!=": python != than, "~=": python >= than and python[0] == than[0]}
        if not (met | equal)[operator]:
            return False
    return True
