"""Defines every option of ``thawd.toml``: its key, allowed values, default and meaning.

There is one module for each group of sections. The code that reads the file, the error messages and the documentation
all use these definitions. Most defaults are those of the struct fields into which the file is read
(`thawd.config.settings`, `thawd.resources`), so that each default is written only once.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from thawd.config import kinds
from thawd.config.options.cluster import CLUSTER
from thawd.config.options.deploy import DEPLOY_AWS, STATEMENT
from thawd.config.options.functions import BATCH, FUNCTION, IMAGE_CONFIG, RUNTIME
from thawd.config.options.http import CORS, HTTP, ROUTE, ROUTE_TABLE, URL
from thawd.config.options.option import Option
from thawd.config.options.server import SERVER, TLS
from thawd.config.options.sources import PROVISIONED_SCHEDULE, SCHEDULE, SOURCE
from thawd.config.options.stores import BUCKET, NOTIFICATION, REMOTE_BUCKET, TABLE
from thawd.config.settings import ClusterSettings, ServerSettings, TlsSettings
from thawd.resources import (
    AwsDeployment,
    AwsStatement,
    Batch,
    Bucket,
    Cors,
    Function,
    FunctionUrl,
    HttpApi,
    ImageConfig,
    Notification,
    ProvisionedSchedule,
    RemoteBucket,
    Route,
    Schedule,
    SqsSource,
    Table,
)

SECTIONS = ("server", "functions", "buckets", "http", "routes", "schedules", "tables", "runtimes", "cluster", "deploy")


@dataclass(frozen=True, slots=True)
class OptionDescription:
    """One option as the documentation shows it.

    Attributes:
        key: the key path, for example ``functions.NAME.memory_mb``.
        allowed: the allowed values, in words.
        default: the default, in TOML or in words; ``required`` for an option without one.
        meaning: what the option does, with the unit.
    """

    key: str
    allowed: str
    default: str
    meaning: str


def describe_options() -> tuple[OptionDescription, ...]:
    """Return all options, section by section, for the documentation and its test."""
    sections: tuple[tuple[str, type[msgspec.Struct], tuple[Option, ...]], ...] = (
        ("server", ServerSettings, SERVER),
        ("server.tls", TlsSettings, TLS),
        ("functions.NAME", Function, FUNCTION),
        ("functions.NAME.batch", Batch, BATCH),
        ("functions.NAME.image_config", ImageConfig, IMAGE_CONFIG),
        ("buckets.NAME", Bucket, BUCKET),
        ("buckets.NAME", RemoteBucket, REMOTE_BUCKET),
        ("buckets.NAME.notify[]", Notification, NOTIFICATION),
        ("functions.NAME.url", FunctionUrl, URL),
        ("tables.NAME", Table, TABLE),
        ("http", HttpApi, HTTP),
        ("http.cors", Cors, CORS),
        ("routes[]", Route, ROUTE_TABLE),
        ("functions.NAME.sources[]", SqsSource, SOURCE),
        ("functions.NAME.provisioned_schedule[]", ProvisionedSchedule, PROVISIONED_SCHEDULE),
        ("schedules.NAME", Schedule, SCHEDULE),
        ("cluster", ClusterSettings, CLUSTER),
        ("deploy.aws", AwsDeployment, DEPLOY_AWS),
        ("deploy.aws.statements[]", AwsStatement, STATEMENT),
    )
    described = [
        OptionDescription(f"{section}.{option.name}", option.kind.allowed, _default(struct, option), option.meaning)
        for section, struct, options in sections
        for option in options
    ]
    for section, option in (("routes", ROUTE), ("runtimes", RUNTIME)):
        key = f"{section}.{option.name}"
        described.append(OptionDescription(key, option.kind.allowed, option.default, option.meaning))
    return tuple(described)


def _default(struct: type[msgspec.Struct], option: Option) -> str:
    return option.default or kinds.spell(_field_default(struct, option))


def _field_default(struct: type[msgspec.Struct], option: Option) -> object:
    return next(field.default for field in msgspec.structs.fields(struct) if field.name == option.name)
