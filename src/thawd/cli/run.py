"""The command ``thawd run``: serve what a Python file contains, without a configuration.

The command writes a configuration into the data folder and serves it as ``thawd up`` does. So everything else works as
with a configuration of one's own, reloads included.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from thawd.cli.debug import debug_flags
from thawd.cli.exits import fail
from thawd.cli.init import unused_name
from thawd.cli.options import RUN_CONFIGURATION, begin_log, examples, log_format_option, quiet_option
from thawd.cli.up import up

if TYPE_CHECKING:
    from thawd.recognition.served_files import ServedFile

_ENVIRONMENTS = (".venv", "venv", "env")


@click.command(
    epilog=examples(
        "thawd run app.py                 # an application, typed functions, or a handler",
        "thawd run app.py:predict         # this one, if there are several",
        "thawd run chat/app.py            # in the package chat; as is chat.app:app",
        "thawd run app.py --port 9000 --no-watch",
        "thawd run app.py --env-file .env --env LEVEL=2",
    )
)
@click.argument("target", metavar="FILE[:NAME]")
@click.option("--host", help="Address to listen on. Needs THAWD_KEY unless it is a loopback address.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on. 0 chooses a free port.")
@click.option("--watch/--no-watch", default=True, show_default=True, help="Serve the new code when a file changes.")
@click.option(
    "--ready-file",
    type=click.Path(path_type=Path),
    help='For scripts: write {"url": …, "pid": …} into this file once the server answers requests.',
)
@click.option(
    "--env",
    "variables",
    metavar="NAME=VALUE",
    multiple=True,
    callback=lambda context, parameter, given: _variables(given),
    help="Environment variable of the functions; NAME alone passes on the one of this command. May be given several "
    "times.",
)
@click.option(
    "--env-file",
    "files",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="File with lines NAME=value, such as .env. --env overrides it. May be given several times.",
)
@debug_flags
@quiet_option
@log_format_option
@click.pass_context
def run(  # noqa: PLR0913, PLR0917 - an option each
    context: click.Context,
    target: str,
    host: str | None,
    port: int | None,
    watch: bool,
    ready_file: Path | None,
    variables: dict[str, str],
    files: tuple[Path, ...],
    debug: bool,
    debug_port: int,
    debug_wait: bool,
    quiet: bool,
    log_format: str | None,
) -> None:
    """Serve what a Python file contains.

    The file contains an ASGI or WSGI application (FastAPI, Starlette, Flask, Django), functions decorated with
    @thawd.function, or a handler with (event, context). The command finds it in the source. An application and a
    handler get all requests, and so does a single typed function. Several typed functions are served at /NAME.

    The file's folder needs no thawd.toml. One `thawd run` at a time serves a folder. Packages come from the interpreter
    that runs thawd, from the folder's virtual environment, or from its requirements.txt: the first that has all.

    A file in a package (a folder with __init__.py) is imported as chat.app from the folder that contains the package,
    and the data folder .thawd is there, too. `thawd run chat.app:app` imports it from the current folder, as uvicorn
    does.
    """
    begin_log(log_format, RUN_CONFIGURATION)
    file, name = split(target)
    root, module = _place(target, file)
    for folder in dict.fromkeys((root, file.parent)):
        if (existing := folder / "thawd.toml").exists():
            fail(f"{folder} has a thawd.toml, which `thawd up` serves; add the function there, or move {existing}")
    served = _found(file, name, root)
    path = root / RUN_CONFIGURATION
    environment = (
        [f"environment_file = [{', '.join(_quoted(str(each.absolute())) for each in files)}]"] if files else []
    )
    if variables:
        pairs = ", ".join(f"{_quoted(each)} = {_quoted(value)}" for each, value in variables.items())
        environment.append(f"environment = {{ {pairs} }}")
    configuration = _configuration(file, served, root, module, environment)
    with _locked(path.parent):
        _write_private(path, configuration)
        for each, what in served.handlers.items():
            click.echo(f"{file.name}: {each}, {what}")
        click.echo("to keep this as a configuration: thawd init", err=True)
        context.invoke(
            up,
            config_path=path,
            host=host,
            port=port,
            user=None,
            watch=watch,
            ready_file=None if ready_file is None else ready_file.absolute(),
            ready_when="answering",
            local_aws=False,
            real_aws=False,
            parameters={},
            stack=None,
            env=None,
            layers={},
            runtimes=(),
            debug=tuple(_names(served)) if debug else (),
            debug_port=debug_port,
            debug_wait=debug_wait,
            quiet=quiet,
            log_format=log_format,
        )


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep every other ``thawd run`` from writing its configuration into the folder, in the ``with`` block."""
    from thawd.errors import ThawdError
    from thawd.server.port_and_folder_locks import lock_run

    with ExitStack() as stack:
        try:
            stack.enter_context(lock_run(folder))
        except ThawdError as error:
            fail(str(error))
        yield


