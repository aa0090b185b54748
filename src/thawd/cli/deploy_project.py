"""`thawd deploy aws` in the folder of a template of SAM or CloudFormation."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from thawd.cli.exits import fail, warn
from thawd.deploy.projects.discovery import MANIFEST, SERVERLESS
from thawd.system.suggestions import did_you_mean

if TYPE_CHECKING:
    from thawd.deploy.aws.change_sets import ChangeSet
    from thawd.deploy.aws.plan import Plan
    from thawd.deploy.aws.project_packages import ProjectPackage
    from thawd.deploy.aws.stack_deployment import AwsAccount
    from thawd.deploy.projects.stacks import ProjectStack

_CAPABILITIES = ("CAPABILITY_IAM", "CAPABILITY_NAMED_IAM", "CAPABILITY_AUTO_EXPAND")
_NESTING = ("AWS::CloudFormation::Stack", "AWS::Serverless::Application")
# Options of `thawd deploy aws` that only a thawd.toml has.
_NOT_OF_PROJECTS = {
    "python": "the template names the runtimes",
    "template_file": "the template is there already; sam package writes the packaged one",
    "untried": "handlers of a project are not imported",
}


def project_stack(path: Path, options: Mapping[str, Any]) -> ProjectStack:
    """Read a project's stack. If thawd cannot deploy the project to AWS, the command ends and says what can.

    Args:
        path: the project's file.
        options: options of the command.

    Raises:
        ProjectError: the project cannot be read.
    """
    from thawd.cli.projects import options_of
    from thawd.deploy.projects.reading import read_project

    if path.name in SERVERLESS:
        fail(
            f"{path} is deployed by `serverless deploy`, or `osls deploy`: they name a stack's resources in their own "
            "way, and could not update one that thawd has made"
        )
    if path.name == MANIFEST or path.is_dir():
        fail(f"{path} is deployed by `cdk deploy`, which also makes what `cdk bootstrap` keeps in the account")
    given = options_of(dict(options.get("parameters") or {}), options["stack"], options["env"], {})
    [stack] = read_project(path, given).stacks
    return stack


def deploy_project(account: AwsAccount, stack: ProjectStack, data: Path, options: Mapping[str, Any]) -> None:
    """Show what a deployment changes, ask, and deploy.

    Args:
        account: the account and region.
        stack: the project's stack.
        data: data folder, for images.
        options: options of the command.

    Raises:
        ThawdError: the project cannot be packaged, or AWS refuses.
    """
    from thawd.deploy.aws import change_sets
    from thawd.deploy.aws.artifact_bucket import ArtifactBucket
    from thawd.deploy.aws.project_packages import package_project, parameters_of
    from thawd.deploy.aws.project_plan import read_plan

    context = click.get_current_context()
    for name, why in _NOT_OF_PROJECTS.items():
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name.removesuffix('_file')} is for a thawd.toml: {why}")
    found = account.find_stack(stack.name)
    _require_free(stack.name, found)
    if found is not None:
        account.require_same_project(stack.name, stack.document)
    parameters = parameters_of(stack, found)
    made = package_project(account, stack, data=data, report=warn)
    for line in made.notes:
        warn(line)
    ArtifactBucket(account).put(made.documents)
    request = change_sets.ChangeSetRequest(
        stack=stack.name,
        text=made.text,
        capabilities=_CAPABILITIES,
        parameters=parameters,
        tags=stack.tags or None,
        has_nested=any(f'"{kind}"' in made.text for kind in _NESTING),
        is_new=found is None or found["StackStatus"] == change_sets.PLANNED,
        is_first=found is None,
    )
    change_set = change_sets.create(account, request)
    if change_set is None:
        click.echo(f"stack {stack.name}: nothing to change")
        return
    is_begun = False
    try:
        plan = read_plan(account, change_set, stack=stack.name, shows_values=options["show_values"])
        _show(plan, as_json=options["as_json"])
        if options["only_plans"]:
            return
        _confirm(plan, account.region, options)
        _upload(account, stack.name, made)
        is_begun = True
    finally:
        if not is_begun:
            change_sets.discard(account, change_set)
    _execute(account, stack.name, change_set, as_json=options["as_json"])


def _require_free(name: str, found: Mapping[str, Any] | None) -> None:
    """End the command if a stack cannot be changed now, or was made of a thawd.toml."""
    from thawd.deploy.aws.change_sets import PLANNED
    from thawd.deploy.aws.stack_deployment import is_of_thawd

    if found is None:
        return
    status = found["StackStatus"]
    if is_of_thawd(found):
        fail(f"the stack {name} was made of a thawd.toml; name another one with --stack")
    if status.endswith("_IN_PROGRESS") and status != PLANNED:
        fail(f"the stack {name} is {status}: another deployment runs; wait for it: thawd deploy aws status")
    if status in ("ROLLBACK_COMPLETE", "ROLLBACK_FAILED", "CREATE_FAILED", "DELETE_FAILED"):
        fail(f"the stack {name} is {status} and can only be deleted: thawd deploy aws destroy")


def _show(plan: Plan, *, as_json: bool) -> None:
    import msgspec

    from thawd.deploy.aws.plan import plan_text

    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(plan), indent=2))
    elif plan.changes:
        click.echo(plan_text(plan, has_colours=sys.stdout.isatty()))
    else:
        click.echo(f"stack {plan.stack}: only parameters, outputs or tags change")


def _confirm(plan: Plan, region: str, options: Mapping[str, Any]) -> None:
    """End the command unless the deployment is wanted."""
    if plan.lost and not options["delete_data"]:
        fail(f"{', '.join(plan.lost)} would be deleted with all data; add --delete-data if that is wanted")
    if not options["yes"]:
        if not sys.stdin.isatty():
            fail("nobody can be asked, because the input is not a terminal; add --yes to deploy, --plan only to look")
        click.confirm(f"Deploy to {region}?", abort=True)


def _upload(account: AwsAccount, stack: str, made: ProjectPackage) -> None:
    from thawd.deploy.aws.artifact_bucket import ArtifactBucket

    ArtifactBucket(account).put(made.code, report=lambda key: warn(f"uploads {key}"))
    account.push_images(stack, made.images, store=made.image_store, report=lambda name: warn(f"pushes {name}"))


def _execute(account: AwsAccount, stack: str, change_set: ChangeSet, *, as_json: bool) -> None:
    from thawd.cli.deploy import print_outputs, report, warn_of_left

    try:
        warn_of_left(account.execute(stack, change_set, report=report))
    except KeyboardInterrupt:
        warn("CloudFormation carries on; thawd deploy aws status shows the stack's state")
        raise
    after = account.find_stack(stack)
    if after is not None and not as_json:
        print_outputs({each["OutputKey"]: each["OutputValue"] for each in after.get("Outputs", ())})


def function_of(account: AwsAccount, stack: str, name: str) -> str:
    """Return the name in the account of the function with a logical id or name in a stack; else the command ends."""
    rows = account.resources(stack)
    found = [row["name"] for row in rows if row["type"] == "AWS::Lambda::Function" and name in row.values()]
    if len(found) != 1:
        known = [row["resource"] for row in rows if row["type"] == "AWS::Lambda::Function"]
        fail(f"the stack {stack} has no function {name!r}; {did_you_mean(name, known)}")
    return found[0]
