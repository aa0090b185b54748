"""The command ``thawd bench``: measure a function, a route or a URL under load, and compare two measurements."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from thawd.cli import bench_plans
from thawd.cli.exits import EXIT_FAILED, EXIT_INTERRUPTED, fail, warn
from thawd.cli.options import Finite, check_page, check_writable, config_option, examples
from thawd.errors import ThawdError

if TYPE_CHECKING:
    from thawd.bench.load import Load
    from thawd.bench.runs import LoadShape, Run
    from thawd.bench.summary import Summary

EXIT_WRONG_ANSWERS = 3
"""Exit status: some answers were not as expected; see --expect-status and --expect-text."""
EXIT_REGRESSION = 4
"""Exit status, with --fail-above: a run of the second file is slower than allowed, or has a larger share of wrong
answers than its counterpart in the first file, or one of the two has no right answer."""

_ENGINES = ("auto", "cold", "fork", "thaw", "provisioned")


@click.command(
    epilog=examples(
        "thawd bench classify -n 5000 -C 8                  # eight requests in flight",
        "thawd bench /classify --rate 200 --duration 60     # 200 requests a second",
        "thawd bench classify --engine cold --engine thaw --html starts.html",
        "thawd bench --compare before.json after.json --fail-above 1.2",
    )
)
@click.argument("target", required=False)
@click.option(
    "-n",
    "--requests",
    type=click.IntRange(1),
    help="Largest number of requests. Default: 1,000; with --duration or --arrivals, no limit.",
)
@click.option("--duration", "duration_s", type=Finite(0, min_open=True), help="Send requests for this many seconds.")
@click.option(
    "-C",
    "--concurrency",
    type=click.IntRange(1, 10_000),
    help="Closed loop: keep this many requests in flight; each answer is followed by the next request. Default: 1.",
)
@click.option(
    "--rate",
    type=Finite(0, min_open=True),
    help="Open loop: send this many requests a second, whether or not earlier ones are answered.",
)
@click.option(
    "--pattern",
    type=click.Choice(["constant", "poisson", "bursts"]),
    help="With --rate: intervals between requests: equal (constant), random (poisson), or equal between groups of "
    "requests (bursts). Default: poisson.",
)
@click.option("--burst", type=click.IntRange(1), help="With --pattern bursts: requests in a burst. Default: 10.")
@click.option(
    "--seed", type=int, default=1, show_default=True, help="With --pattern poisson: seed of the random times."
)
@click.option(
    "--arrivals",
    type=click.Path(path_type=Path),
    help="Open loop: send requests at the times in this file, which has one time in seconds on each line.",
)
@click.option("--speed", type=Finite(0, min_open=True), help="Replay --arrivals this many times as fast. Default: 1.")
@click.option(
    "--engine",
    "engines",
    type=click.Choice(_ENGINES),
    multiple=True,
    help="How environments start, on a private server. auto: as configured; cold: each runs init; fork: from a process "
    "that has run init; thaw: from the snapshot; provisioned: before the load begins. May be repeated, to measure "
    "several ways in turn.",
)
@click.option(
    "--from",
    "begun_from",
    type=click.Choice(["zero", "one", "warm"]),
    help="Environments that exist when the load begins, on a private server: none, one, or those that uncounted "
    "requests have started (warm). Default: zero. No effect with --engine provisioned.",
)
@click.option(
    "--environments",
    type=click.IntRange(1),
    help="Limit of environments on a private server. Default: the number of requests in flight; in an open loop, 16 "
    "for each processor core.",
)
@click.option(
    "--warm-up",
    type=click.IntRange(0),
    default=0,
    help="Number of requests to send one by one before the measurement, not counted.",
)
@click.option(
    "-p",
    "--payload",
    "payloads",
    multiple=True,
    help="Body of the requests, or @FILE to read it from a file. May be repeated; the bodies are then sent in turn.",
)
@click.option(
    "-X",
    "--method",
    type=click.Choice(["GET", "POST", "PUT", "PATCH", "DELETE"]),
    help="HTTP method, for a route or a URL. Default: POST with a payload, else GET.",
)
@click.option("-H", "--header", "headers", multiple=True, help="Header to add, as NAME: VALUE; may be repeated.")
@click.option(
    "--expect-status",
    "statuses",
    type=click.IntRange(100, 599),
    multiple=True,
    help="HTTP status that counts as right; may be repeated. Default: any 2xx without a function error.",
)
@click.option("--expect-text", default="", help="Text that a right answer contains.")
@click.option(
    "--timeout",
    "timeout_s",
    type=Finite(0, min_open=True),
    default=900.0,
    show_default=True,
    help="Seconds after which a request counts as failed.",
)
@click.option(
    "--connections",
    type=click.IntRange(1, 50_000),
    default=2000,
    show_default=True,
    help="Open loop: largest number of connections.",
)
@click.option("--label", help="Name of the run in tables and plots.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the whole measurement to this file.")
@click.option("--csv", "csv_file", type=click.Path(path_type=Path), help="Write a line for each request to this file.")
@click.option("--html", "html_file", type=click.Path(path_type=Path), help="Write a report with plots to this file.")
@click.option(
    "--compare",
    "compared",
    nargs=2,
    type=click.Path(path_type=Path),
    help="Compare two files that --json wrote, instead of measuring.",
)
@click.option(
    "--fail-above",
    type=Finite(0, min_open=True),
    help="With --compare: exit with status 4 if a percentile rose by more than this factor even at the lower bound of "
    "its 95 % interval, or if a larger share of the answers is wrong, or if no answer is right.",
)
@config_option
def bench(**options: Any) -> None:
    """Measure TARGET under load.

    TARGET is the name of a function, the path of a route such as /classify, or any http(s) URL. Functions and routes
    are measured on the running server. With --engine or --from, a private server is started for the measurement
    instead: a second server with the same thawd.toml and an empty data folder. Buckets and remote tables are the same.

    Ctrl-C stops sending, and the command waits for the last answers; a second Ctrl-C ends it without waiting. In both
    cases the figures so far are printed. The exit status is 3 if some answers were wrong, and 130 after Ctrl-C.
    """
    try:
        _check_use(options)
        if options["compared"]:
            _compare(options)
        elif options["target"] is None:
            raise click.UsageError("name a TARGET: a function, a /path, or an http(s) URL; or use --compare")
        else:
            _measure(options)
    except ThawdError as error:
        fail(str(error))


def _check_use(options: Mapping[str, Any]) -> None:
    """Refuse options that would have no effect."""
    if options["compared"]:
        for name in ("target", "json_file", "csv_file"):
            if options[name] is not None:
                raise click.UsageError(f"--compare measures nothing, so {_NAMES[name]} has no effect")
    elif options["fail_above"] is not None:
        raise click.UsageError("--fail-above has no effect without --compare")
    if options["speed"] is not None and options["arrivals"] is None:
        raise click.UsageError("--speed has no effect without --arrivals")


_NAMES = {"target": "TARGET", "json_file": "--json", "csv_file": "--csv"}


def _compare(options: Mapping[str, Any]) -> None:
    from thawd.bench import comparison, runs, text
    from thawd.bench.report import Against, page
    from thawd.bench.summary import require_library, summarise

    paths = options["compared"]
    before, after = (runs.read_json(path) for path in paths)
    check_page(options["html_file"])
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
                click.echo(
                    f"{second.label}: {ratio.name} is more than {options['fail_above']:g} times as high, even at the "
                    "lower bound"
                )
            more_wrong = wrong[1] * len(first.columns) > wrong[0] * len(second.columns)
            if more_wrong:
                click.echo(f"{second.label}: a larger share of the answers is wrong")
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
    """A run's name on a page that compares it with a run of another file: its label and the name of its file."""
    return f"{run.label} ({path.stem})"


