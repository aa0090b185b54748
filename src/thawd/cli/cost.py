"""The command ``thawd cost``: estimate what a function would cost on AWS Lambda."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from thawd.cli.exits import fail, warn
from thawd.cli.options import Finite, complete_function, config_option, examples, load
from thawd.cli.output import print_text
from thawd.system.suggestions import did_you_mean

if TYPE_CHECKING:
    from thawd.config import Settings
    from thawd.cost.keep_warm import Arrival
    from thawd.cost.prices import Prices
    from thawd.cost.records import Measured, Record

_KEEP_ALIVE_S = 300.0
_MOST_LINES = 1_000_000
_PATH = click.Path(path_type=Path)


class CostOptions:
    """The values of the options of ``thawd cost``, as attributes with types."""

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
        self.few: bool = options["few"]
        self.as_json: bool = options["as_json"]


@click.command(
    epilog=examples(
        "thawd cost classify                             # from its log",
        "thawd cost --size 1024:35:900:180 --arch both   # by hand",
        "thawd cost classify --invocations 3e6 --server 40",
        "thawd cost classify --arrivals log              # compare keep-warm policies",
    )
)
@click.argument("function", required=False, shell_complete=complete_function)
@click.option(
    "--size",
    "sizes",
    multiple=True,
    metavar="MB:MS[:INIT[:RESTORE]]",
    help="Use these figures: the memory in MB; then, in ms, the duration of an invocation, the duration of init, and "
    "the billed duration of a restore. May be repeated, for several memory sizes.",
)
@click.option(
    "--report", metavar="FILE", help="Use the REPORT lines in this log of thawd or Lambda; - reads standard input."
)
@click.option(
    "--bench", type=_PATH, help="Use the measurements in this file of `thawd bench --json`; needs FUNCTION or --memory."
)
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
    "--starts",
    type=Finite(0, 100),
    help="Percentage of invocations that wait for the start of an environment. Default: as measured, but 0 for the "
    "figures of --size, for which nothing was measured.",
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
    "--provisioned",
    type=click.IntRange(0, 10_000),
    default=0,
    help="Also show the price of this many environments that are kept initialised (provisioned concurrency).",
)
@click.option("--free-tier", is_flag=True, help="Subtract the whole monthly free tier of an AWS account.")
@click.option("--server", type=Finite(0, 1e9), help="Compare with a server that has this monthly price.")
@click.option(
    "--arrivals",
    metavar="FILE",
    help="Simulate policies for keeping environments warm, with requests at the times in FILE: one on each line, in "
    'seconds or ISO 8601. "log" stands for the times in the log of FUNCTION.',
)
@click.option(
    "--pattern",
    help="Simulate policies for keeping environments warm, with requests at generated times: every=S (one every S "
    "seconds), poisson=N (N an hour on average, at random), office=N (the same, but only Monday to Friday from 9 to 17 "
    "UTC), bursts=NxS (N within one second, every S seconds).",
)
@click.option(
    "--hours",
    type=Finite(1, 10_000),
    default=168.0,
    show_default=True,
    help="With --pattern: number of hours to simulate.",
)
@click.option(
    "--keep-alive",
    "keep_alive_s",
    type=Finite(0, 86_400),
    help="With --arrivals or --pattern: how long an idle environment is kept in the simulation, in seconds. Default: "
    "idle_timeout_s of FUNCTION; 300 if FUNCTION is not given, or not in the configuration.",
)
@click.option("--few", is_flag=True, help="Compute prices even from fewer than 30 measured invocations.")
@click.option("--prices", type=_PATH, help="Price file to use instead of the included one.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@config_option
def cost(**arguments: Any) -> None:
    """Estimate what FUNCTION would cost on AWS Lambda.

    The estimate uses durations of invocations, of init and of restores, from FUNCTION's log, --report, --bench or
    --size. On Lambda's processors, durations differ from those measured on this machine. The output shows how many
    invocations a month it takes until one provisioned environment costs less than environments on demand. With
    --server, it also shows how many it takes until the server costs less. With --provisioned, it also shows the price
    of that many provisioned environments. With --arrivals or --pattern, it compares policies for keeping environments
    warm.
    """
    from thawd.cost.prices import CostError, load_prices

    options = CostOptions(arguments)
    try:
        document = _document(options, load_prices(options.prices))
    except CostError as error:
        fail(str(error))
    if options.as_json:
        click.echo(json.dumps(document, indent=2))
        return
    _print(document)


def _document(options: CostOptions, prices: Prices) -> dict[str, Any]:
    from thawd.cost import report
    from thawd.cost.prices import ARCHITECTURES, CostError
    from thawd.cost.records import by_hand, measure, too_few

    settings = load(options.config_path) if options.function is not None else None
    records = _records(options, settings)
    sizes = [by_hand(text) for text in options.sizes]
    if records or not sizes:
        measured = measure(records)
        if not options.few and (reason := too_few(measured)) is not None:
            raise CostError(f"{reason}, or give durations with --size; --few computes it anyway")
        sizes += measured
    asked = report.Question(
        architectures=ARCHITECTURES if options.arch == "both" else (options.arch,),
        invocations=options.invocations,
        start_share=None if options.starts is None else options.starts / 100,
        storage_mb=options.storage_mb,
        provisioned=options.provisioned,
        free_tier=options.free_tier,
        server_monthly=options.server,
    )
    document: dict[str, Any] = {
        "prices": {name: getattr(prices, name) for name in ("source", "date", "region", "currency")},
        "invocations": options.invocations,
        "free_tier": options.free_tier,
        "server_monthly": options.server,
        "measured": [
            {
                "memory_mb": s.memory_mb,
                "count": s.count,
                "start_share": s.start_share,
                "warm_ms": s.warm_ms,
                "warm_error_ms": s.warm_error_ms,
            }
            for s in sizes
        ],
        "rows": report.rows(prices, sizes, asked),
    }
    if options.arrivals is not None and options.pattern is not None:
        raise CostError("--arrivals and --pattern exclude each other")
    if options.arrivals is not None or options.pattern is not None:
        arrivals = _arrivals(options, records, sizes[0])
        ways = report.policies(prices, sizes[0], asked, _keep_warm_question(options, settings, sizes[0], arrivals))
        document["keeping_warm"] = {
            "memory_mb": sizes[0].memory_mb,
            "arrivals": len(arrivals),
            "hours": ways[0]["spent_s"] / 3600,
            "init_measured": sizes[0].cold_ms is not None,
            "ways": ways,
        }
    return document


def _records(options: CostOptions, settings: Settings | None) -> list[Record]:
    """Return the measured invocations from --report, else from --bench, else from the function's log."""
    from thawd.cost.measured import read_bench
    from thawd.cost.prices import CostError
    from thawd.cost.records import read_records

    declared = None if settings is None else settings.functions.get(options.function or "")
    if options.report is not None:
        return read_records(_lines(options.report))
    if options.bench is not None:
        memory_mb = options.memory_mb or (declared.memory_mb if declared is not None else None)
        if memory_mb is None:
            raise CostError("a bench file does not contain the function's memory size; add --memory or FUNCTION")
        return read_bench(options.bench, memory_mb=memory_mb)
    if settings is not None and options.function is not None:
        return read_records(_log_lines(settings, options.function))
    return []


