"""thawd's own boto3, for Python functions that do not bring one: where it lies, and which Pythons it fits.

`thawd.runtime.sdk` uses this in a function's process.
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
"""The variable by which a function's process gets this."""

_FIRST = "boto3"
# Modules that are not called as their distribution.
_MODULES = {"python-dateutil": "dateutil"}
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*(?:\[[^\]]*\])?\s*\(?([^;)]*)\)?\s*(?:;(.*))?")
_COMPARISON = re.compile(r"(~=|==|!=|<=|>=|<|>)\s*([0-9][0-9A-Za-z.]*)")
_PYTHON_MARKER = re.compile(r"python_version\s*(~=|==|!=|<=|>=|<|>)\s*[\"']([0-9.]+)[\"']")
_MISSING = (
    "boto3 is neither in the function's code nor in its requirements, and thawd has none for it, which Lambda would: "
    "install it beside thawd (pip install boto3), or name it in the function's requirements"
)

Comparison = tuple[str, str]


class OfferedPackage(msgspec.Struct, frozen=True):
    """A package that functions may import from thawd's own.

    Attributes:
        folder: in which the module lies.
        distribution: name of the package, in small letters with hyphens.
        version: of the package.
        allows: the versions that the other packages allow, also for one that a function brings itself.
    """

    folder: str
    distribution: str
    version: str
    allows: list[Comparison]


@dataclass(slots=True)
class _ClosurePackage:
    """A package that boto3 needs, with the versions that the other packages allow."""

    found: Distribution
    allows: list[Comparison]


def boto3_for(python: tuple[int, int]) -> str:
    """The variable's value for a process of a Python: JSON, with ``modules``, or ``missing`` and the reason.

    Args:
        python: major and minor version of the function's interpreter.
    """
    try:
        closure = _closure(python)
    except PackageNotFoundError:
        return msgspec.json.encode({"missing": _MISSING}).decode()
    for name, wanted in closure.items():
        needs = wanted.found.metadata["Requires-Python"]
        if not _meets(python, _COMPARISON.findall(needs or "")):
            why = (
                f"{name} {wanted.found.version}, which thawd has for functions without boto3, needs Python {needs}, "
                f"and this function has {python[0]}.{python[1]}: name boto3 in its requirements, or give it a newer one"
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
    """The folders in which the offered packages lie; empty without boto3."""
    try:
        return sorted({_folder(wanted.found) for wanted in _closure((3, 12)).values()})
    except PackageNotFoundError:
        return []


def _folder(found: Distribution) -> Path:
    return Path(str(found.locate_file(""))).resolve()


@functools.cache
def _closure(python: tuple[int, int]) -> dict[str, _ClosurePackage]:
    """boto3 and what it needs on a Python, by name.

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
    """Whether a Python meets comparisons such as ``(">=", "3.10")``; those with a micro version or a star pass."""
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
