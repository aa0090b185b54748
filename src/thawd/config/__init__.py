"""Reads ``thawd.toml`` and the process's environment variables into frozen structs.

Some environment variables, such as ``THAWD_PORT``, override an option of the file. This package defines all options,
their default values, and the messages about mistakes. The rest of thawd gets the value of every option from the
structs, not from the file or from these variables. Reading the configuration creates no folder and starts no process.

Most callers need only `load`. `describe_options` provides the contents of the reference page about the options.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path

from thawd.config.cross_checks import check_references, required_environments
from thawd.config.document import read_document
from thawd.config.findings import Findings, one_of
from thawd.config.kinds import NEWEST_PYTHON, OLDEST_PYTHON, is_loopback
from thawd.config.options import SECTIONS, OptionDescription, describe_options
from thawd.config.options.server import ENVIRONMENT_VARIABLES, LOG_FORMATS
from thawd.config.path_checks import check_places
from thawd.config.routes import RESERVED_SEGMENTS, parse_route_key
from thawd.config.sections import cluster, deploy, environment_files, functions, http, sources, stores
from thawd.config.sections.reader import Reader
from thawd.config.sections.server import read_server
from thawd.config.settings import ClusterSettings, ServerSettings, Settings, TlsSettings
from thawd.errors import ConfigurationError

__all__ = [
    "ENVIRONMENT_VARIABLES",
    "LOG_FORMATS",
    "NEWEST_PYTHON",
    "OLDEST_PYTHON",
    "RESERVED_SEGMENTS",
    "ClusterSettings",
    "OptionDescription",
    "ServerSettings",
    "Settings",
    "TlsSettings",
    "describe_options",
    "is_loopback",
    "load",
    "log_format_of",
    "parse_route_key",
    "process_environment",
    "required_environments",
    "without_file",
]


def process_environment() -> Mapping[str, str]:
    """Return a copy of this process's environment variables. Callers may change the copy."""
    return dict(os.environ)


def load(path: Path, *, environ: Mapping[str, str] | None = None) -> Settings:
    """Read a configuration file and check it.

    Args:
        path: the file, usually ``thawd.toml``. Relative paths in it are relative to its folder.
        environ: environment variables; None: those of this process.

    Raises:
        ConfigurationError: the file has mistakes; ``problems`` contains all of them, in the order of the file.
    """
    return _settings(path, read_document(path), process_environment() if environ is None else environ)


def log_format_of(path: Path, *, environ: Mapping[str, str]) -> str:
    """Return ``server.log_format``, also of a configuration that has mistakes; ``text`` if it cannot be found out.

    Args:
        path: the file; there may be none.
        environ: environment variables.
    """
    found: object = environ.get("THAWD_LOG_FORMAT")
    if not found:
        try:
            server = tomllib.loads(path.read_text()).get("server")
        except (OSError, ValueError):  # `load` reports it
            return "text"
        found = server.get("log_format") if isinstance(server, dict) else None
    return found if isinstance(found, str) and found in LOG_FORMATS else "text"


def without_file(path: Path, *, environ: Mapping[str, str] | None = None) -> Settings:
    """Return the settings of a server that has no configuration file, because its functions are declared elsewhere.

    All these functions are thawed, whether or not they ask for SnapStart, as functions of thawd.toml are.

    Args:
        path: the file that stands for the configuration; the data folder is made beside it.
        environ: environment variables; None: those of this process.

    Raises:
        ConfigurationError: an environment variable has a mistake.
    """
    return _settings(path, {"server": {"snapshots": "all"}}, process_environment() if environ is None else environ)


def _settings(path: Path, document: dict[str, object], environ: Mapping[str, str]) -> Settings:
    findings = Findings(str(path), document=document)
    for section in document:
        if section not in SECTIONS:
            allowed = one_of(section, SECTIONS, what="sections")
            findings.add((section,), found="an unknown section", allowed=allowed)
    absolute = path.absolute()
    reader = Reader(absolute.parent, environ.get("HOME"), findings)
    server = read_server(document, reader, environ=environ)
    buckets, remote_buckets = stores.read_buckets(document, reader, environ=environ)
    settings = Settings(
        path=absolute,
        server=server,
        functions=functions.read_functions(document, reader),
        environment_files=environment_files.read_environment_files(document, reader),
        buckets=buckets,
        remote_buckets=remote_buckets,
        tables=stores.read_tables(document, reader, data=server.data, environ=environ),
        routes=http.read_routes(document, reader),
        http=http.read_http(document, reader),
        urls=http.read_urls(document, reader),
        runtimes=functions.read_runtimes(document, reader, environ=environ),
        sources=sources.read_sources(document, reader),
        schedules=sources.read_schedules(document, reader),
        cluster=cluster.read_cluster(document, reader, environ=environ),
        deployment=deploy.read_deployment(document, reader),
        provisioned_schedules=sources.read_provisioned_schedules(document, reader),
    )
    check_references(settings, findings, document=document)
    sources.check_schedules(settings, findings, document=document)
    cluster.check_shared(settings, findings)
    check_places(settings, findings)
    if problems := findings.problems():
        raise ConfigurationError(problems)
    return settings
