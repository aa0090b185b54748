"""The command line ``thawd``: the group of all commands, its help, and the handling of signals, errors and output."""

from __future__ import annotations

import io
import signal
import sys
from typing import Any

import click

from thawd import __version__
from thawd.cli import (
    backup,
    bench,
    check,
    cost,
    dead_letters,
    deploy,
    image,
    invoke,
    logs,
    package,
    queue,
    restore,
    snapshot,
    source,
    status,
    table,
    thaw,
    tune,
    up,
)
from thawd.cli.exits import EXIT_INTERRUPTED, fail
from thawd.cli.interrupts import raise_on_interrupt
from thawd.cli.options import examples
from thawd.cli.output import discard_unwritable_output

_SECTIONS = {
    "Serve": (up.up, check.check),
    "Invoke and watch": (invoke.invoke, logs.logs, status.status, queue.queue, dead_letters.dead, source.group),
    "Data and snapshots": (table.table, backup.backup, restore.restore, snapshot.group, thaw.thaw),
    "Deploy": (image.group, package.package, deploy.group),
    "Measure": (bench.bench, cost.cost, tune.tune),
}


class _Program(click.Group):
    """The outermost group of commands. For an expected error, it prints one line instead of a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            raise_on_interrupt()
            result = super().invoke(ctx)
            if sys.stdout is not None:
                sys.stdout.flush()
        except KeyboardInterrupt:
            sys.exit(EXIT_INTERRUPTED)
        except OSError as error:
            discard_unwritable_output()
            fail(f"{error.filename or 'the output cannot be written'}: {error.strerror or error}")
        return result

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by section."""
        width = max(map(len, self.commands))
        for title, verbs in _SECTIONS.items():
            with formatter.section(title):
                rows = [(f"{verb.name:<{width}}", verb.get_short_help_str(limit=120)) for verb in verbs]
                formatter.write_dl(rows)


@click.group(
    cls=_Program,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "thawd up                              # serve ./thawd.toml on port 8350",
        """thawd invoke classify -p '{"n": 1}'   # run a function""",
        "thawd logs classify --follow          # watch its log",
        "thawd COMMAND --help                  # options and examples of a command",
    ),
)
@click.version_option(__version__, prog_name="thawd")
def main() -> None:
    """Serverless machine-learning inference on your own machine, with AWS Lambda's interface.

    Start with `thawd up` in a folder that contains a thawd.toml. boto3 and the AWS CLI work as clients: set their
    endpoint URL to the server's address.
    """


for _verbs in _SECTIONS.values():
    for _verb in _verbs:
        main.add_command(_verb)


def run() -> None:
    """Run the command line in this process, which is changed for that: how it reacts to SIGPIPE, and its streams."""
    # When the reader of a pipe exits (`| head`), SIGPIPE must end thawd, as it ends cat and grep. Python ignores
    # SIGPIPE by default, so that thawd would report an error instead.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
        # With some locales, the stream cannot encode every character of a name. Such characters are escaped.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    main()
