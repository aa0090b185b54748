"""The verb ``thawd bench``: measure a function, a route or an address, and compare what was measured."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from thawd.cli import bench_plans
from thawd.cli.verbs import EXIT_FAILED, EXIT_INTERRUPTED, Finite, check_writable, config_option, fail, warn
from thawd.errors import ThawdError

if TYPE_CHECKING:
    from thawd.bench.load import Load
    from thawd.bench.runs import LoadShape, Run
    from thawd.bench.summary import Summary

EXIT_WRONG_ANSWERS = 3
"""Some answers were not what was expected; see --expect-status."""
EXIT_REGRESSION = 4
"""The second of two runs is slower than --fail-above allows, or has a larger share of wrong answers."""

_ENGINES = ("auto", "cold", "fork", "thaw", "provisioned")


@click.command()
@click.argument("target", required=False)
@click.option("-n", "--requests", type=click.IntRange(1), help="Requests in all; 1,000 unless --duration is given.")
@click.option("--duration", "duration_s", type=Finite(0, min_open=True), help="Seconds to send for.")
@click.option(
    "-C", "--concurrency", type=click.IntRange(1, 10_000), help="Closed loop: requests at a time; 1 by default."
)
@click.option("--rate", type=Finite(0, min_open=True), help="Open loop: requests a second, whatever comes back.")
@click.option("--pattern", type=click.Choice(["constant", "poisson", "bursts"]), help="Of --rate; poisson by default.")
@click.option("--burst", type=click.IntRange(1), help="Requests of a burst, for --pattern bursts; 10 by default.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of the random times of --pattern poisson.")
@click.option(
    "--arrivals", type=click.Path(path_type=Path), help="Open loop: a file with a time in seconds on each line."
)
@click.option("--speed", type=Finite(0, min_open=True), help="Play --arrivals so many times as fast; 1 by default.")
@click.option(
    "--engine",
    "engines",
    type=click.Choice(_ENGINES),
    multiple=True,
    help="How environments start, on a private server; given more than once, one run each.",
)
@click.option(
    "--from",
    "begun_from",
    type=click.Choice(["zero", "one", "warm"]),
    help="Environments alive when the load begins, on a private server; zero by default.",
)
@click.option(
    "--environments",
    type=click.IntRange(1),
    help="Private server: most at once; by default one for each request at a time.",
)
@click.option(
    "--warm-up", type=click.IntRange(0), default=0, help="So many requests before, one by one, that do not count."
)
@click.option(
    "-p", "--payload", "payloads", multiple=True, help="The body; @FILE reads it. More than one: sent in turn."
)
@click.option(
    "-X",
    "--method",
    type=click.Choice(["GET", "POST", "PUT", "PATCH", "DELETE"]),
    help="Of a route or address; POST with a payload, else GET.",
)
@click.option("-H", "--header", "headers", multiple=True, help="A further header of requests, NAME: VALUE.")
@click.option(
    "--expect-status",
    "statuses",
    type=click.IntRange(100, 599),
    multiple=True,
    help="Right answers have this status; by default any 2xx and no function error.",
)
@click.option("--expect-text", default="", help="Right answers contain this.")
@click.option(
    "--timeout",
    "timeout_s",
    type=Finite(0, min_open=True),
    default=900.0,
    show_default=True,
    help="Seconds after which a request is given up.",
)
@click.option(
    "--connections", type=click.IntRange(1, 50_000), default=2000, show_default=True, help="Open loop: most at once."
)
@click.option("--label", help="Name of the run in tables and plots.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write all that was measured there.")
@click.option("--csv", "csv_file", type=click.Path(path_type=Path), help="Write a line for each request there.")
@click.option("--html", "html_file", type=click.Path(path_type=Path), help="Write a report with plots there, one file.")
@click.option(
    "--compare",
    "compared",
    nargs=2,
    type=click.Path(path_type=Path),
    help="Compare two files of --json; measure nothing.",
)
@click.option(
    "--fail-above",
    type=Finite(0, min_open=True),
    help="With --compare: exit status 4 where a percentile is surely more than so many times as high.",
)
@config_option
def bench(**options: Any) -> None:
    """Measure TARGET under load: a function's name, a route's path such as /classify, or any http(s) address.

    With --engine or --from a private server of the configuration is started for it, with empty data, and stopped
    afterwards; else a function or route is measured on the running server, as it is. Ctrl-C ends the load with its last
    answers, a second one at once; what was measured is told. Exit status 3: some answers were wrong; 130: Ctrl-C.
    """
    try:
        _check_use(options)
        if options["compared"]:
            _compare(options)
        elif options["target"] is None:
            raise click.UsageError("say what to measure: a function, a /path, or an http(s) address; or give --compare")
        else:
            _measure(options)
    except ThawdError as error:
        fail(str(error))


def _check_use(options: Mapping[str, Any]) -> None:
    """Refuse options that would have no effect: who gives one believes that it has."""
    if options["compared"]:
        for name in ("target", "json_file", "csv_file"):
            if options[name] is not None:
                raise click.UsageError(f"--compare measures nothing; it takes no {_NAMES[name]}")
    elif options["fail_above"] is not None:
        raise click.UsageError("--fail-above is for --compare")
    if options["speed"] is not None and options["arrivals"] is None:
        raise click.UsageError("--speed is for --arrivals")


_NAMES = {"target": "TARGET", "json_file": "--json", "csv_file": "--csv"}


def _compare(options: Mapping[str, Any]) -> None:
    from thawd.bench import comparison, runs, text
    from thawd.bench.report import Against, page
    from thawd.bench.summary import require_library, summarise

    paths = options["compared"]
    before, after = (runs.read_json(path) for path in paths)
    check_writable(options["html_file"])
    pairs = _pairs(before, after)
    worse = False
    against = []
    for index, (first, second) in enumerate(pairs):
        if index:
            click.echo()
        lines = comparison.compare(first, second)
        wrong = [len(run.columns) - sum(1 for _ in run.columns.right()) for run in (first, second)]
        for line in text.lines_of_comparison(first, second, lines, (wrong[0], wrong[1])):
            click.echo(line)
        differences = comparison.differences(first, second)
        for note in differences:
            click.echo(f"  note: {note}")
        names = (_in_file(first, paths[0]), _in_file(second, paths[1]))
        against.append(Against(*names, lines, differences))
        if options["fail_above"] is not None:
            slower = comparison.regressions(lines, above=options["fail_above"])
            for ratio in slower:
                click.echo(f"{second.label}: {ratio.name} is surely more than {options['fail_above']:g} times as high")
            more_wrong = wrong[1] * len(first.columns) > wrong[0] * len(second.columns)
            if more_wrong:
                click.echo(f"{second.label}: a larger share of answers is wrong")
            worse = worse or bool(slower) or more_wrong or not lines
    if options["html_file"] is not None:
        require_library()
        import msgspec

        shown = [
            msgspec.structs.replace(pair[side], label=_in_file(pair[side], path))
            for side, path in enumerate(paths)
            for pair in pairs
        ]
        options["html_file"].write_text(page(shown, [summarise(run) for run in shown], against))
    if worse:
        sys.exit(EXIT_REGRESSION)


def _in_file(run: Run, path: Path) -> str:
    """A run's name on a page with those of another file."""
    return f"{run.label} ({path.stem})"


