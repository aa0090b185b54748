"""The command ``thawd bench``: measure a function, a route or a URL under load, and compare two measurements."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from thawd.cli import bench_plans
from thawd.cli.bench_remote import check_use, remote_options
from thawd.cli.exits import EXIT_FAILED, EXIT_INTERRUPTED, fail, warn
from thawd.cli.options import Finite, check_page, check_writable, config_option, examples
from thawd.errors import ThawdError

if TYPE_CHECKING:
    from thawd.bench.load import Load
    from thawd.bench.runs import LoadShape, Run
    from thawd.bench.summary import Summary

EXIT_WRONG_ANSWERS = 3
"""Exit status: some answers were wrong. The options --expect-status and --expect-text say which answers are right."""
EXIT_REGRESSION = 4
"""Exit status, with --fail-above: of two runs with the same label, the run in the second file is slower than allowed or
has a larger share of wrong answers than the run in the first file, or one of the two has no right answer."""

_ENGINES = ("auto", "cold", "fork", "thaw", "provisioned")


@click.command(
    epilog=examples(
        "thawd bench classify -n 5000 -C 8                  # eight requests in flight",
        "thawd bench /classify --rate 200 --duration 60     # 200 requests a second",
        "thawd bench classify --engine cold --engine thaw --html starts.html",
        "thawd bench classify --remote -C 8                 # the function that thawd deploy aws has deployed",
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
    help="Closed loop: keep this many requests in flight; after each answer, send the next request. Default: 1.",
)
@click.option(
    "--rate",
    type=Finite(0, min_open=True),
    help="Open loop: send this many requests a second, whether or not earlier requests have been answered.",
)
@click.option(
    "--pattern",
    type=click.Choice(["constant", "poisson", "bursts"]),
    help="With --rate: when requests are sent. constant: at equal intervals; poisson: at random; bursts: in groups, at "
    "equal intervals. Default: bursts with --burst, else poisson.",
)
@click.option("--burst", type=click.IntRange(1), help="With --rate: number of requests in a burst. Default: 10.")
@click.option(
    "--seed", type=int, default=1, show_default=True, help="With --pattern poisson: seed of the random times."
)
@click.option(
    "--arrivals",
    type=click.Path(path_type=Path),
    help="Open loop: send requests at the times in this file, which has one time in seconds on each line. The first "
    "request is sent at the beginning; only the differences between the times count.",
)
@click.option(
    "--speed",
    type=Finite(0, min_open=True),
    help="With --arrivals: send the requests this many times as fast as recorded. Default: 1.",
)
@click.option(
    "--engine",
    "engines",
    type=click.Choice(_ENGINES),
    multiple=True,
    help="Measure on a private server whose environments start in this way. auto: as configured; cold: each runs init; "
    "fork: forked from a process that has run init; thaw: thawed from the snapshot; provisioned: started before the "
    "load begins. May be repeated, to measure several of these one after the other.",
)
@click.option(
    "--from",
    "begun_from",
    type=click.Choice(["zero", "one", "warm"]),
    help="Measure on a private server, which has these environments when the load begins. zero: none. one: one "
    "environment. warm: as many as some uncounted requests have started before the measurement. Default with --engine: "
    "zero. No effect with --engine provisioned.",
)
@click.option(
    "--environments",
    type=click.IntRange(1),
    help="With --engine or --from: largest number of environments. Default: the value of --concurrency; with --rate or "
    "--arrivals, 16 for each processor core.",
)
@click.option(
    "--warm-up",
    type=click.IntRange(0),
    default=0,
    help="Send this many requests one by one before the measurement. They are not counted.",
)
@click.option(
    "-p",
    "--payload",
    "payloads",
    multiple=True,
    help="Body of the requests, or @FILE to read it from a file. May be repeated: the bodies are used in rotation.",
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
    help="HTTP status of a right answer; may be repeated. Default: 200 to 299, without a function error.",
)
@click.option("--expect-text", default="", help="Text that a right answer contains in its first 64 KiB.")
@click.option(
    "--timeout",
    "timeout_s",
    type=Finite(0, min_open=True),
    default=900.0,
    show_default=True,
    help="Seconds after which a request without a complete answer counts as failed.",
)
@click.option(
    "--connections",
    type=click.IntRange(1, 50_000),
    default=2000,
    show_default=True,
    help="Open loop: largest number of connections.",
)
@click.option("--label", help="Name of the run in tables and plots.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write all that was measured to this file.")
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
    help="With --compare: highest factor by which a percentile of latency is allowed to rise. The exit status is 4 if "
    "even the lower bound of the factor's 95 % interval is higher, if a larger share of the answers is wrong, or if a "
    "run has no right answer.",
)
@remote_options
@config_option
def bench(**options: Any) -> None:
    """Measure TARGET under load.

    Measurements and reports need the extra bench: pip install 'thawd[bench]'.

    TARGET is the name of a function, the path of a route such as /classify, or any http(s) URL. Functions and routes
    are measured on the running server. There, the logical id of a project's function will do, too. With --engine or
    --from, they are measured on a private server, which the command starts for the measurement. It has the same
    thawd.toml, but a data folder of its own, which is empty. Buckets, and tables outside the data folder, are the
    configured ones: a function that writes to them changes them. A project's function is copied from the running
    server, and uses the AWS services of that one.

    With --remote, TARGET is a function that thawd deploy aws has deployed, or, in a project's folder, the logical id of
    a function in the stack of --stack.

    After Ctrl-C, no more requests are sent, and the command waits for the last answers; after a second Ctrl-C, it does
    not wait. In both cases it prints the figures so far. The exit status is 3 if some answers were wrong, and 130 after
    Ctrl-C.
    """
    try:
        _check_use(options)
        if options["compared"]:
            _compare(options)
        elif options["target"] is None:
            raise click.UsageError("name a TARGET (a function, a /path, or an http(s) URL), or use --compare")
        else:
            _measure(options)
    except ThawdError as error:
        fail(str(error))


def _check_use(options: Mapping[str, Any]) -> None:
    """Refuse some options that would have no effect. `bench_plans.shape_of` and `bench_plans.plan` refuse others."""
    if options["compared"]:
        for name in ("target", "json_file", "csv_file"):
            if options[name] is not None:
                raise click.UsageError(f"--compare measures nothing, so {_NAMES[name]} has no effect; leave it out")
    elif options["fail_above"] is not None:
        raise click.UsageError("--fail-above has no effect without --compare")
    check_use(options)
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
                    f"{second.label}: {ratio.name} is more than {options['fail_above']:g} times as high as in "
                    "the first file, even at the lower bound of the 95 % interval"
                )
            more_wrong = wrong[1] * len(first.columns) > wrong[0] * len(second.columns)
            if more_wrong:
                click.echo(f"{second.label}: a larger share of the answers is wrong than in the first file")
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
    """Return a run's name for a page about two files: the run's label and the file's name."""
    return f"{run.label} ({path.stem})"


