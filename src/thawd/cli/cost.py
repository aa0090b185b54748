"""The verb ``thawd cost``: what a function would cost on AWS Lambda."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from thawd.cli.exits import fail, warn
from thawd.cli.options import Finite, config_option, examples, load
from thawd.cli.output import print_text

if TYPE_CHECKING:
    from thawd.config import Settings
    from thawd.cost.keep_warm import Arrival
    from thawd.cost.prices import Prices
    from thawd.cost.records import Measured, Record

_KEEP_ALIVE_S = 300.0
_MOST_LINES = 1_000_000
_PATH = click.Path(path_type=Path)


class CostOptions:
    """The options of ``thawd cost``, with types; sources of measurements come first."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.function: str | None = options["function"]
        self.config_path: Path = options["config_path"]
        self.sizes: tuple[str, ...] = options["sizes"]
        self.report: str | None = options["report"]
        self.bench: Path | None = options["bench"]
        self.memory_mb: int | None = options["memory_mb"]
        self.arch: str = options["arch"]
        self.invocations: float = options["invocations"]
        self.starts: float | None = options["starts"]
        self.storage_mb: int = options["storage_mb"]
        self.provisioned: int = options["provisioned"]
        self.free_tier: bool = options["free_tier"]
        self.server: float | None = options["server"]
        self.arrivals: str | None = options["arrivals"]
        self.pattern: str | None = options["pattern"]
        self.hours: float = options["hours"]
        self.keep_alive_s: float | None = options["keep_alive_s"]
        self.prices: Path | None = options["prices"]
        self.as_json: bool = options["as_json"]


