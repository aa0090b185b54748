"""Provides the boto3 that is installed beside thawd to functions that do not bring one, as on Lambda.

`thawd.environments.boto3_for_functions` puts JSON into the variable ``THAWD_BOTO3``. It contains either ``modules``
(boto3 and its dependencies) or ``missing``, the reason why boto3 is not provided. Each module has ``folder``,
``distribution``, ``version`` and ``allows``: comparisons, such as ``["<", "1.45.0"]``, that a version of this package
must meet to work with thawd's boto3. The function's own packages always take precedence. If the version of one of them
does not meet ``allows``, none of thawd's packages are used.

Source: AWS Lambda developer guide, "Runtime dependency search path in Python": the runtime's own packages come last.
"""

import json
import os
import sys
from typing import Any, Dict, Iterator, Optional, Tuple

VARIABLE = "THAWD_BOTO3"
_FIRST = "boto3"
_found: "Optional[_Sdk]" = None


def install() -> None:
    """Install the finder for boto3."""
    global _found  # noqa: PLW0603 - the process has one finder, which `hint` uses
    described = os.environ.get(VARIABLE)
    if described:
        _found = _Sdk(json.loads(described))
        sys.meta_path.append(_found)


def hint(error: BaseException) -> Optional[str]:
    """If `error` is a failed import of boto3: why it is unavailable and what to do. None for other errors."""
    if _found is None or not isinstance(error, ModuleNotFoundError):
        return None
    if error.name not in (_FIRST, "botocore"):
        return None
    return _found.why_not()


class _Sdk:
    """Finds the modules of boto3 and of its dependencies, after all other finders."""

    def __init__(self, described: Dict[str, Any]) -> None:
        self._modules: Dict[str, Dict[str, Any]] = described.get("modules", {})
        self._missing: Optional[str] = described.get("missing")
        self._looked = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        module = self._modules.get(name)
        if path is not None or module is None or self.why_not() is not None:
            return None
        from importlib.machinery import PathFinder

        return PathFinder.find_spec(name, [module["folder"]])

    def find_distributions(self, context: Any = None) -> Iterator[Any]:
        """Metadata of one package by its name, because libraries ask for botocore's version.

        A query for all packages gets nothing from this finder.
        """
        name = getattr(context, "name", None)
        if name is None or "path" in vars(context):
            return
        for module in self._modules.values():
            if module["distribution"] == name.lower().replace("_", "-") and self.why_not() is None:
                yield from _distributions(module["distribution"], [module["folder"]])

    def why_not(self) -> Optional[str]:
        """Why boto3 is not provided, and what to do; None when it is provided."""
        if not self._looked:
            self._looked = True
            self._missing = self._missing or self._conflict()
        return self._missing

    def _conflict(self) -> Optional[str]:
        """Why the function's own packages cannot be combined with thawd's boto3; None when they can."""
        from importlib.machinery import PathFinder

        ours = self._modules[_FIRST]
        for name, module in self._modules.items():
            if PathFinder.find_spec(name) is None:
                continue
            if name == _FIRST:
                return (
                    "the function brings boto3 without all packages that boto3 needs. Install it with its "
                    "dependencies (pip without --no-deps)"
                )
            version = _own_version(module["distribution"])
            if version is not None and not _allowed(version, module["allows"]):
                return (
                    "the function brings %s %s, which is not compatible with thawd's boto3 %s (boto3 needs %s). Name "
                    "boto3 in the function's requirements too"
                    % (module["distribution"], version, ours["version"], ",".join(map("".join, module["allows"])))
                )
        return None


def _distributions(name: str, path: Any) -> Iterator[Any]:
    from importlib.metadata import DistributionFinder, MetadataPathFinder

    return iter(MetadataPathFinder.find_distributions(DistributionFinder.Context(name=name, path=path)))


def _own_version(distribution: str) -> Optional[str]:
    """Version of the package that the function brings; None if it has no metadata.

    A package without metadata counts as compatible, as on Lambda.
    """
    found = next(_distributions(distribution, sys.path), None)
    return None if found is None else str(found.version)


def _allowed(version: str, comparisons: "list[list[str]]") -> bool:
    """Whether a version meets comparisons such as ``["<", "1.45.0"]``."""
    at = _numbers(version)
    for operator, text in comparisons:
        than = _numbers(text)
        met = {
            "<": at < than,
            "<=": at <= than,
            ">": at > than,
            ">=": at >= than,
            "==": at == than,
            "!=": at != than,
            "~=": at >= than and at[: len(text.split(".")) - 1] == than[: len(text.split(".")) - 1],
        }
        if not met.get(operator, True):
            return False
    return True


def _numbers(version: str) -> Tuple[int, ...]:
    """The numeric part of a version as five numbers, without a suffix such as ``rc1``."""
    numbers = []
    for part in version.split("."):
        digits = ""
        for character in part:
            if not character.isdigit():
                break
            digits += character
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    return tuple(numbers + [0] * (5 - len(numbers)))
