"""Rules of `thawd.control` that no client can see from outside."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from thawd.control.aliases import Aliases
from thawd.control.declared import DeclaredFunctions
from thawd.control.function_records import Alias, Family, VersionRecord, decode_version, encode
from thawd.control.functions import Functions
from thawd.control.registry import Registry
from thawd.resources import LATEST, Function


class Catalog:
    """Stores nothing."""

    async def change(self, **changes: Any) -> None:
        return


class Deployments:
    """Records calls about provisioned environments."""

    def __init__(self) -> None:
        self.provisioned: list[tuple[str, int | None]] = []

    def provision(self, family: Family, qualifier: str, count: int | None) -> None:
        alias = family.aliases.get(qualifier)
        self.provisioned.append((qualifier if alias is None else alias.version, count))

    def knows(self, family: Family) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: None


BY_QUALIFIER = ("provisioned", "provisioned_modified", "event_configs", "urls", "policies", "runtime_updates")


def family_of(*numbers: str) -> Family:
    function = Function(name="f", handler="app.handler", code=Path("/nowhere"))
    records = {
        number: VersionRecord(function, "python3.11", "", 0, f"package-{number}", version=number) for number in numbers
    }
    return Family("f", versions=records)


def test_provisioned_environments_leave_the_version_that_an_alias_leaves() -> None:
    registry, deployments = Registry(Catalog()), Deployments()  # type: ignore[arg-type]
    family = registry.families["f"] = family_of(LATEST, "1", "2")
    family.aliases = {"live": Alias("live", "1")}
    family.provisioned = {"live": 3}
    aliases = Aliases(registry, deployments)  # type: ignore[arg-type]
    asyncio.run(aliases.update({"FunctionName": "f", "Name": "live", "FunctionVersion": "2"}))
    assert deployments.provisioned == [("1", None), ("2", 3)]


@pytest.mark.parametrize("qualifier", ["1", "live"])
def test_a_version_or_alias_that_is_deleted_leaves_no_settings(qualifier: str) -> None:
    registry, deployments = Registry(Catalog()), Deployments()  # type: ignore[arg-type]
    family = registry.families["f"] = family_of(LATEST, "1", "2")
    family.aliases = {"live": Alias("live", "2")}
    for name in BY_QUALIFIER:
        setattr(family, name, {"1": {}, "live": {}, LATEST: {}})
    unused: Any = None
    if qualifier == "1":
        functions = Functions(
            registry,
            unused,
            deployments,  # type: ignore[arg-type]
            read_object=unused,
            in_background=unused,
            quotas=unused,
            find_network=unused,
        )
        asyncio.run(functions.delete({"FunctionName": "f", "Qualifier": "1"}))
    else:
        asyncio.run(Aliases(registry, deployments).delete({"FunctionName": "f", "Name": "live"}))  # type: ignore[arg-type]
    left = {"1", "live", LATEST} - {qualifier}
    assert {name: set(getattr(family, name)) for name in BY_QUALIFIER} == dict.fromkeys(BY_QUALIFIER, left)


def test_the_code_of_a_function_that_the_file_covers_is_kept() -> None:
    registry = Registry(Catalog())  # type: ignore[arg-type]
    registry.families["f"] = family_of(LATEST)
    publisher: Any = None
    configured = DeclaredFunctions(registry, Deployments(), publisher, complain=print, say=print)  # type: ignore[arg-type]
    configured.declare({"f": Function(name="f", handler="own.handler", code=Path("/nowhere"))})
    assert f"package-{LATEST}" in registry.packages()
    configured.declare({})
    assert registry.families["f"].versions[LATEST].package == f"package-{LATEST}"
    assert registry.shadowed == {}


def test_the_tracing_mode_that_an_earlier_thawd_only_showed_has_an_effect() -> None:
    record = family_of(LATEST).versions[LATEST]
    record.shown = {"TracingConfig": {"Mode": "Active"}}

    assert record.function.tracing == "PassThrough"
    assert decode_version(encode(record)).function.tracing == "Active"
