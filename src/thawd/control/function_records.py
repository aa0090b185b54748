"""The control plane's records of functions, as the state file stores them and as the Lambda API shows them.

Fields that have a meaning only on AWS, such as a VPC or a KMS key, are stored and shown but have no effect in thawd.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from thawd.control.names import function_arn
from thawd.resources import LATEST, REGION, Function, ImageConfig

T = TypeVar("T")

Parameters = Mapping[str, Any]
"""The checked input of an operation, as `thawd.gateway.lambda_api.inputs.read` returns it."""
SNAP_START_ON = "PublishedVersions"
SNAP_START_OFF = "None"


def now_text() -> str:
    """The current time in the format of ``LastModified``: UTC, with milliseconds."""
    now = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}+0000"


def runtime_version_arn(runtime: str) -> str:
    """ARN of the only version of a runtime that thawd knows: the one on this machine. AWS's has 64 digits, too."""
    return f"arn:aws:lambda:{REGION}::runtime:{hashlib.sha256(runtime.encode()).hexdigest()}"


def new_revision() -> str:
    """A new revision id, which a resource gets with each change."""
    return str(uuid.uuid4())


class _Empty(dict[str, Any]):
    """An empty dictionary that many records share, because each empty dictionary of its own takes 64 bytes."""

    __slots__ = ()

    def __setitem__(self, key: str, value: Any) -> None:
        raise TypeError("this dictionary is shared; make a new one with `assigned`")

    def update(self, *args: Any, **values: Any) -> None:
        """Refuse, as `__setitem__` does."""
        raise TypeError("this dictionary is shared; make a new one with `assigned`")

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Refuse, as `__setitem__` does."""
        raise TypeError("this dictionary is shared; make a new one with `assigned`")


_EMPTY = _Empty()


def assigned(mapping: Mapping[str, T], key: str, value: T) -> Mapping[str, T]:
    """Return a copy of `mapping` with another value for `key`. Mappings of records are not changed in place."""
    return {**mapping, key: value}


def without(mapping: Mapping[str, T], key: str) -> Mapping[str, T]:
    """Return a copy of `mapping` without `key`, or `mapping` itself if it has no such key."""
    return {other: value for other, value in mapping.items() if other != key} if key in mapping else mapping


class StateReason(msgspec.Struct, frozen=True, omit_defaults=True):
    """A state with its reason.

    Attributes:
        state: for example ``Active`` or ``Successful``.
        reason: an explanation for people.
        code: the API's reason code, for programs.
    """

    state: str
    reason: str | None = None
    code: str | None = None


class LayerUse(msgspec.Struct):
    """A layer version that a function uses. The function keeps it, even after the layer version is deleted.

    Attributes:
        arn: ARN of the layer version.
        package: name under which the layer's unpacked files are stored.
        code_size: size of its zip file, bytes.
        unzipped_bytes: size of its unpacked files, bytes; 0 in records of earlier versions of thawd.
    """

    arn: str
    package: str
    code_size: int
    unzipped_bytes: int = 0


class VersionRecord(msgspec.Struct, omit_defaults=True):
    """One version of a function, ``$LATEST`` included.

    Attributes:
        function: the settings that the version runs with.
        runtime: identifier of the runtime, for example ``python3.12``.
        code_sha256: SHA-256 of the zip file, or the digest that names the copy of a folder, Base64.
        code_size: size of the zip file, or of all files in the copy of a folder, bytes.
        package: name of the deployment package: a digest of its content.
        unzipped_bytes: size of the unpacked package, bytes; 0: not known.
        from_zip: whether the package was uploaded; else it is a copy of a folder that thawd.toml names.
        version: number, or ``$LATEST``.
        shown: parameters that are stored so that the API can show them, by name. DeadLetterConfig also takes effect
            from this field; the other parameters that have an effect are also in `function`.
        layers: layer versions, in order.
        snap_start: ``PublishedVersions`` or ``None``.
        described: for a published version, the description that ``$LATEST`` had at that time.
        has_environment: whether the API was given environment variables, even none; they are then shown.
        last_modified: time of the last change, in the format of `now_text`.
        revision: revision id; each change sets a new one.
        state: state of the version.
        update: state of the version's last update.
        image_uri: reference of the container image, as it was given; `function.image` then is the digest to which it
            led. Empty: the code is a zip file or a folder.
    """

    function: Function
    runtime: str
    code_sha256: str
    code_size: int
    package: str
    from_zip: bool = True
    version: str = LATEST
    shown: Mapping[str, Any] = _EMPTY
    layers: tuple[LayerUse, ...] = ()
    snap_start: str = SNAP_START_OFF
    described: str = ""
    has_environment: bool = False
    unzipped_bytes: int = 0
    last_modified: str = ""
    revision: str = ""
    state: StateReason = StateReason("Pending", "The function is being created.", "Creating")
    update: StateReason = StateReason("Successful")
    image_uri: str = ""

    def document(self, *, optimised: bool, qualifier: str | None = None) -> dict[str, Any]:
        """The version as the API's ``FunctionConfiguration``.

        Args:
            optimised: whether the version's environments are thawed from a snapshot.
            qualifier: the qualifier at the end of the ARN; None: the ARN has none.
        """
        made = self.summary(optimised=optimised, qualifier=qualifier)
        if not self.image_uri:
            made["RuntimeVersionConfig"] = {"RuntimeVersionArn": runtime_version_arn(self.runtime)}
        made["State"] = self.state.state
        if self.state.state != "Pending":
            made["LastUpdateStatus"] = self.update.state
        for prefix, settled in (("State", self.state), ("LastUpdateStatus", self.update)):
            if prefix in made and settled.reason is not None:
                made[f"{prefix}Reason"] = settled.reason
            if prefix in made and settled.code is not None:
                made[f"{prefix}ReasonCode"] = settled.code
        return made

    def summary(self, *, optimised: bool, qualifier: str | None = None) -> dict[str, Any]:
        """The version as lists of the API show it: like `document`, but without its state and runtime version."""
        function = self.function
        made: dict[str, Any] = {
            "FunctionName": function.name,
            "FunctionArn": function_arn(function.name, qualifier),
            "Runtime": self.runtime,
            "Handler": function.handler,
            "CodeSize": self.code_size,
            "Description": "",
            "Timeout": function.timeout_s,
            "MemorySize": function.memory_mb,
            "LastModified": self.last_modified,
            "CodeSha256": self.code_sha256,
            "Version": self.version,
            "TracingConfig": {"Mode": function.tracing},
            "RevisionId": self.revision,
            "PackageType": "Zip",
            "Architectures": ["x86_64"],
            "EphemeralStorage": {"Size": function.ephemeral_storage_mb},
            "SnapStart": {"ApplyOn": self.snap_start, "OptimizationStatus": "On" if optimised else "Off"},
            "LoggingConfig": {"LogFormat": function.log_format, "LogGroup": function.log_group_name},
        }
        if self.image_uri:
            made |= {"PackageType": "Image", **_image_config_response(function.image_config)}
            del made["Runtime"], made["Handler"]
        if function.log_format == "JSON":
            made["LoggingConfig"]["ApplicationLogLevel"] = function.application_log_level or "INFO"
            made["LoggingConfig"]["SystemLogLevel"] = function.system_log_level or "INFO"
        if function.tenants:
            made["TenancyConfig"] = {"TenantIsolationMode": "PER_TENANT"}
        made |= self.shown
        if function.environment or self.has_environment:
            made["Environment"] = {"Variables": function.environment}
        if self.layers:
            made["Layers"] = [{"Arn": layer.arn, "CodeSize": layer.code_size} for layer in self.layers]
        return made


def _image_config_response(config: ImageConfig) -> dict[str, Any]:
    """The field ``ImageConfigResponse``, if anything of the image's configuration is replaced."""
    fields = {
        "EntryPoint": config.entry_point,
        "Command": config.command,
        "WorkingDirectory": config.working_directory,
    }
    found = {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items() if value}
    return {"ImageConfigResponse": {"ImageConfig": found}} if found else {}


