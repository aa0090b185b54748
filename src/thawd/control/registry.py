"""All functions and layers that the control plane manages, in memory and in the catalog, a part of the state file.

A change is made in memory and stored in the catalog. Only then is its request answered, and only then do
the other parts of thawd get the change. Changes of one function run one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec

from thawd.control.event_source_mapping_records import SourceMapping
from thawd.control.function_records import Family, VersionRecord, decode, decode_version, encode
from thawd.control.names import function_arn, is_version, not_found
from thawd.errors import (
    PreconditionFailedException,
    ResourceConflictException,
    ResourceNotFoundException,
    StoreError,
)
from thawd.resources import LATEST
from thawd.stores.control_documents import Catalog, Key

FUNCTION, VERSION, LAYER, MAPPING, PAUSED = "function", "version", "layer", "mapping", "paused"
SIGNING = "signing"
_BUSY = "The operation cannot be performed at this time."


class LayerVersion(msgspec.Struct, omit_defaults=True):
    """One version of a layer.

    Attributes:
        name: name of the layer.
        version: version number.
        code_sha256: SHA-256 of the zip file, Base64.
        code_size: size of the zip file, bytes.
        unzipped_bytes: size of the unpacked files, bytes.
        package: name under which the layer's unpacked files are stored.
        created: when the version was published, in the format of `function_records.now_text`.
        description: free text.
        runtimes: compatible runtimes.
        has_runtimes: whether the API was given compatible runtimes, even none; they are then shown.
        has_architectures: whether it was given compatible architectures, likewise.
        architectures: compatible architectures.
        license: free text.
        statements: statements of its policy.
        revision: revision id of its policy.
    """

    name: str
    version: int
    code_sha256: str
    code_size: int
    unzipped_bytes: int
    package: str
    created: str
    description: str = ""
    runtimes: list[str] = []
    architectures: list[str] = []
    license: str = ""
    statements: list[dict[str, Any]] = []
    revision: str = ""
    has_runtimes: bool = False
    has_architectures: bool = False


class Layer(msgspec.Struct):
    """A layer: its versions by number, and the highest number ever used."""

    name: str
    versions: dict[int, LayerVersion] = {}
    last_version: int = 0


class SigningConfig(msgspec.Struct):
    """A code signing configuration.

    Attributes:
        identifier: ``csc-`` and 17 letters and digits.
        publishers: ARNs of the signing profile versions that may sign code.
        policy: ``Enforce`` or ``Warn``: what happens to code that none of them has signed.
        description: free text.
        modified: time of the last change, in the format of `function_records.now_text`.
    """

    identifier: str
    publishers: list[str]
    policy: str
    description: str
    modified: str


class Registry:
    """All functions (as `Family`), layers, and event source mappings made through the API.

    Attributes:
        families: functions, by name.
        layers: layers, by name.
        shadowed: functions made through the API that are hidden while thawd.toml declares the same name, by name.
        mappings: event source mappings made through the API, by UUID.
        paused: names of the sources in thawd.toml that are paused.
        signing: code signing configurations, by identifier.
    """

    def __init__(self, catalog: Catalog) -> None:
        self.families: dict[str, Family] = {}
        self.layers: dict[str, Layer] = {}
        self.shadowed: dict[str, Family] = {}
        self.mappings: dict[str, SourceMapping] = {}
        self.paused: set[str] = set()
        self.signing: dict[str, SigningConfig] = {}
        self._catalog = catalog
        self._locks: dict[str, asyncio.Lock] = {}

    async def load(self) -> None:
        """Read everything from the catalog; call it once, before all other methods.

        Raises:
            StoreError: the catalog cannot be read, or a newer release wrote it.
        """
        versions: list[VersionRecord] = []
        for key, document in (await self._catalog.load()).items():
            try:
                if key.kind == FUNCTION:
                    self.families[key.name] = decode(document, Family)
                elif key.kind == VERSION:
                    versions.append(decode_version(document))
                elif key.kind == LAYER:
                    self.layers[key.name] = decode(document, Layer)
                elif key.kind == MAPPING:
                    self.mappings[key.name] = decode(document, SourceMapping)
                elif key.kind == PAUSED:
                    self.paused.add(key.name)
                elif key.kind == SIGNING:
                    self.signing[key.name] = decode(document, SigningConfig)
            except msgspec.MsgspecError as error:
                raise StoreError(
                    f"the {key.kind} {key.name} {key.qualifier} in the state file cannot be read ({error}); if a newer "
                    "version of thawd wrote it, start that version"
                ) from error
        for record in sorted(versions, key=lambda record: int(record.version) if record.version.isdigit() else 0):
            if record.function.name in self.families:
                self.families[record.function.name].versions[record.version] = record

    @contextlib.asynccontextmanager
    async def changing(self, name: str) -> AsyncIterator[None]:
        """Hold the lock of a function, or of a layer (``layer:NAME``).

        After an exception, all fields of the function except `versions` are restored.
        """
        async with self._locks.setdefault(name, asyncio.Lock()):
            family = self.families.get(name)
            before = None if family is None else encode(msgspec.structs.replace(family, versions={}))
            try:
                yield
            except BaseException:
                if family is not None and before is not None and self.families.get(name) is family:
                    _restore(family, decode(before, Family))
                raise

    def family(self, name: str) -> Family:
        """The function `name`.

        Raises:
            ResourceNotFoundException: there is no such function (404).
        """
        family = self.families.get(name)
        if family is None or LATEST not in family.versions:
            raise not_found(name)
        return family

    def record(self, name: str, qualifier: str | None = None) -> VersionRecord:
        """A version of the function `name`; for an alias, the version that it points to (not those in its weights).

        Raises:
            ResourceNotFoundException: there is no such function, version or alias (404).
        """
        family = self.families.get(name)
        if family is None or LATEST not in family.versions:
            raise not_found(name, qualifier)
        number = qualifier or LATEST
        if number in family.aliases:
            number = family.aliases[number].version
        if number not in family.versions:
            raise not_found(name, qualifier)
        return family.versions[number]

    def alias_or_version(self, name: str, qualifier: str) -> VersionRecord:
        """Like `record`, but with AWS's error for an alias that does not exist.

        Raises:
            ResourceNotFoundException: there is no such function, version or alias (404).
        """
        family = self.families.get(name)
        if not is_version(qualifier) and (family is None or qualifier not in family.aliases):
            raise ResourceNotFoundException(f"Cannot find alias arn: {function_arn(name, qualifier)}")
        return self.record(name, qualifier)

    def role(self, name: str) -> str:
        """ARN of a function's role; empty: there is no such function."""
        family = self.families.get(name)
        record = None if family is None else family.versions.get(LATEST)
        return "" if record is None else str(record.shown.get("Role", ""))

    def qualified(self, name: str, qualifier: str | None) -> str:
        """Check that a qualifier exists and return it; ``$LATEST`` for None.

        Raises:
            ResourceNotFoundException: there is no such version or alias (404).
        """
        self.record(name, qualifier)
        return qualifier or LATEST

    def all_records(self) -> Iterator[VersionRecord]:
        """Every version of every function."""
        for family in self.families.values():
            yield from family.versions.values()

    def packages(self) -> set[str]:
        """Names of the packages that functions and layers need."""
        records = [*self.all_records(), *(one for family in self.shadowed.values() for one in family.versions.values())]
        named = {record.package for record in records}
        named |= {layer.package for record in records for layer in record.layers}
        return named | {version.package for layer in self.layers.values() for version in layer.versions.values()}

    async def save(self, family: Family, *records: VersionRecord, removed: tuple[str, ...] = ()) -> None:
        """Store a function's own document and those of `records`, and delete the versions `removed`.

        Raises:
            ResourceConflictException: thawd.toml declares the function, and it was also made through the API (409).
            StoreError: the documents could not be stored; the caller must undo its change in memory.
        """
        if family.shadows:
            raise ResourceConflictException(
                f"The function {family.name} cannot be changed: it is declared in thawd.toml and was also made through "
                "the API; first remove the declaration from thawd.toml"
            )
        put = [(Key(FUNCTION, family.name), encode(msgspec.structs.replace(family, versions={})))]
        put += [
            (Key(VERSION, family.name, record.version), encode(record))
            for record in records
            if not (family.declared and record.version == LATEST)
        ]
        await self._catalog.change(put=put, remove=[Key(VERSION, family.name, number) for number in removed])

    async def forget(self, family: Family) -> None:
        """Remove a function with all its versions.

        Raises:
            StoreError: the change could not be stored.
        """
        keys = [Key(VERSION, family.name, number) for number in family.versions]
        await self._catalog.change(remove=[Key(FUNCTION, family.name), *keys])
        self.families.pop(family.name, None)

    async def save_layer(self, layer: Layer) -> None:
        """Store a layer with all its versions.

        Raises:
            StoreError: the change could not be stored.
        """
        await self._catalog.change(put=[(Key(LAYER, layer.name), encode(layer))])

    async def save_mapping(self, mapping: SourceMapping) -> None:
        """Store an event source mapping.

        Raises:
            StoreError: the change could not be stored.
        """
        await self._catalog.change(put=[(Key(MAPPING, mapping.uuid), encode(mapping))])
        self.mappings[mapping.uuid] = mapping

    async def forget_mapping(self, mapping: SourceMapping) -> None:
        """Remove an event source mapping.

        Raises:
            StoreError: the change could not be stored.
        """
        await self._catalog.change(remove=[Key(MAPPING, mapping.uuid)])
        self.mappings.pop(mapping.uuid, None)

    async def save_signing(self, config: SigningConfig) -> None:
        """Store a code signing configuration.

        Raises:
            StoreError: the change could not be stored.
        """
        await self._catalog.change(put=[(Key(SIGNING, config.identifier), encode(config))])
        self.signing[config.identifier] = config

    async def forget_signing(self, config: SigningConfig) -> None:
        """Remove a code signing configuration.

        Raises:
            StoreError: the change could not be stored.
        """
        await self._catalog.change(remove=[Key(SIGNING, config.identifier)])
        self.signing.pop(config.identifier, None)

    async def pause(self, name: str, *, paused: bool) -> None:
        """Store whether a source that thawd.toml declares is paused.

        Raises:
            StoreError: the change could not be stored.
        """
        if paused:
            await self._catalog.change(put=[(Key(PAUSED, name), b"{}")])
            self.paused.add(name)
        else:
            await self._catalog.change(remove=[Key(PAUSED, name)])
            self.paused.discard(name)

    def layer_version(self, name: str, version: int | None) -> LayerVersion | None:
        """The version `version` of the layer `name`; None: there is none."""
        layer = self.layers.get(name)
        return None if layer is None or version is None else layer.versions.get(version)