def _pairs(before: list[Run], after: list[Run]) -> list[tuple[Run, Run]]:
    """Return the pairs of runs with the same label. If each file has only one run, these two are the pair."""
    if len(before) == len(after) == 1:
        return [(before[0], after[0])]
    by_label = {run.label: run for run in after}
    pairs = [(run, by_label[run.label]) for run in before if run.label in by_label]
    if not pairs:
        fail(
            f"no run label occurs in both files: the first has {', '.join(r.label for r in before)}, the second has "
            f"{', '.join(by_label)}; measure both with the same --label or --engine"
        )
    paired = {run.label for run, _ in pairs}
    alone = dict.fromkeys(run.label for run in (*before, *after) if run.label not in paired)
    if alone:
        warn(f"runs that only one of the files contains are not compared: {', '.join(alone)}")
    return pairs


def _measure(options: Mapping[str, Any]) -> None:
    from thawd.bench import text
    from thawd.bench.summary import require_library, summarise
    from thawd.server.port_and_folder_locks import raise_descriptor_limit

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
    """Measure once with each value of --engine, or once without. Returns the runs and the exit status.

    If a later measurement fails, the runs before it are returned. If the first one fails, its error is raised.
    """
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
    """Return the run, with a number added to its label if another run has the same one.

    Two runs have the same label if --engine names an engine twice.
    """
    import msgspec

    taken = {other.label for other in others}
    names = (run.label, *(f"{run.label} {number}" for number in range(2, len(others) + 2)))
    return msgspec.structs.replace(run, label=next(name for name in names if name not in taken))


@contextlib.contextmanager
def _progress(shape: LoadShape) -> Iterator[Any]:
    """Provide a function that prints progress on standard error.

    On a terminal, it updates one line. Otherwise it prints a line every five seconds, and one when sending is stopped.
    """
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
            line += "; waiting for the last answers (Ctrl-C stops waiting)"
        click.echo(f"\r\x1b[K{line}" if is_terminal else line, err=True, nl=not is_terminal)

    try:
        yield report
    finally:
        if is_terminal and shown:
            click.echo("\r\x1b[K", err=True, nl=False)