def _lines(name: str) -> list[str]:
    if name == "-":
        return sys.stdin.read().splitlines()
    try:
        return Path(name).read_text(errors="replace").splitlines()
    except OSError as error:
        fail(f"the log {name} cannot be read: {error.strerror}")


def _log_lines(settings: Settings, function: str) -> list[str]:
    """Return the lines of the function's log: the last million of those that rotation has kept."""
    from thawd.telemetry.logs.groups import DEFAULT_PREFIX, path_of_group
    from thawd.telemetry.logs.reader import LogReader

    declared = settings.functions.get(function)
    group = DEFAULT_PREFIX + function if declared is None else declared.log_group_name
    with LogReader(path_of_group(settings.server.data / "logs", group), report=warn) as log:
        lines = log.start(_MOST_LINES)
        if declared is None and not log.exists:
            known = did_you_mean(function, settings.functions)
            fail(f"there is no function {function!r}, and no log of such a function; {known}")
    if declared is not None and declared.log_group is not None:
        # Other functions may share the log group. The names of its log streams contain the functions' names.
        owner = f"/{function}[".encode()
        lines = [line for line in lines if owner in b"".join(line.split(b"\t", 2)[1:2])]
    return [line.decode(errors="replace") for line in lines]


def _arrivals(options: CostOptions, records: Sequence[Record], size: Measured) -> list[Arrival]:
    from thawd.cost.arrivals import make_arrivals, read_arrivals
    from thawd.cost.records import arrivals_of

    duration_s = size.warm_ms / 1000
    if options.pattern is not None:
        return make_arrivals(options.pattern, hours=options.hours, duration_s=duration_s)
    if options.arrivals == "log":
        return arrivals_of(records)
    return read_arrivals(Path(options.arrivals or ""), duration_s=duration_s)


