"""The command ``thawd thaw``: replace the command's process by the frozen process of an image."""

from __future__ import annotations

import os
from pathlib import Path

import click

from thawd.cli.exits import fail
from thawd.cli.options import examples


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog=examples("thawd thaw program.img --verbose < input.txt"),
)
@click.argument("image", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def thaw(image: Path, arguments: tuple[str, ...]) -> None:
    """Continue the process that was frozen into IMAGE.

    The process froze itself by calling `thawd.snapshot.freeze`, and it continues after that call. It gets ARGUMENTS,
    and the environment variables and standard streams of this command. The exit status is that of the process; 120 if
    the image cannot be thawed here (another machine or user, a missing or changed file); or 121 if a stage of the thaw
    failed.
    """
    from thawd.snapshot import engine

    try:
        program = engine.program_path()
    except engine.SnapshotFailed as error:
        fail(str(error))
    os.execv(program, [program, str(image), *arguments])
