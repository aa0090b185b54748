"""Options of commands that read a project of another tool: a template, a cloud assembly of CDK, serverless.yml."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from thawd.cli.options import project_of

if TYPE_CHECKING:
    from thawd.config import Settings
    from thawd.deploy.projects.stack_updates import ServedProject
    from thawd.deploy.projects.stacks import ProjectOptions


class Assignments(click.ParamType[tuple[str, str]]):
    """Type of an option: ``Key=Value``, and the rest of the values in further options."""

    name = "KEY=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """See `click.ParamType`."""
        name, is_given, text = str(value).partition("=")
        if not is_given or not name:
            self.fail(f"{value!r} is not KEY=VALUE", param, ctx)
        return name, text


def as_map(_: click.Context, __: click.Parameter, given: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    """Return the values of an option of the type `Assignments`, by key."""
    return dict(given)


def project_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options ``--parameters``, ``--stack``, ``--env`` and ``--layer``."""
    for option in (
        click.option(
            "--layer",
            "layers",
            metavar="NAME=PATH",
            multiple=True,
            type=Assignments(),
            callback=as_map,
            help="A folder or zip file in place of a layer of another AWS account. May be given several times.",
        ),
        click.option("--env", help="Environment: a section of samconfig.toml, or the stage of serverless.yml."),
        click.option("--stack", help="Name of the stack; of a CDK app, the only stack to make."),
        click.option(
            "--parameters",
            multiple=True,
            type=Assignments(),
            callback=as_map,
            help="A parameter of the project's template. May be given several times.",
        ),
    ):
        command = option(command)
    return command


def options_of(
    parameters: Mapping[str, str], stack: str | None, env: str | None, layers: Mapping[str, str]
) -> ProjectOptions:
    """The options as `read_project` wants them.

    Raises:
        click.UsageError: a layer's path does not exist.
    """
    from thawd.deploy.projects.stacks import ProjectOptions

    paths = {}
    if layers:
        from thawd.deploy.projects.foreign_layers import layer_key

        paths = {layer_key(name): Path(path).absolute() for name, path in layers.items()}
    for name, path in paths.items():
        if not path.exists():
            raise click.UsageError(f"--layer {name}: there is no {path}")
    return ProjectOptions(parameters=parameters, stack=stack, env=env, variables=dict(os.environ), layers=paths)


def served_project(path: Path, settings: Settings, options: ProjectOptions, *, is_real: bool) -> ServedProject | None:
    """The project that `serving.run` keeps in the server; None if the configuration is thawd's own.

    Args:
        path: the command's ``--config``.
        settings: the settings of the server.
        options: what the user gave beside the project.
        is_real: whether functions use AWS itself.
    """
    project = project_of(path)
    if project is None:
        if options.parameters or options.stack or options.env or options.layers:
            raise click.UsageError(
                "--parameters, --stack, --env and --layer need a template, cdk.out or serverless.yml"
            )
        return None
    if is_real:
        raise click.UsageError("--aws-real: the stacks of a project are made in the emulator, without AWS")
    from thawd.deploy.projects.stack_updates import ServedProject
    from thawd.telemetry.console import complain, say

    return ServedProject(
        project.absolute(),
        options,
        data=settings.server.data,
        runtimes=settings.runtimes,
        say=say,
        complain=complain,
    )


def function_named(settings: Settings, logical_id: str) -> str | None:
    """The name of the function that the running server's stacks have under a logical id.

    Args:
        settings: address and credentials of the server.
        logical_id: the function's name in its template.

    Returns:
        None if no stack, or more than one, has it.
    """
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    from thawd.cli.client import address, url_of
    from thawd.resources import REGION

    access_key, secret = next(iter(settings.server.access_keys.items()), ("test", "test"))
    session = boto3.Session(access_key, secret, region_name=REGION)
    config = Config(retries={"total_max_attempts": 1}, ignore_configured_endpoint_urls=True, proxies={})
    stacks = session.client("cloudformation", endpoint_url=url_of(address(settings)), config=config)
    try:
        found = {
            each["PhysicalResourceId"]
            for stack in stacks.describe_stacks()["Stacks"]
            for each in stacks.describe_stack_resources(StackName=stack["StackId"])["StackResources"]
            if (each["ResourceType"], each["LogicalResourceId"]) == ("AWS::Lambda::Function", logical_id)
        }
    except (BotoCoreError, ClientError):
        return None  # the answer about the function says more
    return found.pop() if len(found) == 1 else None
