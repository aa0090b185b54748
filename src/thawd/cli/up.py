"""The command ``thawd up``: serve a configuration in the foreground."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from thawd.cli.debug import debug_options, debugging_of, terminal_shared
from thawd.cli.exits import EXIT_FAILED, EXIT_SCARCE, fail, fail_scarce, warn
from thawd.cli.interrupts import interruptible
from thawd.cli.options import begin_log, config_option, examples, load, log_format_option, project_of, quiet_option
from thawd.cli.output import discard_unwritable_output, sigpipe
from thawd.cli.projects import options_of, project_options, served_project
from thawd.errors import ScarcityError, ThawdError
from thawd.system import threads

if TYPE_CHECKING:
    from thawd.config import Settings
    from thawd.server.emulator.spawning import EmulatorProcess


@click.command(
    epilog=examples(
        "thawd up                        # serve ./thawd.toml",
        "thawd up --watch                # republish functions while you edit them",
        "thawd up --debug classify       # stop at breakpoints: in an editor, or in pdb here",
        "thawd up --aws                  # with S3, SQS, DynamoDB, ... emulated here",
        "thawd up --parameters Stage=test     # in a folder with a template of SAM, CDK or serverless.yml",
        "thawd up --runtime python3.14=python3.11    # there is no Python 3.14 on this machine",
        "THAWD_KEY=a-long-secret thawd up --host 0.0.0.0",
    )
)
@config_option
@click.option(
    "--host",
    help="Address to listen on; overrides server.host. Needs server.key unless it is a loopback address.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Port to listen on; overrides server.port. 0 chooses a free port."
)
@click.option("--user", help="If started as root: switch to this user before serving. Overrides server.user.")
@click.option("--watch", is_flag=True, help="Republish a function when its code changes.")
@click.option(
    "--ready-file",
    type=click.Path(path_type=Path),
    help='For scripts: write {"url": …, "pid": …} into this file once the server answers requests. --ready-when can '
    "delay this until all functions are published.",
)
@click.option(
    "--ready-when",
    type=click.Choice(["answering", "published"]),
    default="answering",
    show_default=True,
    help="When to write the ready file. answering: when the server answers requests; a request for a function that is "
    "not published yet waits for that function. published: when all functions have been published, or have failed, and "
    "event sources run.",
)
@click.option(
    "--aws",
    "local_aws",
    is_flag=True,
    help="Also serve other AWS services (DynamoDB, SQS and more, and S3 buckets that are not in the configuration), "
    "emulated by moto. Needs thawd[aws].",
)
@project_options
@click.option(
    "--runtime",
    "runtimes",
    metavar="RUNTIME=INTERPRETER",
    multiple=True,
    help="Run functions of a runtime with this interpreter, such as python3.14=python3.11. May be given several times.",
)
@debug_options
@quiet_option
@log_format_option
@click.option("--aws-real", "real_aws", is_flag=True, help="Let functions use AWS itself, with your credentials.")
def up(  # noqa: PLR0913, PLR0917 - an option each
    config_path: Path,
    host: str | None,
    port: int | None,
    user: str | None,
    watch: bool,
    ready_file: Path | None,
    ready_when: str,
    local_aws: bool,
    real_aws: bool,
    parameters: Mapping[str, str],
    stack: str | None,
    env: str | None,
    layers: Mapping[str, str],
    runtimes: tuple[str, ...],
    debug: tuple[str, ...],
    debug_port: int,
    debug_wait: bool,
    quiet: bool,
    log_format: str | None,
) -> None:
    """Serve everything in the configuration.

    In a folder without thawd.toml, but with a template of SAM or CloudFormation, cdk.out or serverless.yml, serve the
    stacks of that project, with AWS's services emulated as with --aws.

    The server runs in the foreground. SIGINT (Ctrl-C) or SIGTERM stops it: it waits for invocations in flight, for
    server.grace_s seconds at most, and a second signal ends them immediately. On SIGHUP the server reads the
    configuration again and publishes what has changed; changes of [server], [buckets] and [tables] need a restart.
    """
    with _importing():
        from thawd import config
        from thawd.telemetry import console
    console.be_quiet(quiet)
    begin_log(log_format, config_path)
    environ = dict(config.process_environment())
    given = {"THAWD_HOST": host, "THAWD_PORT": None if port is None else str(port), "THAWD_USER": user}
    given["THAWD_LOG_FORMAT"] = log_format
    environ |= {name: text for name, text in given.items() if text is not None} | _passed_address(environ)
    environ["THAWD_RUNTIMES"] = ",".join(filter(None, (environ.get("THAWD_RUNTIMES"), *runtimes)))
    if local_aws and real_aws:
        raise click.UsageError("--aws and --aws-real exclude each other")
    settings = load(config_path, environ)
    is_project = project_of(config_path) is not None
    if ready_file is not None:
        _check_ready_file(ready_file)
    is_local = (local_aws or is_project) and not real_aws
    with _emulator(settings, environ, for_stacks=is_project) if is_local else nullcontext() as emulator:
        with _importing():
            from thawd.server import serving
            from thawd.server.ready_file import ReadyFile
        served = served_project(config_path, settings, options_of(parameters, stack, env, layers), is_real=real_aws)
        mode = "local" if is_local else "real" if real_aws else "none"

        def serve() -> None:
            ready = None if ready_file is None else ReadyFile(ready_file, after_publication=ready_when == "published")
            with terminal_shared(debugging):
                serving.run(
                    settings,
                    environ=environ,
                    watch=watch,
                    ready=ready,
                    aws=mode,
                    project=served,
                    emulator=emulator,
                    debugging=debugging,
                )

        debugging = debugging_of(debug, debug_port, waits=debug_wait, known=None if is_project else settings.functions)
        gc.freeze()  # the collector need not look at what was imported
        _exit_after(serve)


@contextmanager
def _importing() -> Iterator[None]:
    """Import in the ``with`` block; end the command if the system has too little memory or too few threads for it.

    The garbage collector rests meanwhile, because hardly any object that an import makes is garbage.
    """
    gc.disable()
    with interruptible():
        try:
            yield
        except (ImportError, MemoryError, OSError, SystemError) as error:
            if (scarcity := threads.scarcity(error)) is None:
                raise
            fail_scarce(scarcity)
        finally:
            gc.enable()


def _passed_address(environ: Mapping[str, str]) -> dict[str, str]:
    """The address of a service manager's socket, as variables that override the configured address."""
    if "LISTEN_FDS" not in environ:
        return {}
    with _importing():
        from thawd.server.service_manager import passed_address
    passed = passed_address()
    return {} if passed is None else {"THAWD_HOST": passed[0], "THAWD_PORT": str(passed[1])}


