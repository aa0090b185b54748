"""The command ``thawd tune``: find the memory size that suits a function."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from thawd.cli.exits import EXIT_INTERRUPTED, fail, warn
from thawd.cli.options import Finite, check_page, complete_function, config_option, examples, load, project_of
from thawd.cli.output import print_text
from thawd.cli.project_functions import copied_function
from thawd.system.suggestions import did_you_mean

if TYPE_CHECKING:
    from thawd.config import Settings
    from thawd.cost.tune import Size, Tuned

_PATH = click.Path(path_type=Path)


@click.command(
    epilog=examples(
        "thawd tune classify -p @event.json",
        "thawd tune classify --memory 512,1024,2048 --html tuning.html",
    )
)
@click.argument("function", shell_complete=complete_function)
@click.option(
    "--memory",
    "sizes_mb",
    metavar="MB,MB,…",
    help="Memory sizes to try, in MB. Default: 128, 256, 512, 1024, 1536, 1769 and 3008, without those for which this "
    "machine has too few CPUs.",
)
@click.option(
    "-p",
    "--payload",
    "payloads",
    multiple=True,
    help="An event as JSON, or @FILE to read it from a file. May be repeated: the events are used in rotation. "
    "Default: {}.",
)
@click.option(
    "--runs",
    type=click.IntRange(1, 100_000),
    default=20,
    show_default=True,
    help="Number of measured warm invocations at each size.",
)
@click.option(
    "--starts",
    type=click.IntRange(0, 1000),
    default=3,
    show_default=True,
    help="At each size, start this many environments cold, and as many from a snapshot; 0: measure no starts.",
)
@click.option(
    "--arch",
    type=click.Choice(["x86_64", "arm64"]),
    default="x86_64",
    show_default=True,
    help="Processor architecture whose prices apply.",
)
@click.option(
    "--weight",
    type=Finite(0, 1),
    default=0.5,
    show_default=True,
    help="Weight of the price in the choice of the balanced size, compared with the weight of the time. With 1, only "
    "the price counts; with 0, only the time.",
)
@click.option(
    "--no-cpu-limits",
    "unlimited",
    is_flag=True,
    help="Measure even if this machine does not allow CPU limits. Small sizes are then faster than on Lambda.",
)
@click.option("--html", "html_path", type=_PATH, help="Write a page with a plot into this file. Needs thawd[bench].")
@click.option("--prices", type=_PATH, help="Price file to use instead of the included one.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@config_option
def tune(**options: Any) -> None:
    """Find the best memory size for FUNCTION by running it.

    FUNCTION runs at several memory sizes. At each size, the command measures invocations in warm environments, in
    environments that start cold, and in environments that are thawed from a snapshot. The result names the cheapest
    size, the fastest size and the balanced size. The balanced size has the lowest weighted sum of price and time (see
    --weight), each divided by its highest value at any size. The command starts a private server for each size, whose
    environments get the CPU share that Lambda allots to the memory. A server that runs already is not used.

    In the folder of a project of SAM, CDK or Serverless, FUNCTION is the name or the logical id of a function of the
    running server. Its code and settings are copied from there, and it uses the AWS services of the running server.
    """
    from thawd.cost import tune as tuning

    settings = load(options["config_path"])
    function: str = options["function"]
    sizes_mb = _sizes(options["sizes_mb"]) or tuning.default_sizes()
    check_page(options["html_path"])
    with contextlib.ExitStack() as stack:
        aws = "none"
        if project_of(options["config_path"]) is not None:
            copied = stack.enter_context(copied_function(settings, function))
            settings, function, aws = copied.settings, copied.name, copied.aws
        if function not in settings.functions:
            fail(f"there is no function {function!r}; {did_you_mean(function, settings.functions)}")
        _tune(settings, function, sizes_mb, options, aws=aws)


def _tune(settings: Settings, function: str, sizes_mb: list[int], options: Mapping[str, Any], *, aws: str) -> None:
    import msgspec

    from thawd.cost import tune as tuning
    from thawd.cost import tune_page
    from thawd.cost.prices import CostError, load_prices
    from thawd.errors import StoreError

    trial = tuning.Trial(
        events=tuple(_event(text) for text in options["payloads"] or ("{}",)),
        runs=options["runs"],
        starts=options["starts"],
        unlimited=options["unlimited"],
        aws=aws,
    )
    try:
        prices = load_prices(options["prices"])
        trials = tuning.tune(settings, function, sizes_mb, trial, progress=lambda line: click.echo(line, err=True))
    except (CostError, StoreError) as error:
        fail(str(error))
    tuned = tuning.priced(
        function, trials.sizes, prices, architecture=options["arch"], limited=trials.limited, weight=options["weight"]
    )
    if options["as_json"]:
        click.echo(msgspec.json.format(msgspec.json.encode(tuned)).decode())
    else:
        _print_tuned(tuned)
    if options["html_path"] is not None:
        said = f"{prices.region}, prices of {prices.date} in {prices.currency}"
        options["html_path"].write_text(tune_page.page(tuned, prices_said=said, runs=trial.runs))
    if trials.interrupted:
        warn(f"ended by Ctrl-C after {len(tuned.sizes)} of {len(sizes_mb)} sizes")
        sys.exit(EXIT_INTERRUPTED)
    if not tuned.per_million:
        fail("the function failed at every size")


def _sizes(text: str | None) -> list[int]:
    if text is None:
        return []
    sizes = [int(part) if part.isdecimal() else 0 for part in text.split(",")]
    if not all(128 <= size <= 10_240 for size in sizes):
        fail(f"--memory {text}: the sizes must be whole numbers from 128 to 10240, separated by commas")
    return sorted(set(sizes))


def _event(text: str) -> bytes:
    """Return the event that an option ``--payload`` contains or names. If it is not JSON, the command ends."""
    try:
        event = Path(text[1:]).read_bytes() if text.startswith("@") else text.encode()
        json.loads(event)
    except OSError as error:
        fail(f"the payload {text[1:]} cannot be read: {error.strerror}")
    except ValueError as error:
        fail(f"the payload {text[:80]} is not JSON: {error}")
    return event


def _print_tuned(tuned: Tuned) -> None:
    from thawd.cost.tune_page import marks_of

    if not tuned.limited:
        click.echo("measured without CPU limits: small sizes are faster here than on Lambda")
    rows = [
        {
            "memory": f"{size.memory_mb:,} MB",
            "CPU": f"{size.cpus:.2f}",
            "warm": _warm(size),
            "with init": _ms(None if size.measured is None else size.measured.cold_ms),
            "with restore": _ms(None if size.measured is None else size.measured.restored_ms),
            "used": "-" if size.most_memory_mb is None else f"{size.most_memory_mb:,} MB",
            "a million": f"{tuned.per_million[size.memory_mb]:,.2f}" if size.measured is not None else "-",
            "": ", ".join(marks_of(tuned, size.memory_mb)) or size.failure or "",
        }
        for size in tuned.sizes
    ]
    print_text(rows, key_name="memory")
    if (said := _noise(tuned)) is not None:
        click.echo(said)


def _warm(size: Size) -> str:
    """The time of warm invocations, with half of the width of its interval."""
    if size.measured is None or size.warm_interval_ms is None:
        return _ms(None if size.measured is None else size.measured.warm_ms)
    low, high = size.warm_interval_ms
    return f"{size.measured.warm_ms:,.1f} ±{(high - low) / 2:,.1f} ms"


def _noise(tuned: Tuned) -> str | None:
    """Which sizes the measurements cannot tell apart; None: the fastest size is faster than all others."""
    alike = tuned.as_fast
    if not alike:
        return "too few runs to say how sure these times are: --runs 20 or more" if tuned.per_million else None
    if len(alike) == 1:
        return None
    cheapest = min(alike, key=lambda size: tuned.per_million[size])
    return (
        f"{min(alike):,}-{max(alike):,} MB are within noise: their times may be equal (95 %). Of these, "
        f"{cheapest:,} MB costs least. More --runs tell smaller differences apart"
    )


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f} ms"