class Alias(msgspec.Struct, omit_defaults=True):
    """A name for a version, or for two versions that share the invocations by weight.

    Attributes:
        name: name of the alias.
        version: the version that it points to.
        description: free text.
        weights: share of the invocations that goes to another version, 0 to 1, by version number.
        revision: revision id; each change sets a new one.
    """

    name: str
    version: str
    description: str = ""
    weights: dict[str, float] = {}
    revision: str = ""

    def shares(self) -> dict[str, float]:
        """All versions that the alias points to, and their shares, which sum to 1."""
        return {self.version: 1.0 - sum(self.weights.values()), **self.weights}

    def document(self, function: str) -> dict[str, Any]:
        """The alias as the API's ``AliasConfiguration``."""
        made: dict[str, Any] = {
            "AliasArn": function_arn(function, self.name),
            "Name": self.name,
            "FunctionVersion": self.version,
            "Description": self.description,
            "RevisionId": self.revision,
        }
        if self.weights:
            made["RoutingConfig"] = {"AdditionalVersionWeights": self.weights}
        return made


class ResourcePolicy(msgspec.Struct, omit_defaults=True):
    """A resource-based policy.

    Attributes:
        statements: IAM policy statements, in the order in which they were added.
        revision: revision id; each change sets a new one.
    """

    statements: list[dict[str, Any]] = []
    revision: str = ""