@contextmanager
def _emulator(settings: Settings, environ: Mapping[str, str], *, for_stacks: bool) -> Iterator[EmulatorProcess | None]:
    """Start the emulator's process ahead, in the ``with`` block; None if the server has to start it."""
    with _importing():
        from thawd.server.emulator.spawning import EmulatorProcess, missing_packages
    if settings.server.user is not None or missing_packages():  # the server switches to the user, or refuses to start
        yield None
        return
    try:
        process = EmulatorProcess(environ, for_stacks=for_stacks)
    except OSError:  # the server tries again, and reports it
        yield None
        return
    try:
        yield process
    finally:
        process.discard()


def _exit_after(serve: Callable[[], None]) -> None:
    """Serve, report an error, and end the command with its exit status."""
    from thawd.stores import threads as store_threads

    status = 0
    with sigpipe(signal.SIG_IGN):  # otherwise a write to a closed terminal or connection would end the server
        try:
            serve()
        except (ThawdError, OSError) as error:
            reported = threads.scarcity(error) or error
            warn(str(reported))
            status = EXIT_SCARCE if isinstance(reported, ScarcityError) else EXIT_FAILED
        finally:
            # The server has stopped. Only Python's own exit is left, and Ctrl-C must not interrupt it.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            discard_unwritable_output()
        if store_threads.operations_are_left():
            # Python's own exit would wait for these threads. They wait for a database or object store that does not
            # answer, so that could take minutes.
            os._exit(status)
        if status:
            sys.exit(status)


def _check_ready_file(path: Path) -> None:
    """End the command, before anything starts, if the ready file cannot be written."""
    folder = path.parent
    if path.is_dir():
        fail(f"the ready file {path} is a folder; name a file in it")
    if not folder.is_dir():
        fail(f"the ready file {path} cannot be written: there is no folder {folder}; create it, or name another file")
    if not os.access(folder, os.W_OK | os.X_OK):
        fail(f"the ready file {path} cannot be written: the folder {folder} is not writable; name another file")
