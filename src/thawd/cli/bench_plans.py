"""Turns the options of ``thawd bench`` into a plan: the shape of the load, the target, and the server to measure.

The shape of a load says whether its loop is closed or open, how many requests are sent, and when. A closed loop sends
the next request when an answer has arrived; an open loop sends at times that do not depend on the answers.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from thawd.cli.bench_remote import remote_plan
from thawd.cli.exits import fail, warn
from thawd.cli.options import load, project_of
from thawd.system.suggestions import did_you_mean

if TYPE_CHECKING:
    from thawd.bench.measuring import Plan, Served
    from thawd.bench.requests import Credentials
    from thawd.bench.runs import LoadShape
    from thawd.config import Settings

_OPEN_CONNECTIONS = 10
# Source: RFC 9110, 5.1 and 5.5.
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")
_FUNCTION = re.compile(r"[A-Za-z0-9_-]{1,64}(:[A-Za-z0-9_$-]{1,128})?")


def shape_of(options: Mapping[str, Any]) -> LoadShape:
    """Return the shape of the load: an open loop with --rate or --arrivals, else a closed loop."""
    from thawd.bench.runs import LoadShape

    count, duration_s = options["requests"], options["duration_s"]
    rate, file = options["rate"], options["arrivals"]
    if rate is None and file is None:
        for name in ("pattern", "burst"):
            if options[name] is not None:
                raise click.UsageError(f"--{name} has no effect without --rate: add --rate")
        count = 1000 if count is None and duration_s is None else count
        return LoadShape("closed", concurrency=options["concurrency"] or 1, requests=count, duration_s=duration_s)
    if options["concurrency"] is not None:
        raise click.UsageError(
            "--concurrency is for a closed loop, but --rate and --arrivals are for an open loop; leave out "
            "--concurrency, or leave out --rate and --arrivals"
        )
    if rate is not None and file is not None:
        raise click.UsageError("--rate and --arrivals exclude each other")
    if file is not None:
        return LoadShape("open", pattern="recorded", file=str(file), requests=count, duration_s=duration_s)
    count = 1000 if count is None and duration_s is None else count
    pattern = options["pattern"] or ("bursts" if options["burst"] else "poisson")
    return LoadShape(
        "open",
        requests=count,
        duration_s=duration_s,
        pattern=pattern,
        rate_per_s=rate,
        burst=(options["burst"] or 10) if pattern == "bursts" else None,
        seed=options["seed"] if pattern == "poisson" else None,
    )


def check_files(options: Mapping[str, Any]) -> None:
    """Read payloads, headers and arrivals, so that a mistake in them is reported before a server is started.

    Raises:
        StoreError: the arrivals cannot be used.
    """
    from thawd.bench.arrivals import recorded

    for text in options["payloads"]:
        _payload(text)
    _headers(options["headers"])
    if options["arrivals"] is not None:
        recorded(options["arrivals"])


def _offsets(options: Mapping[str, Any], shape: LoadShape) -> Iterator[float]:
    from thawd.bench.arrivals import arrivals, recorded

    if shape.pattern == "recorded":
        times = iter(recorded(options["arrivals"], speed=options["speed"] or 1.0))
        end_s = shape.duration_s
        if end_s is not None:
            times = itertools.takewhile(lambda time_s: time_s < end_s, times)
        return itertools.islice(times, shape.requests)
    assert shape.pattern is not None
    assert shape.rate_per_s is not None
    return arrivals(
        shape.pattern,
        rate_per_s=shape.rate_per_s,
        requests=shape.requests,
        duration_s=shape.duration_s,
        burst=shape.burst or 1,
        seed=shape.seed or 0,
    )


@contextlib.contextmanager
def plan(options: Mapping[str, Any], shape: LoadShape, engine: str | None) -> Iterator[Plan]:
    """Make the plan for one run. If the run needs a private server, that server runs inside the ``with`` block."""
    from thawd.bench.requests import check_url, without_credentials

    target: str = options["target"]
    if options["remote"]:
        with remote_plan(options, shape, make_plan) as remote:
            yield remote
        return
    begun_from = options["begun_from"]
    is_private = engine is not None or begun_from is not None
    if target.startswith(("http://", "https://")):
        if is_private or options["environments"]:
            raise click.UsageError(
                "--engine, --from and --environments work only for functions and routes of thawd, not for an http(s) "
                "address; give the function's name, or the route's path, such as /classify"
            )
        check_url(target)
        url, authorization = without_credentials(target)
        yield make_plan(options, shape, url, None, None, None if not authorization else lambda *_: authorization)
        return
    settings = load(options["config_path"])
    if project_of(options["config_path"]) is not None:
        yield from _plan_of_project(options, shape, settings, engine, is_private=is_private)
        return
    function = _function_of(target, options, settings)
    if not is_private:
        _require_private(options)
        url, credentials, headers = _running(settings)
        served = _served(url, headers, function, is_private=False)
        yield make_plan(options, shape, target, served, None, credentials)
        return
    yield from _private(options, shape, settings, function, engine or "auto")


def _plan_of_project(
    options: Mapping[str, Any], shape: LoadShape, settings: Settings, engine: str | None, *, is_private: bool
) -> Iterator[Plan]:
    """Make the plan for a function of another tool's project, which the running server has in a stack.

    The target is the function's name, or its logical id in the template. A private server gets a copy of the function.
    """
    from thawd.cli.project_functions import copied_function, running_name

    target: str = options["target"]
    if target.startswith("/"):
        fail(f"{target} is no route: a project has none; give the http address that thawd up prints for its API")
    name, colon, qualifier = target.partition(":")
    if is_private:
        with copied_function(settings, name) as copied:
            given = {**options, "target": copied.name + colon + qualifier}
            yield from _private(given, shape, copied.settings, copied.name, engine or "auto", aws=copied.aws)
        return
    _require_private(options)
    url, credentials, headers = _running(settings)
    name = running_name(settings, name)
    served = _served(url, headers, name, is_private=False)
    yield make_plan(options, shape, name + colon + qualifier, served, None, credentials)


def _require_private(options: Mapping[str, Any]) -> None:
    if options["environments"]:
        raise click.UsageError("--environments is for a private server: add --engine or --from")


def _private(
    options: Mapping[str, Any],
    shape: LoadShape,
    settings: Settings,
    function: str,
    engine: str,
    *,
    aws: str = "none",
) -> Iterator[Plan]:
    from thawd.bench.conditions import Conditions
    from thawd.bench.measurement_server import Place, private_server
    from thawd.bench.runs import counted

    if function not in settings.functions:
        fail(f"there is no function {function!r}; {did_you_mean(function, settings.functions)}")
    name, _, qualifier = options["target"].partition(":")
    if qualifier not in ("", "$LATEST") and not name.startswith("/"):
        fail(
            f"a private server has no versions or aliases: measure {name!r}, or leave out --engine and --from to "
            "measure on the running server"
        )
    environments = options["environments"] or shape.concurrency or max(_default_environments(), 1)
    provisioned = environments if engine == "provisioned" else 0
    warn(f"starting a private server for {function}, engine {engine}, at most {counted(environments, 'environment')}")
    if (requirements := settings.functions[function].requirements) is not None:
        warn(f"it installs {requirements.name}, unless a server in this folder has installed it before")

    def conditions(place: Place) -> Conditions:
        return Conditions(
            place=place, function=function, engine=engine, environments=environments, provisioned=provisioned
        )

    with private_server(settings, purpose="bench", conditions=conditions, aws=aws) as server:
        served = _served(server.url, {}, function, is_private=True)
        yield make_plan(options, shape, options["target"], served, engine, provisioned=provisioned)


def _default_environments() -> int:
    from thawd.scheduling.room import default_max_environments

    return default_max_environments()


def _served(url: str, headers: Mapping[str, str], function: str, *, is_private: bool) -> Served:
    from thawd.bench.measuring import Served

    return Served(url, headers, function, is_private)


def make_plan(  # noqa: PLR0913, PLR0917 - what differs between the three kinds of target
    options: Mapping[str, Any],
    shape: LoadShape,
    name: str,
    served: Served | None,
    engine: str | None,
    credentials: Credentials | None = None,
    provisioned: int = 0,
) -> Plan:
    from thawd.bench.load import Limits
    from thawd.bench.measuring import Plan
    from thawd.bench.requests import Expected, Target, shown

    payloads = [_payload(text) for text in options["payloads"]]
    method = options["method"] or ("POST" if payloads else "GET")
    headers = _headers(options["headers"])
    url = name
    if served is not None:
        headers = {"X-Thawd-Timing": "1", **headers, **served.headers}
        url = served.url + name
        if not name.startswith("/"):
            url = f"{served.url}/2015-03-31/functions/{quote(os.fsencode(name), safe=':$')}/invocations"
            method, payloads = "POST", payloads or [b"{}"]
    begun_from = options["begun_from"] or ("zero" if engine is not None and not provisioned else None)
    return Plan(
        label=_label(options, shown(name), engine),
        target_name=shown(name),
        target=Target(url, method, headers, credentials),
        payloads=payloads,
        limits=Limits(
            timeout_s=options["timeout_s"],
            connections=options["connections"],
            expected=Expected(frozenset(options["statuses"]), options["expect_text"].encode()),
        ),
        shape=shape,
        offsets=None if shape.loop == "closed" else lambda: _offsets(options, shape),
        connections=shape.concurrency or min(_OPEN_CONNECTIONS, options["connections"]),
        served=served,
        engine=engine,
        begun_from=begun_from,
        provisioned=provisioned,
        warm_up=options["warm_up"],
    )


def _label(options: Mapping[str, Any], name: str, engine: str | None) -> str:
    """Return the run's name: the value of --label, else the engine, else the target.

    If several engines are measured, the engine is added to the value of --label.
    """
    label: str | None = options["label"]
    if engine is None:
        return label or name.partition("://")[2] or name
    return engine if label is None else f"{label} {engine}" if len(options["engines"]) > 1 else label


def _function_of(target: str, options: Mapping[str, Any], settings: Settings) -> str:
    """Return the name of the function that answers, without qualifier. If there is none, the command ends.

    Args:
        target: a function's name, with or without qualifier, or a path, which needs a route.
        options: the options of the command.
        settings: the configuration.
    """
    if not target.startswith("/"):
        if not _FUNCTION.fullmatch(target):
            fail(f"{target!r} is neither the name of a function, nor a path that begins with /, nor an http(s) URL")
        return target.partition(":")[0]
    from thawd.gateway.routes.endpoint import RouteTable

    method = options["method"] or ("POST" if options["payloads"] else "GET")
    found = RouteTable(settings.routes).find(method, target.partition("?")[0])
    if found is None:
        known = ", ".join(route.key for route in settings.routes) or "none"
        fail(f"there is no route for {method} {target}; the configuration has: {known}")
    return found[0].function


def _running(settings: Settings) -> tuple[str, Credentials | None, dict[str, str]]:
    """Find the running server. If none answers, the command ends.

    Returns:
        The server's URL; a function that signs requests (None: they need no signature); and the headers with its key
        (empty: it has none).
    """
    from thawd.cli.client import address, request, url_of
    from thawd.gateway.request_signature import signature

    request(settings, "/_thawd/status", None, {})  # this ends the command if no server answers
    place = address(settings)
    server = settings.server
    url = url_of(place)
    if server.key is not None:
        return url, None, {"X-Api-Key": server.key}
    if server.access_keys:
        keys = server.access_keys
        return url, lambda path, body, headers: signature(keys, place, path, body or None, headers), {}
    return url, None, {}


def _payload(text: str) -> bytes:
    if not text.startswith("@"):
        return text.encode()
    try:
        return Path(text[1:]).read_bytes()
    except OSError as error:
        fail(f"the payload {text[1:]} cannot be read: {error.strerror}")


def _headers(texts: tuple[str, ...]) -> dict[str, str]:
    headers = {}
    for text in texts:
        name, colon, value = text.partition(":")
        if not colon or not _HEADER.fullmatch(name.strip()) or not _HEADER_VALUE.fullmatch(value):
            raise click.UsageError(f"-H {text!r} is not a header; write NAME: VALUE, with Latin-1 characters only")
        headers[name.strip()] = value.strip()
    return headers