def _restore(family: Family, before: Family) -> None:
    for field in before.__struct_fields__:
        if field != "versions":
            setattr(family, field, getattr(before, field))


def check_revision(revision: str | None, latest: str, *, what: str) -> None:
    """Refuse an operation whose request names a revision other than the latest.

    Args:
        revision: the revision id in the request; None: the request names none, and is not refused.
        latest: the resource's revision id.
        what: the API operation that returns the revision id, for the error message.

    Raises:
        PreconditionFailedException: `revision` is not the latest (412).
    """
    if revision is not None and revision != latest:
        raise PreconditionFailedException(
            "The Revision Id provided does not match the latest Revision Id. Call the "
            f"{what} API to retrieve the latest Revision Id"
        )


def check_settled(record: VersionRecord) -> None:
    """Refuse a change of a version while another change is in progress.

    Raises:
        ResourceConflictException: a change is in progress (409).
    """
    arn = record.function.arn
    if record.state.state == "Pending":
        raise ResourceConflictException(f"{_BUSY} The function is currently in the following state: Pending")
    if record.update.state == "InProgress":
        raise ResourceConflictException(f"{_BUSY} An update is in progress for resource: {arn}")


def check_undeclared(family: Family, what: str, *, verb: str = "changed") -> None:
    """Refuse a change of a function that thawd.toml declares.

    Args:
        family: the function.
        what: start of the error message: the part of the function that was to be changed.
        verb: what was to be done to it, as a past participle, for the error message.

    Raises:
        ResourceConflictException: thawd.toml declares the function (409).
    """
    if family.declared:
        raise ResourceConflictException(
            f"{what} {family.name} cannot be {verb} through the API: thawd.toml declares the function. Change the file "
            "instead; a running thawd reloads it on SIGHUP or with --watch."
        )
