"""The command ``thawd check``: validate the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from thawd.cli.exits import fail
from thawd.cli.handler_check import examine_handlers
from thawd.cli.options import config_option, examples, load, project_of
from thawd.cli.projects import options_of, project_options

if TYPE_CHECKING:
    from thawd.deploy.projects.stacks import Project, ProjectOptions

_OPTIONAL = ("queue", "schedule")
"""Resources that the summary mentions only if some are declared."""


@click.command(epilog=examples("thawd check -c staging/thawd.toml"))
@config_option
@project_options
@click.option(
    "--lint",
    is_flag=True,
    help="Of a project: also print what AWS would refuse in its templates, by cfn-lint. Needs thawd[lint].",
)
def check(
    config_path: Path,
    parameters: Mapping[str, str],
    stack: str | None,
    env: str | None,
    layers: Mapping[str, str],
    lint: bool,
) -> None:
    """Check the configuration and print every mistake.

    For each mistake, the command prints the file, the key path, the value found and the allowed values. The exit status
    is 1 if there is a mistake.

    The command also examines the source of each Python function's handler, without importing it: it prints what the
    handler is, and notes what will fail or has no effect.

    Of a project (a template, cdk.out, serverless.yml) the command also prints what cannot be had here, and with --lint
    what AWS would refuse in its templates. The latter counts as a mistake.
    """
    settings = load(config_path)
    if (project := project_of(config_path)) is not None:
        _check_project(project, options_of(parameters, stack, env, layers), lint=lint)
        return
    if lint:
        raise click.UsageError("--lint needs a template or cdk.out")
    counts = {
        "function": len(settings.functions),
        "bucket": len(settings.buckets) + len(settings.remote_buckets),
        "route": len(settings.routes),
        "queue": sum(map(len, settings.sources.values())),
        "schedule": len(settings.schedules),
        "table": len(settings.tables),
    }
    summary = ", ".join(
        f"{count} {name}{'' if count == 1 else 's'}" for name, count in counts.items() if count or name not in _OPTIONAL
    )
    examined = examine_handlers(settings)
    for line in examined.mistakes:
        click.echo(f"{config_path}: {line}", err=True)
    if examined.mistakes:
        count = len(examined.mistakes)
        fail(f"{count} mistake{'' if count == 1 else 's'} in handlers")
    click.echo(f"{config_path}: no mistakes; {summary}")
    for line in examined.lines:
        click.echo(f"  {line}")


def _check_project(path: Path, options: ProjectOptions, *, lint: bool) -> None:
    """Print the mistakes of a project, and what is left out of it."""
    from thawd.deploy.projects.checking import check_project
    from thawd.deploy.projects.reading import read_project
    from thawd.deploy.projects.stacks import ProjectError

    try:
        from thawd.server.emulator.cloudformation.known_types import missing_without

        project = read_project(path, options)
        findings = check_project(project, missing_without, options.layers)
    except ModuleNotFoundError as error:
        fail(f"projects need {error.name}, which is not installed; install it with: pip install 'thawd[aws]'")
    except ProjectError as error:
        fail(error.message)
    if lint:
        findings.mistakes += _lint_errors(project)
    for line in findings.missing:
        click.echo(f"missing: {line}")
    for line in findings.mistakes:
        click.echo(line, err=True)
    if findings.mistakes:
        count = len(findings.mistakes)
        fail(f"{count} mistake{'' if count == 1 else 's'} in {path}")
    stacks = ", ".join(stack.name for stack in project.stacks)
    functions = findings.counts["AWS::Lambda::Function"]
    click.echo(f"{path}: no mistakes; stack {stacks}: {findings.counts.total()} resources, {functions} functions")


def _lint_errors(project: Project) -> list[str]:
    from thawd.deploy.projects.template_lint import lint_errors

    if all(stack.file is None for stack in project.stacks):
        fail("--lint: cfn-lint reads templates of SAM, CloudFormation and CDK, and not serverless.yml")
    try:
        return list(lint_errors(project))
    except ModuleNotFoundError as error:
        fail(f"--lint needs {error.name}, which is not installed; install it with: pip install 'thawd[lint]'")
