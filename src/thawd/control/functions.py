"""Functions and their published versions: create, update, publish, read, delete.

Source: AWS Lambda API reference, the operations that the docstrings name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from thawd.control import configuration, paging
from thawd.control.code_signing import check_code
from thawd.control.deployments import DeployError, Deployments
from thawd.control.function_records import (
    SNAP_START_ON,
    Family,
    Parameters,
    StateReason,
    VersionRecord,
    new_revision,
    now_text,
)
from thawd.control.image_functions import code_location, image_fields, is_of_image, new_image_uri
from thawd.control.names import check_length, is_version, parse_function
from thawd.control.quotas import Quotas
from thawd.control.registry import Registry, check_revision, check_settled, check_undeclared
from thawd.control.tags import check_number
from thawd.errors import (
    InvalidParameterValueException,
    RequestEntityTooLargeException,
    ResourceConflictException,
    ResourceNotFoundException,
    unexpected,
)
from thawd.resources import LATEST
from thawd.stores.uploaded_code import Code, CodeStore

ReadObject = Callable[[str, str], Awaitable[bytes]]
"""Reads the contents of an object, by bucket and key."""
FindNetwork = Callable[[Sequence[str], Sequence[str]], Awaitable[str]]
"""Returns the id of the VPC of subnets and security groups; refuses those that do not exist, with AWS's error."""

_ACTIVE = StateReason("Active")
_SUCCESSFUL = StateReason("Successful")
_CREATING = StateReason("Pending", "The function is being created.", "Creating")
_UPDATING = StateReason("InProgress", "The function is being created.", "Creating")


