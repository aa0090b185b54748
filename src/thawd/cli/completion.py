"""The command ``thawd completion``: scripts with which shells complete thawd's command lines."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from thawd.cli.exits import fail
from thawd.cli.options import examples

_VARIABLE = "_THAWD_COMPLETE"


class _Bash(BashComplete):
    def source(self) -> str:
        """Return the script without a check of the version of the bash that runs this command."""
        return ShellComplete.source(self)


_KINDS: dict[str, type[ShellComplete]] = {"bash": _Bash, "zsh": ZshComplete, "fish": FishComplete}


@click.command(
    epilog=examples(
        "thawd completion bash --install      # for this user; zsh and fish work alike",
        "thawd completion bash > /usr/share/bash-completion/completions/thawd     # for all users",
    )
)
@click.argument("shell", type=click.Choice(list(_KINDS)), required=False)
@click.option("--install", is_flag=True, help="Write the script where the shell finds it, instead of printing it.")
def completion(shell: str | None, install: bool) -> None:
    """Print a script that completes thawd's commands in SHELL.

    Without SHELL, the script is for the shell that the environment variable SHELL names. Commands, options, paths and
    names of functions are completed.
    """
    shell = shell or Path(os.environ.get("SHELL", "")).name
    if shell not in _KINDS:
        fail(f"there is no completion for the shell {shell or 'of this process'!r}: name bash, zsh or fish")
    from thawd.cli.program import main

    script = _KINDS[shell](main, {}, "thawd", _VARIABLE).source()
    if not install:
        click.echo(script)
        return
    path = _place(shell)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(script)
    except OSError as error:
        fail(f"{path} cannot be written ({error.strerror}): write the output of `thawd completion {shell}` elsewhere")
    click.echo(f"written: {path}")
    if shell == "zsh":
        click.echo(f"zsh finds it with this in ~/.zshrc: fpath=({path.parent} $fpath); autoload -Uz compinit; compinit")
    click.echo("it works in shells that start from now on")


def _place(shell: str) -> Path:
    """Where a shell looks for a user's completions. Source: zshcompsys(1), bash-completion, fish."""
    home = Path.home()
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    if shell == "bash":
        return data / "bash-completion" / "completions" / "thawd"
    if shell == "zsh":
        return data / "zsh" / "site-functions" / "_thawd"
    return Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "fish" / "completions" / "thawd.fish"
