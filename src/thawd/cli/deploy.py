"""The commands ``thawd deploy aws …``: deploy a configuration to AWS, show what that changes, watch and delete it."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from thawd.cli.exits import EXIT_FAILED, VerbGroup, fail, warn
from thawd.cli.options import Finite, config_option, examples, load, project_of
from thawd.cli.output import print_text
from thawd.cli.projects import Assignments, as_map
from thawd.resources import PYTHON_RUNTIMES
from thawd.system.suggestions import did_you_mean

if TYPE_CHECKING:
    from thawd.config import Settings
    from thawd.deploy.aws.assets import Assets
    from thawd.deploy.aws.plan import Plan
    from thawd.deploy.aws.stack_deployment import AwsAccount, DeployedStack
    from thawd.deploy.aws.stack_events import StackEvent
    from thawd.deploy.aws.template import Model
    from thawd.deploy.projects.stacks import ProjectStack

_TARGET_OPTIONS = ("config_path", "stack", "env", "region", "profile", "endpoint_url")
_COLOURS = {"COMPLETE": "green", "FAILED": "red"}


@dataclass(frozen=True, slots=True)
class Target:
    """Where a command works.

    Attributes:
        settings: the configuration.
        stack: name of the stack.
        account: the account and region.
        project: the stack of another tool's project; None: the configuration is thawd's own.
    """

    settings: Settings
    stack: str
    account: AwsAccount
    project: ProjectStack | None = None

    def found(self) -> DeployedStack | None:
        """Return the deployed stack; of a project, without its template. None: there is none."""
        from thawd.deploy.aws.stack_deployment import described

        if self.project is None:
            return self.account.read_stack(self.stack)
        found = self.account.find_stack(self.stack)
        return None if found is None else described(found, None)


def _target_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say which stack of which account is meant."""
    for option in (
        config_option,
        click.option("--endpoint-url", metavar="URL", help="URL of all AWS services, for example of thawd up --aws."),
        click.option("--profile", help="Profile of AWS's settings."),
        click.option(
            "--region", help="AWS region.  [default: that of [deploy.aws] or samconfig.toml, else AWS's own settings]"
        ),
        click.option("--env", help="Section of samconfig.toml, for a template."),
        click.option(
            "--stack", help="Name of the stack.  [default: that of [deploy.aws] or samconfig.toml, else the folder's]"
        ),
    ):
        command = option(command)
    return command


def _settings(options: Mapping[str, Any]) -> Settings:
    import msgspec

    path = options["config_path"]
    for name in ("env", "parameters"):
        if options.get(name):
            raise click.UsageError(f"--{name} needs a template of SAM or CloudFormation")
    if not path.exists() and (path.parent / "cdk.json").is_file():
        fail(f"{path.parent / 'cdk.json'} belongs to an app of CDK: deploy it with `cdk deploy`")
    settings = load(path)
    if options.get("python") is not None:
        deployment = msgspec.structs.replace(settings.deployment, python=options["python"])
        settings = msgspec.structs.replace(settings, deployment=deployment)
    return settings


def stack_name(settings: Settings, given: str | None) -> str:
    """The name of the stack that a command means. If no stack can have it, the command ends.

    Args:
        settings: the configuration.
        given: the value of ``--stack``.
    """
    from thawd.deploy.aws import naming

    name = given or settings.deployment.stack or naming.stack_name_from(settings.path.parent.name)
    if not naming.is_stack_name(name):
        fail(f"{name!r} is not a name of a stack: 1 to 128 letters, digits and hyphens, the first a letter")
    return name


def _is_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is not ParameterSource.DEFAULT