def _keep_warm_question(
    options: CostOptions, settings: Settings | None, size: Measured, arrivals: list[Arrival]
) -> Any:
    from thawd.cost.arrivals import BEGIN_S
    from thawd.cost.report import KeepWarmQuestion
    from thawd.scheduling.provisioned import ProvisionedPlan

    declared = None if settings is None else settings.functions.get(options.function or "")
    plan = None
    if settings is not None and declared is not None and settings.provisioned_schedules.get(declared.name):
        entries = settings.provisioned_schedules[declared.name]
        plan = ProvisionedPlan(entries, otherwise=declared.provisioned_concurrency)
    fixed_s = declared.idle_timeout_s if declared is not None else _KEEP_ALIVE_S
    first_ms = size.cold_ms if size.restored_ms is None else size.restored_ms
    return KeepWarmQuestion(
        arrivals=arrivals,
        keep_alive_s=fixed_s if options.keep_alive_s is None else options.keep_alive_s,
        start_s=max(0.0, (first_ms or size.warm_ms) - size.warm_ms) / 1000,
        plan=plan,
        provisioned=options.provisioned,
        # All hours of --hours are simulated, not only those until the last arrival. Otherwise the two days without
        # requests at the end of a week of office hours would be missing.
        span=None if options.pattern is None else (BEGIN_S, BEGIN_S + options.hours * 3600),
    )


def _print(document: dict[str, Any]) -> None:
    prices = document["prices"]
    click.echo(
        f"AWS Lambda, {prices['region']}, prices of {prices['date']} in {prices['currency']}: {prices['source']}"
    )
    said = "the free tier is subtracted" if document["free_tier"] else "the free tier is not subtracted"
    click.echo(f"{document['invocations']:,.0f} invocations a month of 730 hours; {said}; billed by the millisecond")
    for size in document["measured"]:
        if size["count"]:
            waited = f"{size['start_share']:.1%} waited for a start (--starts sets another share)"
            error = "" if size["warm_error_ms"] is None else f" ±{size['warm_error_ms']:,.1f}"
            took = f"{size['warm_ms']:,.1f}{error} ms warm"
            click.echo(f"{size['memory_mb']:,} MB: {size['count']:,} invocations measured, {took}; {waited}")
    click.echo()
    print_text([_shown(row, document["server_monthly"]) for row in document["rows"]], key_name="memory")
    if "keeping_warm" in document:
        _print_warm(document["keeping_warm"])


def _shown(row: dict[str, Any], server_monthly: float | None) -> dict[str, str]:
    first = "not measured" if row["first_ms"] is None else f"{row['first_ms']:,.0f} ms"
    if row["per_million"] is None:
        first = "-"  # with provisioned concurrency no request waits for a start
    # If no start was measured, invocations that wait for a start are priced like warm ones. So prices are lower bounds,
    # and the numbers of invocations at which an alternative becomes cheaper are upper bounds.
    is_lower_bound = row["first_ms"] is None and row["start_share"] > 0
    least, most = ("at least ", "at most ") if is_lower_bound else ("", "")
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
                "prewarmed": f"{way['started_ahead']:,}",
                "environments": f"{way['most']:,}",
                "idle memory, GB hours a day": f"{way['idle_gb_hours_a_day']:,.2f}",
                "month on Lambda": _month(way, init_measured=warm["init_measured"]),
            }
            for way in warm["ways"]
        ],
        key_name="policy",
    )