def _pairs(before: list[Run], after: list[Run]) -> list[tuple[Run, Run]]:
    """Runs of the same label; the only ones, where each file holds one."""
    if len(before) == len(after) == 1:
        return [(before[0], after[0])]
    by_label = {run.label: run for run in after}
    pairs = [(run, by_label[run.label]) for run in before if run.label in by_label]
    if not pairs:
        fail(f"no label is in both files: {', '.join(r.label for r in before)} and {', '.join(by_label)}")
    paired = {run.label for run, _ in pairs}
    alone = dict.fromkeys(run.label for run in (*before, *after) if run.label not in paired)
    if alone:
        warn(f"in one of the files only, not compared: {', '.join(alone)}")
    return pairs


def _measure(options: Mapping[str, Any]) -> None:
    from thawd.bench import text
    from thawd.bench.summary import require_library, summarise
    from thawd.server.claims import raise_descriptor_limit

    require_library()
    raise_descriptor_limit()
    written = [options[name] for name in ("json_file", "csv_file", "html_file") if options[name] is not None]
    for path in written:
        check_writable(path)
        if written.count(path) > 1:
            raise click.UsageError(f"two things are both to be written to {path}")
    bench_plans.check_files(options)
    measured, exits = _runs(options, bench_plans.shape_of(options))
    summaries = [summarise(run) for run in measured]
    for line in text.lines_of(measured, summaries):
        click.echo(line)
    _write(options, measured, summaries)
    if not exits and any(told.errors for told in summaries):
        exits = EXIT_WRONG_ANSWERS
    if exits:
        sys.exit(exits)