def _with_options_of_group(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a command's options, with those that were given before the command's name."""
    context = click.get_current_context()
    group = context.parent
    if group is None or group.command is not aws:
        return dict(options)
    before = {name: group.params[name] for name in _TARGET_OPTIONS if _is_given(group, name)}
    return {**options, **{name: value for name, value in before.items() if not _is_given(context, name)}}


def _target(options: Mapping[str, Any]) -> Target:
    from thawd.deploy.aws.account import Access
    from thawd.deploy.aws.stack_deployment import AwsAccount

    options = _with_options_of_group(options)
    path = project_of(options["config_path"])
    if path is not None:
        return _project_target(path, options)
    settings = _settings(options)
    account = AwsAccount(
        Access(
            region=options["region"] or settings.deployment.region,
            profile=options["profile"],
            endpoint_url=(options["endpoint_url"] or "").rstrip("/") or None,
        )
    )
    return Target(settings=settings, stack=stack_name(settings, options["stack"]), account=account)


def _project_target(path: Path, options: Mapping[str, Any]) -> Target:
    from thawd.cli.deploy_project import project_stack
    from thawd.deploy.aws.account import Access
    from thawd.deploy.aws.stack_deployment import AwsAccount
    from thawd.deploy.projects.template_files import target_of

    settings, project = load(options["config_path"]), project_stack(path, options)
    region, profile = target_of(path, options["env"])
    access = Access(
        region=options["region"] or region,
        profile=options["profile"] or profile,
        endpoint_url=(options["endpoint_url"] or "").rstrip("/") or None,
    )
    return Target(settings=settings, stack=project.name, account=AwsAccount(access), project=project)


@click.group(name="deploy", cls=VerbGroup, epilog=examples("thawd deploy aws --plan", "thawd deploy aws"))
def group() -> None:
    """Deploy functions to other places."""


@group.group(
    name="aws",
    cls=VerbGroup,
    invoke_without_command=True,
    epilog=examples(
        "thawd deploy aws --plan                    # what would change",
        "thawd deploy aws --stack shop --yes        # deploy without asking",
        "thawd deploy aws --template stack.json     # only write the template; calls no one",
        "thawd deploy aws destroy --stack shop",
    ),
)
@click.option("--plan", "only_plans", is_flag=True, help="Show what would change, and change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as a JSON document.")
@click.option("--yes", is_flag=True, help="Deploy without asking.")
@click.option("--show-values", is_flag=True, help="Show values of environment variables.")
@click.option(
    "--python",
    metavar="VERSION",
    type=click.Choice([name.removeprefix("python") for name in PYTHON_RUNTIMES]),
    help="Python version of all Python functions on AWS.  [default: python in [deploy.aws], else each function's own]",
)
@click.option(
    "--parameters",
    multiple=True,
    type=Assignments(),
    callback=as_map,
    help="A parameter of the template, KEY=VALUE. May be given several times.",
)
@click.option("--untried", is_flag=True, help="Do not import the handlers from the finished archives.")
@click.option("--delete-data", is_flag=True, help="Allow the deployment to delete tables and buckets with their data.")
@click.option(
    "--template",
    "template_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the CloudFormation template into this file, and call no one.",
)
@click.option(
    "--invocations",
    type=Finite(0, 1e15),
    default=1e6,
    show_default=True,
    help="Invocations a month of each function, for the estimate of its cost.",
)
@_target_options
@click.pass_context
def aws(context: click.Context, /, **options: Any) -> None:
    """Deploy the configuration, or a template of SAM or CloudFormation, to AWS as a CloudFormation stack.

    The command shows a plan: the resources that will be created (+), changed (~), replaced (±) and deleted (-), what
    AWS does not have, and what the functions would cost, from the measurements in their local logs. Then it asks,
    uploads the code, and waits until the stack is complete. If AWS refuses a resource, everything is as it was before.

    Deployments need the extra aws: pip install 'thawd[aws]'.

    In the folder of a template, the changes are those of a change set of CloudFormation, which --plan deletes again.
    """
    if context.invoked_subcommand is not None:
        unused = [name for name in options if name not in _TARGET_OPTIONS and _is_given(context, name)]
        if unused:
            named = next(one.opts[0] for one in context.command.params if one.name == unused[0])
            raise click.UsageError(f"{named} belongs to thawd deploy aws itself, not to {context.invoked_subcommand}")
        return
    if options["template_file"] is not None and project_of(options["config_path"]) is None:
        _write_template(options)
        return
    target = _target(options)
    if target.project is not None:
        from thawd.cli.deploy_project import deploy_project

        deploy_project(target.account, target.project, target.settings.server.data, options)
        return
    with tempfile.TemporaryDirectory(prefix="thawd-deploy-") as folder:
        _deploy(target, Path(folder), options)


def _write_template(options: Mapping[str, Any]) -> None:
    settings = _settings(options)
    stack = stack_name(settings, options["stack"])
    with tempfile.TemporaryDirectory(prefix="thawd-deploy-") as folder:
        model, _ = _model(settings, stack, Path(folder), deployed=None, tries_imports=not options["untried"])
    for entry in model.missing:
        warn(f"AWS does not have {entry.where}: {entry.what}")
    _write_private(options["template_file"], model.text + "\n")


def _write_private(file: Path, text: str) -> None:
    """Write a file that only its owner may read, also if there was one before: it has values of environment variables.

    If the file cannot be written, the command ends.
    """
    try:
        with file.open("a") as opened:
            os.fchmod(opened.fileno(), 0o600)
            opened.truncate(0)
            opened.write(text)
    except OSError as error:
        fail(f"{file} cannot be written: {error.strerror}; name another file with --template")


def _model(
    settings: Settings, stack: str, folder: Path, *, deployed: Mapping[str, Any] | None, tries_imports: bool
) -> tuple[Model, Assets]:
    from thawd.deploy.aws.assets import make_assets
    from thawd.deploy.aws.stack import Order
    from thawd.deploy.aws.template import make_model

    made = make_assets(settings, stack=stack, folder=folder, tries_imports=tries_imports, report=warn)
    order = Order(
        settings=settings,
        stack=stack,
        code=made.code,
        layer_key=made.layer_key,
        deployed=deployed,
    )
    return make_model(order), made


def _deploy(target: Target, folder: Path, options: Mapping[str, Any]) -> None:
    from thawd.deploy.aws.plan import make_plan

    stack = target.account.read_stack(target.stack)
    deployed = None if stack is None else stack.template
    tries_imports = not options["untried"]
    model, made = _model(target.settings, target.stack, folder, deployed=deployed, tries_imports=tries_imports)
    plan = make_plan(model, deployed, stack=target.stack, shows_values=options["show_values"])
    _show(plan, target.settings, options)
    if options["only_plans"] or not plan.changes:
        return
    if plan.lost and not options["delete_data"]:
        fail(f"{', '.join(plan.lost)} would be deleted with all data; add --delete-data if that is wanted")
    if not options["yes"]:
        if not sys.stdin.isatty():
            fail("nobody can be asked, because the input is not a terminal; add --yes to deploy, --plan only to look")
        click.confirm(f"Deploy to {target.account.region}?", abort=True)
    target.account.upload(made.archives, report=lambda key: warn(f"uploads {key}"))
    target.account.push_images(
        target.stack, made.images, store=made.image_store, report=lambda name: warn(f"pushes {name}")
    )
    try:
        warn_of_left(target.account.deploy(target.stack, model.text, planned=deployed, report=report))
    except KeyboardInterrupt:
        warn("CloudFormation carries on; thawd deploy aws status shows the stack's state")
        raise
    after = target.account.read_stack(target.stack)
    if after is not None and not options["as_json"]:
        print_outputs(after.outputs)


def _show(plan: Plan, settings: Settings, options: Mapping[str, Any]) -> None:
    import msgspec

    from thawd.deploy.aws.plan import plan_text

    if options["as_json"]:
        click.echo(msgspec.json.format(msgspec.json.encode(plan), indent=2))
        return
    click.echo(plan_text(plan, has_colours=sys.stdout.isatty()))
    _show_cost(settings, options["invocations"])


def _show_cost(settings: Settings, invocations: float) -> None:
    from thawd.cost.prices import CostError, load_prices
    from thawd.deploy.aws.estimate import estimate

    prices = load_prices()
    try:
        found = estimate(settings, prices, invocations=invocations)
    except CostError as error:
        warn(f"the cost cannot be estimated: {error}")
        return
    click.echo(f"\nAt {invocations:,.0f} invocations a month of each function, in {prices.currency} ({prices.region}):")
    for entry in found:
        if entry.month is None:
            click.echo(f"  {entry.function}: not measured; invoke it on this machine, then see thawd cost")
        else:
            said = f"{entry.kind}, {entry.measured:,} invocations measured here"
            click.echo(f"  {entry.function}: {entry.month:,.2f} a month ({said})")


def report(event: StackEvent) -> None:
    """Print an event of a stack on standard error."""
    colour = _COLOURS.get(event.status.rpartition("_")[2])
    status = click.style(event.status, fg=colour) if colour is not None else event.status
    reason = f": {event.reason}" if event.reason and event.status.endswith("_FAILED") else ""
    click.echo(f"{status} {event.type} {event.resource}{reason}", err=True)


def warn_of_left(left: tuple[StackEvent, ...]) -> None:
    """Name the resources that the stack does not have any more and that were not deleted."""
    for event in left:
        warn(f"{event.resource} ({event.type}) is no part of the stack any more, and was not deleted: {event.reason}")


def print_outputs(outputs: Mapping[str, str]) -> None:
    """Print the outputs of a stack."""
    for name, value in sorted(outputs.items()):
        click.echo(f"{name}: {value}")


@aws.command(epilog=examples("thawd deploy aws destroy --stack shop --delete-data"))
@click.option("--delete-data", is_flag=True, help="Delete buckets and tables with all their data.")
@click.option("--yes", is_flag=True, help="Delete without asking.")
@_target_options
def destroy(delete_data: bool, yes: bool, **options: Any) -> None:
    """Delete the stack and the uploaded code.

    A stack with buckets or tables is deleted only with --delete-data.
    """
    target = _target(options)
    if not yes:
        if not sys.stdin.isatty():
            fail("nobody can be asked, because the input is not a terminal; add --yes to delete the stack")
        click.confirm(f"Delete the stack {target.stack} in {target.account.region}?", abort=True)
    if target.project is None:
        existed = target.account.destroy(target.stack, deletes_data=delete_data, report=report)
    else:
        document = target.project.document
        existed = target.account.destroy_project(target.stack, document, deletes_data=delete_data, report=report)
    if not existed:
        warn(f"there is no stack {target.stack} in {target.account.region}")


@aws.command(epilog=examples("thawd deploy aws status", "thawd deploy aws status --json"))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@_target_options
def status(as_json: bool, **options: Any) -> None:
    """Show the stack's state, its resources and its outputs. The exit status is 1 if there is no stack."""
    target = _target(options)
    stack = target.found()
    if stack is None:
        fail(f"there is no stack {target.stack} in {target.account.region}; thawd deploy aws makes one")
    rows = target.account.resources(stack.stack_id)
    if as_json:
        document = {"stack": target.stack, "status": stack.status, "outputs": stack.outputs, "resources": rows}
        click.echo(json.dumps(document, indent=2))
        return
    click.echo(f"{target.stack}: {stack.status}{f' ({stack.reason})' if stack.reason else ''}")
    if rows:
        print_text(rows, key_name="resource")
    print_outputs(stack.outputs)


@aws.command(epilog=examples("""thawd deploy aws invoke classify -p '{"n": 1}'"""))
@click.argument("function")
@click.option("-p", "--payload", default="{}", show_default=True, help="The event, as JSON; - reads standard input.")
@_target_options
def invoke(function: str, payload: str, **options: Any) -> None:
    """Invoke FUNCTION of the stack and print its answer. The exit status is 1 if the function failed."""
    from thawd.deploy.aws import deployed_functions

    target = _target(options)
    name, qualifier = _deployed_name(target, function)
    event = sys.stdin.buffer.read() if payload == "-" else payload.encode()
    answer = deployed_functions.invoke(target.account, name, qualifier, event)
    click.echo(answer.payload)
    if answer.error is not None:
        warn(f"{function} failed ({answer.error}) in version {answer.version}")
        sys.exit(EXIT_FAILED)


@aws.command(epilog=examples("thawd deploy aws logs classify --follow"))
@click.argument("function")
@click.option("-f", "--follow", is_flag=True, help="Print new lines as they arrive, until interrupted.")
@click.option(
    "--minutes", type=Finite(0, 1e6), default=10.0, show_default=True, help="Begin this many minutes in the past."
)
@_target_options
def logs(function: str, follow: bool, minutes: float, **options: Any) -> None:
    """Print the log of FUNCTION of the stack, from CloudWatch."""
    from thawd.deploy.aws import deployed_functions

    target = _target(options)
    name, _ = _deployed_name(target, function)
    if target.project is None:
        group_name = target.settings.functions[function].log_group or f"/aws/lambda/{name}"
    else:
        group_name = deployed_functions.log_group_of(target.account, name)
    since_s = time.time() - minutes * 60
    for line in deployed_functions.log_lines(target.account, group_name, since_s=since_s, follows=follow):
        click.echo(line)


def _deployed_name(target: Target, function: str) -> tuple[str, str | None]:
    """Return a function's name in the account, and the alias that serves; None: it has none.

    If there is no such function, the command ends.
    """
    from thawd.cli.deploy_project import function_of
    from thawd.deploy.aws import naming

    if target.project is not None:
        return function_of(target.account, target.stack, function), None
    if function not in target.settings.functions:
        fail(f"there is no function {function!r}; {did_you_mean(function, target.settings.functions)}")
    return naming.function_name(target.stack, function), naming.ALIAS