def _pairs(before: list[Run], after: list[Run]) -> list[tuple[Run, Run]]:
    """Pairs of runs with the same label. If each file has only one run, the two are a pair whatever their labels."""
    if len(before) == len(after) == 1:
        return [(before[0], after[0])]
    by_label = {run.label: run for run in after}
    pairs = [(run, by_label[run.label]) for run in before if run.label in by_label]
    if not pairs:
        fail(
            f"no run label occurs in both files: the first has {', '.join(r.label for r in before)}, the second has "
            f"{', '.join(by_label)}"
        )
    paired = {run.label for run, _ in pairs}
    alone = dict.fromkeys(run.label for run in (*before, *after) if run.label not in paired)
    if alone:
        warn(f"not compared, because only one of the files has them: {', '.join(alone)}")
    return pairs


def _measure(options: Mapping[str, Any]) -> None:
    from thawd.bench import text
    from thawd.bench.summary import require_library, summarise
    from thawd.server.exclusive_resources import raise_descriptor_limit

    require_library()
    raise_descriptor_limit()
    written = [options[name] for name in ("json_file", "csv_file", "html_file") if options[name] is not None]
    for path in written:
        check_writable(path)
        if written.count(path) > 1:
            raise click.UsageError(f"two options name the same file {path}")
    check_page(options["html_file"])
    bench_plans.check_files(options)
    measured, status = _runs(options, bench_plans.shape_of(options))
    summaries = [summarise(run) for run in measured]
    for line in text.lines_of(measured, summaries):
        click.echo(line)
    _write(options, measured, summaries)
    if not status and any(summary.errors for summary in summaries):
        status = EXIT_WRONG_ANSWERS
    if status:
        sys.exit(status)


