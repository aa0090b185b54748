"""boto3 for functions that do not bring it, as on Lambda: in thawd's own environment, where no other place has it.

The variable ``THAWD_BOTO3`` tells where, as JSON (`thawd.environments.sdk` makes it): ``modules``, by name, each with
``folder``, ``distribution``, ``version`` and ``allows``, the comparisons that a version of the function's own must meet
to go with the rest; or ``missing``, why there is none. What the function brings comes first in any case. Of a mixture
that boto3's authors exclude, such as the function's own botocore of another series, nothing is taken from here.

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
    """Offer it from now on."""
    global _found  # noqa: PLW0603 - one for the process, for `hint`
    told = os.environ.get(VARIABLE)
    if told:
        _found = _Sdk(json.loads(told))
        sys.meta_path.append(_found)


def hint(error: BaseException) -> Optional[str]:
    """Why there is no boto3 here, when that is what `error` is about, and the way out; None when it is not."""
    if _found is None or not isinstance(error, ModuleNotFoundError):
        return None
    if error.name not in (_FIRST, "botocore"):
        return None
    return _found.why_not()


class _Sdk:
    """Finds the modules of boto3 and of what it needs, after all other finders."""

    def __init__(self, told: Dict[str, Any]) -> None:
        self._modules: Dict[str, Dict[str, Any]] = told.get("modules", {})
        self._missing: Optional[str] = told.get("missing")
        self._looked = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        module = self._modules.get(name)
        if path is not None or module is None or self.why_not() is not None:
            return None
        from importlib.machinery import PathFinder

        return PathFinder.find_spec(name, [module["folder"]])

    def find_distributions(self, context: Any = None) -> Iterator[Any]:
        """Metadata, asked for by name: libraries look for botocore's version. In lists of all there is none."""
        name = getattr(context, "name", None)
        if name is None or "path" in vars(context):
            return
        for module in self._modules.values():
            if module["distribution"] == name.lower().replace("_", "-") and self.why_not() is None:
                yield from _distributions(module["distribution"], [module["folder"]])

    def why_not(self) -> Optional[str]:
        """Why nothing is offered, and the way out; None when it is."""
        if not self._looked:
            self._looked = True
            self._missing = self._missing or self._mixture()
        return self._missing

    def _mixture(self) -> Optional[str]:
        from importlib.machinery import PathFinder

        ours = self._modules[_FIRST]
        for name, module in self._modules.items():
            if PathFinder.find_spec(name) is None:
                continue
            if name == _FIRST:
                return (
                    "the function brings boto3 without all that it needs: install it with what it requires (pip "
                    "without --no-deps)"
                )
            version = _own_version(module["distribution"])
            if version is not None and not _allowed(version, module["allows"]):
                return (
                    "the function has %s %s, which does not go with thawd's boto3 %s (it needs %s): name boto3 in the "
                    "function's requirements, too"
                    % (module["distribution"], version, ours["version"], ",".join(map("".join, module["allows"])))
                )
        return None


def _distributions(name: str, path: Any) -> Iterator[Any]:
    from importlib.metadata import DistributionFinder, MetadataPathFinder

    return iter(MetadataPathFinder.find_distributions(DistributionFinder.Context(name=name, path=path)))


def _own_version(distribution: str) -> Optional[str]:
    """Of the function's own copy; None when nothing tells: it is trusted then, as on Lambda."""
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
    """The release of a version, five numbers; what follows them, such as ``rc1``, is left out."""
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
