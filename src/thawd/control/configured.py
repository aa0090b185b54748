"""The functions of thawd.toml as the control plane shows them.

They can be published, aliased and tagged like any other; what the file says of them is changed in the file.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping

from thawd.control.deployments import Deployments
from thawd.control.records import SNAP_START_OFF, SNAP_START_ON, Family, Settled, VersionRecord, new_revision, now_text
from thawd.control.registry import Registry
from thawd.execution.version import Version
from thawd.resources import ACCOUNT_ID, LATEST, Function

_ROLE = f"arn:aws:iam::{ACCOUNT_ID}:role/thawd"


class Configured:
    """Keeps the records of declared functions as they are published.

    Args:
        known: all functions.
        deployments: what serves.
        complain: told what an operator should know.
    """

    def __init__(self, known: Registry, deployments: Deployments, *, complain: Callable[[str], None]) -> None:
        self._registry = known
        self._deployments = deployments
        self._complain = complain

    def declare(self, functions: Mapping[str, Function]) -> None:
        """These are the functions of thawd.toml from now on."""
        for name, family in list(self._registry.families.items()):
            if family.declared and name not in functions:
                family.versions.pop(LATEST, None)
                if name in self._registry.shadowed:
                    self._registry.families[name] = self._registry.shadowed.pop(name)
                elif not family.versions:
                    del self._registry.families[name]
        self._deployments.configure(functions)
        for family in self._registry.families.values():
            if not family.declared and family.name not in functions and not self._deployments.knows(family):
                self._deployments.declare(family)
        for name, function in functions.items():
            if name not in self._registry.families:
                self._registry.families[name] = Family(name, declared=True)
            family = self._registry.families[name]
            if not family.declared:
                self._complain(
                    f"thawd: {name} is declared in the configuration and was made through the API, too; the "
                    "configured one serves. Delete the other by DeleteFunction once it is not configured any more"
                )
                self._registry.shadowed[name] = family
                family = self._registry.families[name] = Family(name, declared=True, shadows=True)
            old = family.versions.get(LATEST)
            if old is None or old.function != function:
                family.versions[LATEST] = _record(function, version=None, settled=Settled("Pending"))
            self._deployments.declare(family)

    def published(self, version: Version, settled: Settled) -> None:
        """A declared function serves, or does not, as `settled` says."""
        family = self._registry.families.get(version.function.name)
        if family is not None and family.declared:
            family.versions[LATEST] = _record(version.function, version=version, settled=settled)

    def failed(self, function: Function, reason: str) -> None:
        """A declared function could not be published."""
        family = self._registry.families.get(function.name)
        if family is not None and family.declared and family.versions[LATEST].state.state != "Active":
            family.versions[LATEST].state = Settled("Failed", reason, "InternalError")


def _record(function: Function, *, version: Version | None, settled: Settled) -> VersionRecord:
    python = version.python_version if version is not None else (function.python or "3.11")
    package = version.task_root.name if version is not None else ""
    size = 0
    if version is not None:
        size = sum(path.stat().st_size for path in version.task_root.rglob("*") if path.is_file())
    digest = bytes.fromhex(package) if package else b""
    return VersionRecord(
        function=function,
        runtime=function.runtime or f"python{'.'.join(python.split('.')[:2])}",
        code_sha256=base64.b64encode(digest).decode(),
        code_size=size,
        package=package,
        from_zip=False,
        shown={"Role": _ROLE},
        snap_start=SNAP_START_ON if function.snapshot else SNAP_START_OFF,
        last_modified=now_text(),
        revision=new_revision(),
        state=settled,
    )
