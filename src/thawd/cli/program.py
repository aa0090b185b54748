"""The command line ``thawd``: the group of all commands, its help, and the handling of signals, errors and output."""

from __future__ import annotations

import importlib
import io
import signal
import sys
from collections.abc import Iterator, MutableMapping
from typing import Any

import click

from thawd import __version__
from thawd.cli.exits import EXIT_INTERRUPTED, fail
from thawd.cli.interrupts import interruptible, raise_on_interrupt
from thawd.cli.options import examples
from thawd.cli.output import discard_unwritable_output
from thawd.system.suggestions import did_you_mean

# The commands, with what defines each one in `thawd.cli`.
_SECTIONS = {
    "Serve": {"init": "init.init", "run": "run.run", "up": "up.up", "check": "check.check"},
    "Invoke and watch": {
        "invoke": "invoke.invoke",
        "event": "event.event",
        "logs": "logs.logs",
        "status": "status.status",
        "cluster": "cluster.group",
        "queue": "queue.queue",
        "dead": "dead_letters.dead",
        "source": "source.group",
    },
    "Data and snapshots": {
        "table": "table.table",
        "backup": "backup.backup",
        "restore": "restore.restore",
        "snapshot": "snapshot.group",
        "thaw": "thaw.thaw",
    },
    "Deploy": {"image": "image.group", "package": "package.package", "deploy": "deploy.group"},
    "Set up": {"service": "service.service", "completion": "completion.completion", "man": "manual.manual"},
    "Measure": {"bench": "bench.bench", "cost": "cost.cost", "tune": "tune.tune"},
}


class _Commands(MutableMapping[str, click.Command]):
    """All commands, by name. The module of a command is imported when the command is needed."""

    def __init__(self) -> None:
        self._places = {name: place for section in _SECTIONS.values() for name, place in section.items()}

    def __getitem__(self, name: str) -> click.Command:
        module, _, attribute = self._places[name].partition(".")
        with interruptible():
            command: click.Command = getattr(importlib.import_module(f"thawd.cli.{module}"), attribute)
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __setitem__(self, name: str, command: click.Command) -> None:
        raise TypeError("commands are declared in _SECTIONS")

    def __delitem__(self, name: str) -> None:
        raise TypeError("commands are declared in _SECTIONS")


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

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; for a name that no command has, name the one that was probably meant."""
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            ctx.fail(f"there is no command {args[0]!r}; {did_you_mean(args[0], self.commands, what='commands')}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by section."""
        width = max(map(len, self.commands))
        for title, names in _SECTIONS.items():
            with formatter.section(title):
                rows = [(f"{name:<{width}}", self.commands[name].get_short_help_str(limit=120)) for name in names]
                formatter.write_dl(rows)


@click.group(
    cls=_Program,
    commands=_Commands(),
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "thawd run app.py                      # serve what a file contains, on port 8350",
        "thawd up                              # serve ./thawd.toml",
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