def _runs(options: Mapping[str, Any], shape: LoadShape) -> tuple[list[Run], int]:
    """Measure with each engine (the values of --engine). Returns runs and exit status, even if one run fails."""
    from thawd.bench.measuring import measure

    measured: list[Run] = []
    status = 0
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
            status = EXIT_FAILED if isinstance(error, ThawdError) else EXIT_INTERRUPTED
            if len(measured) == before:
                warn(f"{engine} was not measured: {error if str(error) else 'ended by Ctrl-C'}")
        if measured[-1].interrupted:
            status = EXIT_INTERRUPTED
        if status == EXIT_INTERRUPTED:
            break
    return measured, status


def _write(options: Mapping[str, Any], measured: list[Run], summaries: list[Summary]) -> None:
    from thawd.bench import runs
    from thawd.bench.report import page

    if options["json_file"] is not None:
        import msgspec

        runs.write_json(options["json_file"], measured, [msgspec.to_builtins(summary) for summary in summaries])
    if options["csv_file"] is not None:
        runs.write_csv(options["csv_file"], measured)
    if options["html_file"] is not None:
        options["html_file"].write_text(page(measured, summaries))


def _named(run: Run, others: list[Run]) -> Run:
    """The run, with a number added to its label if another run has that label: --engine may name an engine twice."""
    import msgspec

    taken = {other.label for other in others}
    names = (run.label, *(f"{run.label} {number}" for number in range(2, len(others) + 2)))
    return msgspec.structs.replace(run, label=next(name for name in names if name not in taken))


@contextlib.contextmanager
def _progress(shape: LoadShape) -> Iterator[Any]:
    """Print progress on standard error: on a terminal one line that is updated, else a line every five seconds."""
    is_terminal = sys.stderr.isatty()
    printed_s = 0.0
    shown = ending = False

    def report(load: Load, for_s: float) -> None:
        nonlocal printed_s, shown, ending
        if not is_terminal and for_s - printed_s < 5 and load.stopped == ending:
            return
        printed_s, ending = for_s, load.stopped
        shown = True
        done, wrong = len(load.samples), load.samples.errors()
        of = "" if shape.requests is None else f" of {shape.requests:,}"
        line = f"  {for_s:5.1f} s  {done:,}{of} answered, {wrong:,} wrong, {load.in_flight:,} in flight"
        if load.waiting:
            line += f", {len(load.waiting):,} not sent yet"
        if load.stopped:
            line += "; waiting for the answers, Ctrl-C ends without them"
        click.echo(f"\r\x1b[K{line}" if is_terminal else line, err=True, nl=not is_terminal)

    try:
        yield report
    finally:
        if is_terminal and shown:
            click.echo("\r\x1b[K", err=True, nl=False)