def _runs(options: Mapping[str, Any], shape: LoadShape) -> tuple[list[Run], int]:
    """What was measured, one run for each engine, and the exit status: what went before a failure is not lost."""
    from thawd.bench.measuring import measure

    measured: list[Run] = []
    exits = 0
    for engine in options["engines"] or (None,):
        before = len(measured)
        try:
            with bench_plans.plan(options, shape, engine) as plan:
                warn(f"measuring {plan.target_name}" + (f" ({plan.engine})" if plan.engine else ""))
                with _progress(shape) as progress:
                    measured.append(_named(measure(plan, progress=progress), measured))
        except (ThawdError, KeyboardInterrupt) as error:
            if not measured:
                raise
            exits = EXIT_FAILED if isinstance(error, ThawdError) else EXIT_INTERRUPTED
            if len(measured) == before:
                warn(f"{engine}, not measured: {error if str(error) else 'ended by Ctrl-C'}")
        if measured[-1].interrupted:
            exits = EXIT_INTERRUPTED
        if exits == EXIT_INTERRUPTED:
            break
    return measured, exits


def _write(options: Mapping[str, Any], measured: list[Run], summaries: list[Summary]) -> None:
    from thawd.bench import runs
    from thawd.bench.report import page

    if options["json_file"] is not None:
        import msgspec

        runs.write_json(options["json_file"], measured, [msgspec.to_builtins(told) for told in summaries])
    if options["csv_file"] is not None:
        runs.write_csv(options["csv_file"], measured)
    if options["html_file"] is not None:
        options["html_file"].write_text(page(measured, summaries))


def _named(run: Run, others: list[Run]) -> Run:
    """The run under a name that none of the others has: an engine may be measured twice."""
    import msgspec

    taken = {other.label for other in others}
    names = (run.label, *(f"{run.label} {number}" for number in range(2, len(others) + 2)))
    return msgspec.structs.replace(run, label=next(name for name in names if name not in taken))


@contextlib.contextmanager
def _progress(shape: LoadShape) -> Iterator[Any]:
    """Tells on standard error how far the load is: in one line on a terminal, else in one every five seconds."""
    is_terminal = sys.stderr.isatty()
    told_s = 0.0
    shown = ending = False

    def tell(load: Load, for_s: float) -> None:
        nonlocal told_s, shown, ending
        if not is_terminal and for_s - told_s < 5 and load.stopped == ending:
            return
        told_s, ending = for_s, load.stopped
        shown = True
        done, wrong = len(load.samples), load.samples.errors()
        of = "" if shape.requests is None else f" of {shape.requests:,}"
        line = f"  {for_s:5.1f} s  {done:,}{of} answered, {wrong:,} wrong, {load.in_flight:,} under way"
        if load.waiting:
            line += f", {len(load.waiting):,} not sent yet"
        if load.stopped:
            line += "; waiting for these, Ctrl-C gives them up"
        click.echo(f"\r\x1b[K{line}" if is_terminal else line, err=True, nl=not is_terminal)

    try:
        yield tell
    finally:
        if is_terminal and shown:
            click.echo("\r\x1b[K", err=True, nl=False)