def split(target: str) -> tuple[Path, str | None]:
    """The file and the name in ``app.py``, ``app.py:app``, ``app:app``, ``app``, ``package.app`` or ``../app``."""
    place, _, name = target.partition(":")
    file = Path(place)
    if file.suffix != ".py" and not file.is_file():
        if file.is_dir():
            file /= "app.py"
        else:
            file = (file if "/" in place else Path(*place.split("."))).with_suffix(".py")
    if not file.is_file():
        there = ", ".join(sorted(each.name for each in file.parent.glob("*.py"))[:6])
        fail(
            f"there is no file {file}; {f'there is {there}' if there else f'there is no Python file in {file.parent}'}"
        )
    if file.suffix != ".py":
        fail(f"{file} cannot be imported: rename it to {file.name}.py")
    return file.absolute(), name or None


def _place(target: str, file: Path) -> tuple[Path, str]:
    """The folder from which the file is imported, and the name of its module there."""
    from thawd.recognition.served_files import place_of

    spelled = target.partition(":")[0]
    root = Path.cwd()
    if "." in spelled and root.joinpath(*spelled.split(".")).with_suffix(".py") == file:  # as uvicorn has it: chat.app
        return root, spelled
    return place_of(file)


def _found(file: Path, name: str | None, root: Path) -> ServedFile:
    from thawd.recognition.served_files import NothingToServeError, find

    try:
        served = find(file, name, root)
    except NothingToServeError as error:
        fail(str(error))
    return served


def _variables(given: tuple[str, ...]) -> dict[str, str]:
    """The variables of the option ``--env``. No message contains a value."""
    variables = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals and name not in os.environ:
            raise click.BadParameter(f"there is no environment variable {name} to pass on; give it as {name}=VALUE")
        variables[name] = value if equals else os.environ[name]
        try:
            text.encode(), variables[name].encode()
        except UnicodeEncodeError:
            shown = name.encode(errors="backslashreplace").decode()
            raise click.BadParameter(f"the variable {shown} is not UTF-8") from None
    return variables


def _write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read: ``--env`` may contain secrets."""
    with open(path, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(text)


def _configuration(file: Path, served: ServedFile, root: Path, module: str, environment: list[str]) -> str:
    """The configuration, as the text of a ``thawd.toml``."""
    lines = ["# Made by `thawd run`, each time anew.", "[server]", f"data = {_quoted(str(root / '.thawd'))}"]
    routes = ["[routes]"]
    packages = _packages(file, served, root)
    if not file.stem.isidentifier():
        fail(f"{file.name} cannot be imported: name it with letters, digits and underscores")
    for name, function in zip(served.handlers, _names(served), strict=True):
        lines += [f"[functions.{function}]", f"handler = {_quoted(f'{module}.{name}')}"]
        lines += [f"code = {_quoted(str(root))}", *packages, *environment]
        if len(served.handlers) == 1:
            routes.append(f'"$default" = "{function}"')
        else:
            routes += [f'"ANY /{function}" = "{function}"', f'"ANY /{function}/{{path+}}" = "{function}"']
    return "\n".join([*lines, *routes, ""])


def _names(served: ServedFile) -> list[str]:
    """The names of the functions, in the order of the handlers."""
    names: list[str] = []
    for name in served.handlers:
        names.append(unused_name(name, names))
    return names


def _packages(file: Path, served: ServedFile, root: Path) -> list[str]:
    """The options that give the function its packages; none if this interpreter has them."""
    from thawd.recognition.imports import missing, needed

    places = needed(served.module, root)
    lacking = missing(list(places), Path(sys.executable), [root])
    if not lacking:
        return []
    folders = list(dict.fromkeys((root, file.parent)))
    for environment in (folder / name for folder in folders for name in _ENVIRONMENTS):
        python = environment / "bin" / "python"
        if (environment / "pyvenv.cfg").exists() and not missing(list(places), python, [root]):
            return [f"python = {_quoted(str(environment))}"]
    for folder in folders:
        if (requirements := folder / "requirements.txt").is_file():
            return [f"requirements = {_quoted(str(requirements))}"]
    first = lacking[0]
    return fail(
        f"{places[first]} imports {first}, which {sys.executable} does not have; install it there (pip install "
        f"{' '.join(lacking)}), or name the packages in {os.path.relpath(root / 'requirements.txt')}"
    )


def _quoted(text: str) -> str:
    """A TOML string."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda found: f"\\u{ord(found[0]):04x}", escaped) + '"'
