"""Checks that compare several tables of ``thawd.toml``: names that must exist, numbers that must fit together.

Each mistake is reported once. An empty name means that reading the file found no valid name and reported that, so these
checks skip it. A name is accepted if the file declares it, even if the declaration itself has mistakes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from thawd.config import kinds
from thawd.config.destinations import check_destinations
from thawd.config.document import SMALLEST_FILE
from thawd.config.findings import Findings, one_of
from thawd.config.kinds import is_loopback, is_python_handler
from thawd.config.routes import RESERVED_SEGMENTS, RouteKeyError, parse_route_key, shape_of
from thawd.config.settings import Settings
from thawd.grammar import queue_names
from thawd.resources import PYTHON_RUNTIMES, Function


@dataclass(frozen=True, slots=True)
class Declared:
    """The names that the file declares, including those of tables with mistakes."""

    functions: Iterable[str]
    buckets: Iterable[str]
    tables: Iterable[str]


def check_references(settings: Settings, findings: Findings, *, document: Mapping[str, object]) -> None:
    """Report all mistakes that can be found only by comparing several tables of the file."""
    declared = Declared(*(_names(document.get(section)) for section in ("functions", "buckets", "tables")))
    if not document:
        allowed = (
            f"tables; the smallest file contains {SMALLEST_FILE}, or [server] if functions are created with the "
            "Lambda API"
        )
        findings.add((), found="nothing", allowed=allowed)
    _check_functions(settings, findings, declared)
    check_destinations(settings, findings, document=document)
    _check_notifications(settings, findings, declared)
    _check_routes(settings, findings, declared)
    _check_urls(settings, findings)
    _check_bucket_names(settings, findings)
    _check_queues(settings, findings)
    _check_budget(settings, findings)


def _names(table: object) -> list[str]:
    return list(table) if isinstance(table, dict) else []


def _check_functions(settings: Settings, findings: Findings, declared: Declared) -> None:
    for name, function in settings.functions.items():
        for option in ("application_log_level", "system_log_level"):
            level = getattr(function, option)
            if level is not None and function.log_format != "JSON":
                allowed = 'no level unless log_format = "JSON"'
                findings.add(("functions", name, option), found=f'"{level}"', allowed=allowed)
        _check_runtime(name, function, findings)
        if function.tenants:
            _check_tenants(name, function, settings, findings)
        if function.batch is not None and function.concurrency > 1:
            allowed = "1, or no batch: a batch has its environment to itself"
            findings.add(
                ("functions", name, "concurrency"), found=f"{function.concurrency} beside batch", allowed=allowed
            )
        reserved = function.reserved_concurrency
        for index, entry in enumerate(settings.provisioned_schedules.get(name, ())):
            if reserved is not None and entry.count > reserved:
                findings.add(
                    ("functions", name, "provisioned_schedule", index, "count"),
                    found=str(entry.count),
                    allowed=f"at most reserved_concurrency, which is {reserved}",
                )
        if reserved is not None and function.provisioned_concurrency > reserved:
            findings.add(
                ("functions", name, "provisioned_concurrency"),
                found=str(function.provisioned_concurrency),
                allowed=f"at most reserved_concurrency, which is {reserved}",
            )


def _check_tenants(name: str, function: Function, settings: Settings, findings: Findings) -> None:
    """Check the options and sources that do not fit a function that separates tenants."""
    path = ("functions", name)
    if function.keep_alive != "fixed":
        allowed = '"fixed": the requests of one tenant are too few to learn from'
        findings.add((*path, "keep_alive"), found=f'"{function.keep_alive}" beside tenants', allowed=allowed)
    if "TMPDIR" in function.environment:
        allowed = "no TMPDIR: each environment of a function with tenants has a temporary folder of its own"
        findings.add((*path, "environment", "TMPDIR"), found="TMPDIR beside tenants", allowed=allowed)
    notify = {bucket: declared.notify for bucket, declared in settings.buckets.items()}
    notify |= {bucket: declared.notify for bucket, declared in settings.remote_buckets.items()}
    sources = [f"bucket {bucket}" for bucket, rules in notify.items() if any(rule.function == name for rule in rules)]
    sources += [f"schedule {key}" for key, schedule in settings.schedules.items() if schedule.function == name]
    sources += [f"queue {source.sqs}" for source in settings.sources.get(name, ())]
    for source in sources:
        allowed = "requests that name a tenant: the Lambda API, routes and function URLs"
        findings.add((*path, "tenants"), found=f"the source {source}, whose events name no tenant", allowed=allowed)


def _check_runtime(name: str, function: Function, findings: Findings) -> None:
    """Check the options that apply only to some runtimes."""
    path = ("functions", name)
    if function.runtime is None or function.runtime in PYTHON_RUNTIMES:
        if function.handler and not is_python_handler(function.handler):
            kind = kinds.handler()
            findings.add((*path, "handler"), found=kind.describe(function.handler), allowed=kind.allowed)
        if function.runtime is not None and function.python is not None:
            allowed = "either python or runtime; the interpreter of a runtime is set in [runtimes]"
            findings.add((*path, "python"), found=f'"{function.python}" beside a runtime', allowed=allowed)
        return
    for option in ("python", "requirements", "prime", "batch"):
        if getattr(function, option) is not None:
            allowed = f'nothing: the option is for Python functions, and the runtime is "{function.runtime}"'
            findings.add((*path, option), found=f"{option}", allowed=allowed)
    if function.concurrency > 1:
        allowed = f'1: only Python functions can run several invocations, and the runtime is "{function.runtime}"'
        findings.add((*path, "concurrency"), found=str(function.concurrency), allowed=allowed)


def _check_notifications(settings: Settings, findings: Findings, declared: Declared) -> None:
    notify = {name: bucket.notify for name, bucket in settings.buckets.items()}
    notify |= {name: bucket.notify for name, bucket in settings.remote_buckets.items()}
    for name, notifications in notify.items():
        for index, notification in enumerate(notifications):
            path = ("buckets", name, "notify", index)
            if not notification.function:
                continue
            if notification.function not in declared.functions:
                allowed = one_of(notification.function, declared.functions, what="functions of this file")
                findings.add((*path, "function"), found=f'"{notification.function}"', allowed=allowed)
            if notification in notifications[:index]:
                findings.add(path, found="the same notification again", allowed="each one once")


def _check_bucket_names(settings: Settings, findings: Findings) -> None:
    for name in (*settings.buckets, *settings.remote_buckets):
        if name in RESERVED_SEGMENTS:
            findings.add(("buckets", name), found="a name that is a path of Lambda's API", allowed="any other name")


def _check_queues(settings: Settings, findings: Findings) -> None:
    readers: dict[str, str] = {}
    for name, bucket in settings.remote_buckets.items():
        queue = queue_names.parse(bucket.notifications or "")
        if queue is not None and readers.setdefault(queue.arn, name) != name:
            found = f"the queue of bucket {readers[queue.arn]}"
            findings.add(("buckets", name, "notifications"), found=found, allowed="a queue of its own for each bucket")


def _check_routes(settings: Settings, findings: Findings, declared: Declared) -> None:
    first_with: dict[tuple[str, ...], str] = {}
    for route in settings.routes:
        path = ("routes", route.key)
        if route.function and route.function not in declared.functions:
            allowed = one_of(route.function, declared.functions, what="functions of this file")
            findings.add(path, found=f'"{route.function}"', allowed=allowed)
        if route.key == "$default":
            continue
        try:
            method, segments = parse_route_key(route.key)
        except RouteKeyError as error:
            findings.add(path, found=str(error), allowed=error.allowed)
            continue
        first = segments[0] if segments else ""
        if first in RESERVED_SEGMENTS:
            allowed = f"other first segments: Lambda's API and thawd use {', '.join(RESERVED_SEGMENTS)}"
            findings.add(path, found=f"a path under /{first}", allowed=allowed)
        elif first in declared.buckets:
            allowed = f"a first segment that is not the name of a bucket: /{first}/KEY is an object of bucket {first}"
            findings.add(path, found=f"a path under /{first}", allowed=allowed)
        same = first_with.setdefault(shape_of(method, segments), route.key)
        if same != route.key:
            allowed = "only one route for the same requests; routes that differ only in parameter names are the same"
            findings.add(path, found=f'the same requests as "{same}"', allowed=allowed)


def _check_urls(settings: Settings, findings: Findings) -> None:
    server = settings.server
    for name, url in settings.urls.items():
        if url.invoke_mode == "RESPONSE_STREAM" and name in settings.functions and settings.functions[name].batch:
            allowed = '"BUFFERED": the handler returns the answers of a batch together, when all are complete'
            path = ("functions", name, "url", "invoke_mode")
            findings.add(path, found='"RESPONSE_STREAM" for a function with batch', allowed=allowed)
        if url.auth_type == "AWS_IAM" and not server.access_keys and not is_loopback(server.host):
            found = f'"AWS_IAM" without server.access_keys, though other machines can reach {server.host}'
            allowed = "AWS_IAM with your own keys in server.access_keys"
            findings.add(("functions", name, "url", "auth_type"), found=found, allowed=allowed)


def required_environments(settings: Settings) -> int:
    """Return the fewest environments that suffice for the reserved and provisioned concurrency of all functions.

    Functions without reserved concurrency share environments. If there is such a function, the result contains at least
    one environment for them.
    """
    set_aside = shared_provisioned = has_shared = 0
    for name, function in settings.functions.items():
        if function.reserved_concurrency is None:
            has_shared = 1
            shared_provisioned += settings.most_provisioned(name)
        else:
            set_aside += max(function.reserved_concurrency, settings.most_provisioned(name))
    return set_aside + max(has_shared, shared_provisioned)


def _check_budget(settings: Settings, findings: Findings) -> None:
    server = settings.server
    required = required_environments(settings)
    if server.max_environments is not None and required > server.max_environments:
        allowed = f"at least {required}, for reserved and provisioned concurrency, and for functions without either"
        findings.add(("server", "max_environments"), found=str(server.max_environments), allowed=allowed)
    for name, function in settings.functions.items():
        if server.memory_mb is not None and function.memory_mb > server.memory_mb:
            allowed = f"at most {server.memory_mb}, which is server.memory_mb, the memory for all environments"
            findings.add(("functions", name, "memory_mb"), found=str(function.memory_mb), allowed=allowed)