class Family(msgspec.Struct, omit_defaults=True):
    """A function with its versions, its aliases and the settings of its qualifiers. Its versions are stored separately.

    Attributes:
        name: name of the function.
        declared: whether thawd.toml declares the function; then only what the API adds to it is stored.
        shadows: whether a function of this name was also made through the API; then this record is not stored.
        versions: by number, ``$LATEST`` among them.
        aliases: by name.
        last_version: the highest version number ever used.
        reserved: reserved concurrency; None: none.
        provisioned: requested provisioned environments, by qualifier.
        provisioned_modified: when the number in `provisioned` was last changed, by qualifier.
        event_configs: event invoke configurations as the API received them, by qualifier.
        urls: function URL configurations as the API received them, by qualifier.
        policies: resource-based policies, by qualifier; ``$LATEST`` stands for the function itself.
        tags: keys and values.
        recursion: ``Terminate`` or ``Allow``.
        runtime_updates: runtime management configuration, by qualifier.
        code_signing: ARN of the code signing configuration; empty: the function has none.
    """

    name: str
    declared: bool = False
    shadows: bool = False
    versions: dict[str, VersionRecord] = {}
    aliases: Mapping[str, Alias] = _EMPTY
    last_version: int = 0
    reserved: int | None = None
    provisioned: Mapping[str, int] = _EMPTY
    provisioned_modified: Mapping[str, str] = _EMPTY
    event_configs: Mapping[str, dict[str, Any]] = _EMPTY
    urls: Mapping[str, dict[str, Any]] = _EMPTY
    policies: Mapping[str, ResourcePolicy] = _EMPTY
    tags: Mapping[str, str] = _EMPTY
    recursion: str = "Terminate"
    runtime_updates: Mapping[str, dict[str, Any]] = _EMPTY
    code_signing: str = ""

    def drop_settings(self, qualifier: str) -> None:
        """Remove all settings of a version or an alias, which is being deleted."""
        self.provisioned = without(self.provisioned, qualifier)
        self.provisioned_modified = without(self.provisioned_modified, qualifier)
        self.event_configs = without(self.event_configs, qualifier)
        self.urls = without(self.urls, qualifier)
        self.policies = without(self.policies, qualifier)
        self.runtime_updates = without(self.runtime_updates, qualifier)


def _encode_path(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(type(value).__name__)


def _decode_path(kind: type, value: object) -> object:
    if kind is Path:
        return Path(str(value))
    raise NotImplementedError(kind.__name__)


_encoder = msgspec.json.Encoder(enc_hook=_encode_path)


def encode(record: msgspec.Struct) -> bytes:
    """Encode a record for the catalog, as JSON text."""
    return _encoder.encode(record)


def decode_version(data: bytes) -> VersionRecord:
    """Decode the stored record of a version. An earlier thawd only showed the tracing mode, which has an effect now.

    Raises:
        msgspec.MsgspecError: see `decode`.
    """
    record = decode(data, VersionRecord)
    mode = record.shown.get("TracingConfig", {}).get("Mode", record.function.tracing)
    if mode != record.function.tracing:
        record.function = msgspec.structs.replace(record.function, tracing=mode)
    return record


def decode(data: bytes, kind: type[T]) -> T:
    """Decode a stored record.

    Raises:
        msgspec.MsgspecError: `data` is not a record of this kind, or a newer thawd wrote it with other fields.
    """
    return msgspec.json.decode(data, type=kind, dec_hook=_decode_path)