@click.command(
    epilog=examples(
        "thawd cost classify                             # from its log",
        "thawd cost --size 1024:35:900:180 --arch both   # by hand",
        "thawd cost classify --invocations 3e6 --server 40",
        "thawd cost classify --arrivals log              # compare keep-warm policies",
    )
)
@click.argument("function", required=False)
@click.option(
    "--size",
    "sizes",
    multiple=True,
    metavar="MB:MS[:INIT[:RESTORE]]",
    help="Memory in MB, then duration, init and billed restore in ms, instead of a measurement; may be repeated.",
)
@click.option("--report", metavar="FILE", help="Log with REPORT lines of thawd or Lambda; - is standard input.")
@click.option("--bench", type=_PATH, help="File from `thawd bench --json`; needs FUNCTION or --memory.")
@click.option(
    "--memory", "memory_mb", type=click.IntRange(128, 10_240), help="With --bench: memory of the function in MB."
)
@click.option(
    "--arch",
    type=click.Choice(["x86_64", "arm64", "both"]),
    default="x86_64",
    show_default=True,
    help="Processor architecture.",
)
@click.option("--invocations", type=Finite(0, 1e15), default=1e6, show_default=True, help="Invocations in a month.")
@click.option(
    "--starts", type=Finite(0, 100), help="Percentage of invocations that wait for a start. Default: as measured."
)
@click.option(
    "--storage",
    "storage_mb",
    type=click.IntRange(512, 10_240),
    default=512,
    show_default=True,
    help="Size of /tmp in MB.",
)
@click.option(
    "--provisioned", type=click.IntRange(0, 10_000), default=0, help="Compare with this provisioned concurrency."
)
@click.option("--free-tier", is_flag=True, help="Subtract the account's monthly free tier.")
@click.option("--server", type=Finite(0, 1e9), help="Compare with a server of this monthly price.")
@click.option(
    "--arrivals", metavar="FILE", help='Simulate keep-warm policies with the arrival times in FILE, or in the "log".'
)
@click.option(
    "--pattern",
    help="Simulate them with generated arrivals: every=S, poisson=PER_HOUR, office=PER_HOUR, bursts=NxS.",
)
@click.option("--hours", type=Finite(1, 10_000), default=168.0, show_default=True, help="Length of --pattern in hours.")
@click.option(
    "--keep-alive",
    "keep_alive_s",
    type=Finite(0, 86_400),
    help="Fixed keep-alive time to simulate, in seconds. Default: the function's idle_timeout_s, or 300.",
)
@click.option("--prices", type=_PATH, help="Price file to use instead of the included one.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@config_option
def cost(**options: Any) -> None:
    """Estimate what FUNCTION would cost on AWS Lambda.

    The estimate uses measured durations, with init and restore. They come from FUNCTION's log, from --report, from
    --bench, or from --size, and hold for the machine that measured them. With --server and --provisioned, the output
    says from how many invocations on these cost less. With --arrivals or --pattern, it compares policies of keeping
    environments warm.
    """
    from thawd.cost.prices import CostError, load_prices

    given = CostOptions(options)
    try:
        document = _document(given, load_prices(given.prices))
    except CostError as error:
        fail(str(error))
    if given.as_json:
        click.echo(json.dumps(document, indent=2))
        return
    _print(document)


def _document(given: CostOptions, prices: Prices) -> dict[str, Any]:
    from thawd.cost import report
    from thawd.cost.prices import ARCHITECTURES, CostError
    from thawd.cost.records import by_hand, measure

    settings = load(given.config_path) if given.function is not None else None
    records = _records(given, settings)
    sizes = [by_hand(text) for text in given.sizes]
    if records or not sizes:
        sizes += measure(records)
    asked = report.Question(
        architectures=ARCHITECTURES if given.arch == "both" else (given.arch,),
        invocations=given.invocations,
        start_share=None if given.starts is None else given.starts / 100,
        storage_mb=given.storage_mb,
        provisioned=given.provisioned,
        free_tier=given.free_tier,
        server_monthly=given.server,
    )
    document: dict[str, Any] = {
        "prices": {name: getattr(prices, name) for name in ("source", "date", "region", "currency")},
        "invocations": given.invocations,
        "free_tier": given.free_tier,
        "server_monthly": given.server,
        "measured": [{"memory_mb": s.memory_mb, "count": s.count, "start_share": s.start_share} for s in sizes],
        "rows": report.rows(prices, sizes, asked),
    }
    if given.arrivals is not None and given.pattern is not None:
        raise CostError("--arrivals and --pattern exclude each other")
    if given.arrivals is not None or given.pattern is not None:
        arrivals = _arrivals(given, records, sizes[0])
        ways = report.policies(prices, sizes[0], asked, _keep_warm_question(given, settings, sizes[0], arrivals))
        document["keeping_warm"] = {
            "memory_mb": sizes[0].memory_mb,
            "arrivals": len(arrivals),
            "hours": ways[0]["spent_s"] / 3600,
            "init_measured": sizes[0].cold_ms is not None,
            "ways": ways,
        }
    return document


def _records(given: CostOptions, settings: Settings | None) -> list[Record]:
    """Measured invocations, from the first source among the options."""
    from thawd.cost.measured import read_bench
    from thawd.cost.prices import CostError
    from thawd.cost.records import read_records

    declared = None if settings is None else settings.functions.get(given.function or "")
    if given.report is not None:
        return read_records(_lines(given.report))
    if given.bench is not None:
        memory_mb = given.memory_mb or (declared.memory_mb if declared is not None else None)
        if memory_mb is None:
            raise CostError("a bench file does not hold the function's memory size; add --memory or FUNCTION")
        return read_bench(given.bench, memory_mb=memory_mb)
    if settings is not None and given.function is not None:
        return read_records(_log_lines(settings, given.function))
    return []


def _lines(name: str) -> list[str]:
    if name == "-":
        return sys.stdin.read().splitlines()
    try:
        return Path(name).read_text(errors="replace").splitlines()
    except OSError as error:
        fail(f"the log {name} cannot be read: {error.strerror}")


def _log_lines(settings: Settings, function: str) -> list[str]:
    """The lines of the function's log that are still kept."""
    from thawd.telemetry.logs.groups import DEFAULT_PREFIX, path_of_group
    from thawd.telemetry.logs.reader import LogReader

    declared = settings.functions.get(function)
    group = DEFAULT_PREFIX + function if declared is None else declared.log_group_name
    with LogReader(path_of_group(settings.server.data / "logs", group), report=warn) as log:
        lines = log.start(_MOST_LINES)
        if declared is None and not log.exists:
            known = ", ".join(settings.functions) or "none"
            fail(f"there is no function {function!r} and no log of one; {settings.path} has: {known}")
    return [line.decode(errors="replace") for line in lines]


def _arrivals(given: CostOptions, records: Sequence[Record], size: Measured) -> list[Arrival]:
    from thawd.cost.arrivals import make_arrivals, read_arrivals
    from thawd.cost.records import arrivals_of

    duration_s = size.warm_ms / 1000
    if given.pattern is not None:
        return make_arrivals(given.pattern, hours=given.hours, duration_s=duration_s)
    if given.arrivals == "log":
        return arrivals_of(records)
    return read_arrivals(Path(given.arrivals or ""), duration_s=duration_s)


def _keep_warm_question(given: CostOptions, settings: Settings | None, size: Measured, arrivals: list[Arrival]) -> Any:
    from thawd.cost.arrivals import BEGIN_S
    from thawd.cost.report import KeepWarmQuestion
    from thawd.scheduling.provisioned import ProvisionedPlan

    declared = None if settings is None else settings.functions.get(given.function or "")
    plan = None
    if settings is not None and declared is not None and settings.provisioned_schedules.get(declared.name):
        entries = settings.provisioned_schedules[declared.name]
        plan = ProvisionedPlan(entries, otherwise=declared.provisioned_concurrency)
    fixed_s = declared.idle_timeout_s if declared is not None else _KEEP_ALIVE_S
    first_ms = size.cold_ms if size.restored_ms is None else size.restored_ms
    return KeepWarmQuestion(
        arrivals=arrivals,
        keep_alive_s=fixed_s if given.keep_alive_s is None else given.keep_alive_s,
        start_s=max(0.0, (first_ms or size.warm_ms) - size.warm_ms) / 1000,
        plan=plan,
        provisioned=given.provisioned,
        # The span is the whole pattern, because a week of office hours ends with days without an arrival.
        span=None if given.pattern is None else (BEGIN_S, BEGIN_S + given.hours * 3600),
    )


def _print(document: dict[str, Any]) -> None:
    prices = document["prices"]
    click.echo(
        f"AWS Lambda, {prices['region']}, prices of {prices['date']} in {prices['currency']}: {prices['source']}"
    )
    said = "the free tier is taken off" if document["free_tier"] else "without free tier"
    click.echo(f"{document['invocations']:,.0f} invocations a month of 730 hours; {said}; billed by the millisecond")
    for size in document["measured"]:
        if size["count"]:
            waited = f"{size['start_share']:.1%} waited for a start (--starts for another share)"
            click.echo(f"{size['memory_mb']:,} MB: {size['count']:,} invocations measured, {waited}")
    click.echo()
    print_text([_shown(row, document["server_monthly"]) for row in document["rows"]], key_name="memory")
    if "keeping_warm" in document:
        _print_warm(document["keeping_warm"])


def _shown(row: dict[str, Any], server_monthly: float | None) -> dict[str, str]:
    first = "not measured" if row["first_ms"] is None else f"{row['first_ms']:,.0f} ms"
    if row["per_million"] is None:
        first = "-"  # with provisioned concurrency no request waits for a start
    # Starts without a measurement count as warm invocations, so the row shows a lower bound.
    is_low = row["first_ms"] is None and row["start_share"] > 0
    least, most = ("at least ", "at most ") if is_low else ("", "")
    shown = {
        "memory": f"{row['memory_mb']:,} MB",
        "processor": row["architecture"],
        "starts": row["kind"],
        "warm": f"{row['warm_ms']:,.0f} ms",
        "first": first,
        "waiting": f"{row['start_share']:.1%}",
        "a million": "-" if row["per_million"] is None else f"{least}{row['per_million']:,.2f}",
        "month": f"{least}{row['month']['total']:,.2f}",
    }
    if server_monthly is not None:
        shown[f"server of {server_monthly:,.2f} cheaper from"] = _count(row.get("server_cheaper_from"), most)
    shown["1 provisioned cheaper from"] = _count(row.get("provisioned_cheaper_from"), most)
    return shown


def _count(value: float | None, before: str) -> str:
    return "-" if value is None else f"{before}{value:,.0f}"


def _month(way: dict[str, Any], *, init_measured: bool) -> str:
    if way["lambda_month"] is None:
        return "-"
    return f"{'' if init_measured or not way['starts'] else 'at least '}{way['lambda_month']:,.2f}"


def _span(hours: float) -> str:
    return (
        f"{hours / 24:,.1f} days" if hours >= 48 else f"{hours:,.1f} hours" if hours >= 1 else f"{hours * 60:,.1f} min"
    )


def _print_warm(warm: dict[str, Any]) -> None:
    count = "1 arrival" if warm["arrivals"] == 1 else f"{warm['arrivals']:,} arrivals"
    click.echo(f"\nKeeping warm, simulated with {count} in {_span(warm['hours'])}, at {warm['memory_mb']:,} MB:\n")
    print_text(
        [
            {
                "policy": way["way"],
                "wait for a start": f"{way['start_share']:.2%}",
                "started ahead": f"{way['started_ahead']:,}",
                "environments": f"{way['most']:,}",
                "idle memory, GB hours a day": f"{way['idle_gb_hours_a_day']:,.2f}",
                "month on Lambda": _month(way, init_measured=warm["init_measured"]),
            }
            for way in warm["ways"]
        ],
        key_name="policy",
    )
