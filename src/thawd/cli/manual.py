"""The command ``thawd man``: the manual page, made from the commands themselves."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from thawd import __version__
from thawd.cli.options import examples

_FILES = {
    "thawd.toml": "The configuration: functions, routes, buckets, tables, and the server itself.",
    ".thawd/": "The data folder: the queue, tables, logs, snapshots. server.data or THAWD_DATA names another one.",
}
_SIGNALS = {
    "SIGTERM, SIGINT": "Stop: serve for server.drain_s, let invocations end within server.grace_s. Again: end them.",
    "SIGHUP": "Read the configuration and the certificate again, and publish what has changed.",
}
_STATUSES = {
    "0": "Success.",
    "1": "Failure; one line on standard error says why.",
    "2": "The command line is wrong.",
    "3": "thawd invoke: the function ran and failed. thawd bench: some answers were wrong.",
    "71": "thawd up: the system refuses the server threads or memory.",
    "130": "Ctrl-C.",
}


@click.command(
    "man",
    epilog=examples(
        "thawd man | man -l -",
        "thawd man > /usr/local/share/man/man1/thawd.1",
    ),
)
def manual() -> None:
    """Print the manual page of thawd, for man."""
    from thawd.cli.program import main

    click.echo(page(main))


def page(program: click.Group) -> str:
    """Return the manual page of a program, as roff. Source: man(7)."""
    from thawd.config import ENVIRONMENT_VARIABLES

    variables = {name: f"Overrides server.{option}." for name, option in ENVIRONMENT_VARIABLES.items()}
    description = inspect.cleandoc(program.help or "").split("\n\n")
    lines = [f'.TH THAWD 1 "" "thawd {__version__}" "User Commands"']
    lines += [".SH NAME", rf"thawd \- {_text(description[0].rstrip('.'))}"]
    lines += [".SH SYNOPSIS", r"\fBthawd\fR \fICOMMAND\fR [\fIOPTIONS\fR] [\fIARGUMENTS\fR]"]
    lines += [".SH DESCRIPTION", *(line for part in description[1:] for line in (".PP", _text(part)))]
    lines += [".SH COMMANDS"]
    for name, command in sorted(program.commands.items()):
        lines += _command(f"thawd {name}", command)
    for title, entries in (
        ("ENVIRONMENT", variables),
        ("FILES", _FILES),
        ("SIGNALS", _SIGNALS),
        ("EXIT STATUS", _STATUSES),
    ):
        lines += [f".SH {title}"]
        lines += [
            line for term, meaning in entries.items() for line in (".TP", rf"\fB{_text(term)}\fR", _text(meaning))
        ]
    return "\n".join([*lines, ".SH EXAMPLES", *_examples(program)])


def _command(path: str, command: click.Command) -> Iterator[str]:
    context = click.Context(command, info_name=path)
    yield f'.SS "{_text(command.get_usage(context).removeprefix("Usage: "))}"'
    for part in inspect.cleandoc(command.help or "").split("\n\n"):
        yield from (".PP", _text(part))
    for parameter in command.params:
        record = parameter.get_help_record(context) if isinstance(parameter, click.Option) else None
        if record is not None:
            yield from (".TP", rf"\fB{_text(record[0])}\fR", _text(record[1]))
    if command.epilog:
        yield from _examples(command)
    if isinstance(command, click.Group):
        for name, below in sorted(command.commands.items()):
            yield from _command(f"{path} {name}", below)


def _examples(command: click.Command) -> Iterator[str]:
    found = [line.removeprefix("  ") for line in (command.epilog or "").splitlines() if line.startswith("  ")]
    yield from (".PP", ".RS 4", ".nf", *map(_literal, found), ".fi", ".RE")


def _text(text: str) -> str:
    """Running text as roff: on one line, with roff's own characters escaped."""
    return _literal(" ".join(text.replace("\b", " ").split())).replace('"', r"\(dq")


def _literal(line: str) -> str:
    escaped = line.replace("\\", r"\e").replace("-", r"\-")
    return re.sub(r"^([.'])", r"\\&\1", escaped)