class Functions:
    """The operations on functions and versions.

    Args:
        registry: all functions.
        code: uploaded code.
        deployments: publishes versions and retires them.
        read_object: reads code that is in a bucket.
        in_background: runs a coroutine as a background task.
        quotas: the sizes that are accepted.
        find_network: finds the network of subnets and security groups.

    Attributes:
        locate: makes a link to a package's zip file.
        on_delete: called with a function after it was deleted.
    """

    def __init__(  # noqa: PLR0913 - the parts that this one connects
        self,
        registry: Registry,
        code: CodeStore,
        deployments: Deployments,
        *,
        read_object: ReadObject,
        in_background: Callable[[Any], object],
        quotas: Quotas,
        find_network: FindNetwork,
    ) -> None:
        self._registry = registry
        self._code = code
        self._deployments = deployments
        self._read_object = read_object
        self._in_background = in_background
        self._quotas = quotas
        self._find_network = find_network
        self.locate: Callable[[str], str] = lambda package: f"/_thawd/code/{package}.zip"
        self.on_delete: Callable[[Family], None] = lambda family: None
        deployments.on_outcome = lambda record, error: in_background(self._follow(record, error))

    async def create(self, parameters: Parameters) -> dict[str, Any]:
        """CreateFunction."""
        check_length(parameters["FunctionName"])
        name = self._named(parameters, unqualified=True)
        configuration.refuse_unsupported(parameters)
        existing = self._registry.families.get(name)
        if existing is not None and LATEST in existing.versions:
            raise ResourceConflictException(f"Function already exist: {name}")
        check_number(parameters.get("Tags", {}))
        signing = parameters.get("CodeSigningConfigArn", "")
        check_code(self._registry, signing)
        record = await self._configured(await self._new_record(name, parameters), parameters)
        await self._deployments.check_runtime(record)
        record.last_modified, record.revision, record.state = now_text(), new_revision(), _CREATING
        # A function that thawd.toml once declared may have left versions, and their numbers must not be used again.
        family = Family(
            name,
            tags=dict(parameters.get("Tags", {})),
            last_version=0 if existing is None else existing.last_version,
            code_signing=signing,
        )
        family.versions = {**({} if existing is None else existing.versions), LATEST: record}
        return await self._store(family, record, parameters)

    async def _new_record(self, name: str, parameters: Parameters) -> VersionRecord:
        """The record of a function that is created, with its code and with AWS's defaults."""
        shown = {"Role": parameters["Role"]}
        if is_of_image(parameters):
            uri = parameters["Code"]["ImageUri"]
            digest = await self._deployments.resolve_image(uri)
            function = configuration.new_function(name, parameters, Path(digest))
            function = msgspec.structs.replace(function, image=digest)
            return VersionRecord(function=function, runtime="", shown=shown, **image_fields(uri, digest))
        code = await self._take_code(parameters["Code"])
        function = configuration.new_function(name, parameters, Path(code.name))
        return VersionRecord(
            function,
            parameters["Runtime"],
            code.sha256,
            code.size_bytes,
            code.name,
            unzipped_bytes=code.unzipped_bytes,
            shown=shown,
        )

    async def update_code(self, parameters: Parameters) -> dict[str, Any]:
        """UpdateFunctionCode."""
        name = self._named(parameters)
        family = self._registry.family(name)
        configuration.refuse_unsupported(parameters)
        old = self._registry.record(name)
        uri = new_image_uri(old, parameters)
        check_undeclared(family, "The code of")
        check_settled(old)
        check_revision(parameters.get("RevisionId"), old.revision, what="GetFunction/GetAlias")
        check_code(self._registry, family.code_signing)
        architectures = {name: parameters[name] for name in ("Architectures",) if name in parameters}
        if uri is not None:
            digest = await self._deployments.resolve_image(uri)
            function = msgspec.structs.replace(old.function, image=digest, code=Path(digest))
            shown = {**old.shown, **architectures}
            record = msgspec.structs.replace(old, function=function, shown=shown, **image_fields(uri, digest))
            return await self._update(family, old, record, parameters)
        code = await self._take_code(parameters)
        record = msgspec.structs.replace(
            old,
            function=msgspec.structs.replace(old.function, code=Path(code.name)),
            code_sha256=code.sha256,
            code_size=code.size_bytes,
            package=code.name,
            unzipped_bytes=code.unzipped_bytes,
            shown={**old.shown, **architectures},
        )
        configuration.check_size(code.unzipped_bytes, sum(one.unzipped_bytes for one in old.layers), self._quotas)
        return await self._update(family, old, record, parameters)

    async def update_configuration(self, parameters: Parameters) -> dict[str, Any]:
        """UpdateFunctionConfiguration."""
        name = self._named(parameters)
        family = self._registry.family(name)
        old = self._registry.record(name)
        check_undeclared(family, "The configuration of")
        check_settled(old)
        check_revision(parameters.get("RevisionId"), old.revision, what="GetFunction/GetAlias")
        record = await self._configured(old, parameters)
        await self._deployments.check_runtime(record)
        return await self._update(family, old, record, parameters)

    async def _configured(self, record: VersionRecord, parameters: Parameters) -> VersionRecord:
        """The record with the settings of a request."""
        changed = configuration.apply(record, parameters, self._registry.layer_version, self._quotas)
        if "VpcConfig" in parameters and self._quotas.has_networks:
            network = changed.shown["VpcConfig"]
            network["VpcId"] = await self._find_network(network["SubnetIds"], network["SecurityGroupIds"])
        return changed

    async def _update(
        self, family: Family, old: VersionRecord, record: VersionRecord, parameters: Parameters
    ) -> dict[str, Any]:
        record = msgspec.structs.replace(record, last_modified=now_text(), revision=new_revision(), update=_UPDATING)
        if parameters.get("DryRun"):
            return self.document(msgspec.structs.replace(record, update=_SUCCESSFUL))
        return await self._store(family, record, parameters)

    async def _store(self, family: Family, record: VersionRecord, parameters: Parameters) -> dict[str, Any]:
        """Store a new ``$LATEST`` and, with ``Publish``, the version published from it: both of them, or neither."""
        published = self._next_version(family, record, description=None) if parameters.get("Publish") else None
        await self._registry.save(family, *filter(None, (record, published)))
        family.versions[LATEST] = record
        if family.name not in self._registry.families or self._registry.families[family.name] is not family:
            self._registry.families[family.name] = family
            self._deployments.declare(family)
        self._begin(family, record)
        if published is None:
            return self.document(record)
        self._add(family, published)
        # AWS's answer to CreateFunction has no version in its ARN, that to UpdateFunctionCode has one.
        return self.document(published, qualified=record.state.state != "Pending")

    async def publish(self, parameters: Parameters) -> dict[str, Any]:
        """PublishVersion: returns the last published version if neither code nor configuration has changed since then.

        A description in the request alone makes no new version, but a changed description of ``$LATEST`` does.
        """
        name = self._named(parameters)
        family = self._registry.family(name)
        record = self._registry.record(name)
        configuration.refuse_unsupported(parameters)
        check_settled(record)
        check_revision(parameters.get("RevisionId"), record.revision, what="GetFunction/GetAlias")
        wanted = parameters.get("CodeSha256")
        if wanted and wanted != record.code_sha256:
            raise InvalidParameterValueException(
                f"CodeSHA256 ({wanted}) is different from current CodeSHA256 in $LATEST ({record.code_sha256}). "
                "Please try again with the CodeSHA256 in $LATEST."
            )
        last = family.versions.get(str(family.last_version))
        if last is not None and _same(last, record):
            return self.document(last, qualified=True)
        published = self._next_version(family, record, description=parameters.get("Description"))
        if published.snap_start != SNAP_START_ON:
            published.state = _ACTIVE  # nothing has to be made for it
        before, record.revision = record.revision, new_revision()
        try:
            await self._registry.save(family, record, published)
        except BaseException:
            record.revision = before
            raise
        self._add(family, published)
        return self.document(published, qualified=True)

    def _next_version(self, family: Family, record: VersionRecord, *, description: str | None) -> VersionRecord:
        number = str(family.last_version + 1)
        shown = record.shown if description is None else {**record.shown, "Description": description}
        family.last_version += 1
        return msgspec.structs.replace(
            record,
            version=number,
            shown=shown,
            described=record.shown.get("Description", ""),
            last_modified=now_text(),
            revision=new_revision(),
            state=_CREATING,
            update=_SUCCESSFUL,
        )

    def _add(self, family: Family, published: VersionRecord) -> None:
        family.versions[published.version] = published
        self._deployments.declare_version(published)
        self._begin(family, published)

    def _begin(self, family: Family, record: VersionRecord) -> None:
        self._in_background(self._settle(family, record))

    def resume(self) -> None:
        """Publish the versions whose publication was cut off when the previous server stopped. Call this only once."""
        for family in self._registry.families.values():
            for record in family.versions.values():
                if not (family.declared and record.version == LATEST) and (
                    record.state.state == "Pending" or record.update.state == "InProgress"
                ):
                    self._begin(family, record)

    async def _settle(self, family: Family, record: VersionRecord) -> None:
        """Publish the version if it is ``$LATEST`` or needs a snapshot; then store its state.

        Any other version is stored as Active at once, and is published when it is first invoked.
        """
        eager = record.version == LATEST or record.snap_start == SNAP_START_ON
        failed: StateReason | None = None
        try:
            if eager:
                await self._deployments.publish(record)
        except DeployError as error:
            failed = StateReason("Failed", str(error), error.code)
        except Exception as error:  # without this, a bug would leave the version in the state Pending forever
            failed = StateReason("Failed", unexpected(error), "InternalError")
        if failed is None:
            await self._note(family, record, _ACTIVE, _SUCCESSFUL)
        elif record.state.state == "Pending":
            await self._note(family, record, failed, _SUCCESSFUL)
        else:
            await self._note(family, record, _ACTIVE, failed)

    async def _follow(self, record: VersionRecord, error: DeployError | None) -> None:
        """Store a version's state after an invocation has caused its publication, or after its init has succeeded."""
        family = self._registry.families.get(record.function.name)
        state = _ACTIVE if error is None else StateReason("Failed", str(error), error.code)
        update = _SUCCESSFUL if error is None else record.update
        if family is not None and (record.state, record.update) != (state, update):
            await self._note(family, record, state, update)

    async def _note(self, family: Family, record: VersionRecord, state: StateReason, update: StateReason) -> None:
        """Store a version's state, unless the version was deleted."""
        try:
            async with self._registry.changing(family.name):
                is_there = self._registry.families.get(family.name) is family
                if not is_there or family.versions.get(record.version) is not record:
                    return  # the version was deleted in the meantime
                if (record.state, record.update) == (state, update):
                    return
                record.state, record.update = state, update
                record.revision = new_revision()
                await self._registry.save(family, record)
        except Exception as error:  # if the stored state is Pending, the next server publishes the version again
            self._deployments.complain(f"thawd: the state of {record.function.name} could not be stored: {error}")

    async def delete(self, parameters: Parameters) -> None:
        """DeleteFunction: deletes one version, or the function with all its versions."""
        name, qualifier = parse_function(parameters["FunctionName"], parameters.get("Qualifier"))
        if qualifier == LATEST:
            raise InvalidParameterValueException("$LATEST version cannot be deleted without deleting the function.")
        if qualifier is not None and not is_version(qualifier) and "$" not in qualifier:
            raise InvalidParameterValueException("Deletion of aliases is not currently supported.")
        family = self._registry.family(name)
        if qualifier is None:
            check_undeclared(family, "The function", verb="deleted")
            await self._registry.forget(family)
            self._deployments.remove(family)
            self.on_delete(family)
            return
        if qualifier not in family.versions:
            return
        users = sorted(alias.name for alias in family.aliases.values() if qualifier in alias.shares())
        if users:
            raise ResourceConflictException(
                f"Unable to delete version because the following aliases reference it: [{', '.join(users)}]"
            )
        family.drop_settings(qualifier)
        await self._registry.save(family, removed=(qualifier,))
        del family.versions[qualifier]
        self._deployments.remove_version(name, qualifier)

    def get(self, parameters: Parameters) -> dict[str, Any]:
        """GetFunction."""
        name, qualifier = parse_function(parameters["FunctionName"], parameters.get("Qualifier"))
        record = self._registry.record(name, qualifier)
        family = self._registry.family(name)
        made: dict[str, Any] = {"Configuration": self.document(record, qualifier=qualifier)}
        made["Code"] = {"RepositoryType": "S3", "Location": self.locate(record.package)} if record.from_zip else {}
        if record.image_uri:
            made["Code"] = code_location(record)
        if family.tags:
            made["Tags"] = family.tags
        if family.reserved is not None:
            made["Concurrency"] = {"ReservedConcurrentExecutions": family.reserved}
        return made

    def get_configuration(self, parameters: Parameters) -> dict[str, Any]:
        """GetFunctionConfiguration."""
        name, qualifier = parse_function(parameters["FunctionName"], parameters.get("Qualifier"))
        return self.document(self._registry.record(name, qualifier), qualifier=qualifier)

    def list(self, parameters: Parameters) -> dict[str, Any]:
        """ListFunctions."""
        items: list[tuple[str, VersionRecord]] = []
        for name, family in sorted(self._registry.families.items()):
            if LATEST not in family.versions:
                continue  # thawd.toml no longer declares the function; only its published versions remain
            numbers = _in_order(family) if parameters.get("FunctionVersion") == "ALL" else [LATEST]
            items += [(f"{name} {_sort_key(number)}", family.versions[number]) for number in numbers]
        chosen, marker = paging.page(items, parameters)
        everything = parameters.get("FunctionVersion") == "ALL"
        return paging.with_marker({"Functions": [self._summary(one, qualified=everything) for one in chosen]}, marker)

    def list_versions(self, parameters: Parameters) -> dict[str, Any]:
        """ListVersionsByFunction."""
        family = self._registry.family(self._named(parameters))
        items = [(_sort_key(number), family.versions[number]) for number in _in_order(family)]
        chosen, marker = paging.page(items, parameters)
        return paging.with_marker({"Versions": [self._summary(one, qualified=True) for one in chosen]}, marker)

    def document(
        self, record: VersionRecord, *, qualified: bool = False, qualifier: str | None = None
    ) -> dict[str, Any]:
        """A version as ``FunctionConfiguration``; its ARN ends with the version number or the requested qualifier."""
        optimised = self._deployments.optimised(record)
        return record.document(optimised=optimised, qualifier=record.version if qualified else qualifier)

    def _summary(self, record: VersionRecord, *, qualified: bool) -> dict[str, Any]:
        """A version as an item of a list."""
        optimised = self._deployments.optimised(record)
        return record.summary(optimised=optimised, qualifier=record.version if qualified else None)

    def _named(self, parameters: Parameters, *, unqualified: bool = False) -> str:
        """The name of the request's function. Only the qualifier ``$LATEST`` is accepted, with `unqualified` none."""
        name, qualifier = parse_function(parameters["FunctionName"])
        if qualifier is not None and (unqualified or qualifier != LATEST):
            raise InvalidParameterValueException(
                "This operation is permitted on Lambda functions only. Aliases and versions do not support this "
                "operation. Please specify either a function name or an unqualified function ARN."
            )
        return name

    async def _take_code(self, parameters: Parameters) -> Code:
        """Store the code of a request; it is in the request itself or in an object of a bucket."""
        if "ZipFile" in parameters:
            content = parameters["ZipFile"]
            most_bytes = self._quotas.zip_bytes
            if most_bytes is not None and len(content) > most_bytes:
                raise RequestEntityTooLargeException(f"Zipped size must be smaller than {most_bytes} bytes")
        elif "S3Bucket" in parameters and "S3Key" in parameters:
            try:
                content = await self._read_object(parameters["S3Bucket"], parameters["S3Key"])
            except ResourceNotFoundException as error:
                raise no_such_object(error) from None
        else:
            raise InvalidParameterValueException("Please provide a source for function code.")
        return await self._code.add(content)


def no_such_object(error: ResourceNotFoundException) -> InvalidParameterValueException:
    """The error for code in a bucket that cannot be read because of `error`."""
    return InvalidParameterValueException(
        f"Error occurred while GetObject. S3 Error Code: {error.reason}. S3 Error Message: {error.message}"
    )


def _sort_key(number: str) -> str:
    return "$" if number == LATEST else number.zfill(10)  # the key becomes a marker, which must not be empty


def _in_order(family: Family) -> list[str]:
    return sorted(family.versions, key=_sort_key)


def _same(last: VersionRecord, record: VersionRecord) -> bool:
    """Whether code and configuration of `record` are those of the version published last."""

    def essence(one: VersionRecord) -> tuple[Any, ...]:
        shown = {name: value for name, value in one.shown.items() if name != "Description"}
        return one.function, one.runtime, one.code_sha256, shown, one.layers, one.snap_start

    return essence(last) == essence(record) and last.described == record.shown.get("Description", "")
