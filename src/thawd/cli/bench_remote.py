"""`thawd bench --remote`: the load of `thawd bench` against a function that is deployed to AWS."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from thawd.cli.deploy import stack_name
from thawd.cli.deploy_project import function_of
from thawd.cli.exits import fail
from thawd.cli.options import load, project_of
from thawd.system.suggestions import did_you_mean

if TYPE_CHECKING:
    from thawd.bench.measuring import Plan
    from thawd.bench.runs import LoadShape
    from thawd.deploy.aws.stack_deployment import AwsAccount

_ONLY_REMOTE = ("stack", "region", "profile", "endpoint_url")


def remote_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--remote``, and the options that say which stack of which account is meant."""
    for option in (
        click.option("--endpoint-url", metavar="URL", help="With --remote: URL of all AWS services."),
        click.option("--profile", help="With --remote: profile of AWS's settings."),
        click.option("--region", help="With --remote: AWS region."),
        click.option("--stack", help="With --remote: name of the stack."),
        click.option(
            "--remote",
            is_flag=True,
            help="Measure the function that is deployed to AWS. AWS charges for each request.",
        ),
    ):
        command = option(command)
    return command


def check_use(options: Mapping[str, Any]) -> None:
    """Refuse options that do not fit together.

    Raises:
        click.UsageError: they do not.
    """
    if not options["remote"]:
        given = [name for name in _ONLY_REMOTE if options[name] is not None]
        if given:
            raise click.UsageError(f"--{given[0].replace('_', '-')} has no effect without --remote")
        return
    if options["engines"] or options["begun_from"] is not None or options["environments"]:
        raise click.UsageError(
            "--engine, --from and --environments need a server of thawd; leave them out with --remote"
        )
    if options["method"] is not None:
        raise click.UsageError("--method has no effect with --remote: the function is invoked by Lambda's API")


@contextlib.contextmanager
def remote_plan(
    options: Mapping[str, Any], shape: LoadShape, make: Callable[..., Plan]
) -> Iterator[Plan]:  # fmt: skip
    """Make the plan for a deployed function. Each request is an invocation by Lambda's API, and is signed.

    Args:
        options: the options of the command.
        shape: the load.
        make: `bench_plans.make_plan`.

    Raises:
        DeploymentError: AWS cannot be reached, there are no credentials, or there is no such function.
    """
    from thawd.deploy.aws.account import Access
    from thawd.deploy.aws.deployed_functions import invocation_address
    from thawd.deploy.aws.stack_deployment import AwsAccount

    settings = load(options["config_path"])
    account = AwsAccount(
        Access(
            region=options["region"] or settings.deployment.region,
            profile=options["profile"],
            endpoint_url=(options["endpoint_url"] or "").rstrip("/") or None,
        )
    )
    try:
        function, qualifier = _function(options, account)
        url = invocation_address(account, function, qualifier)
        given = {**options, "method": "POST", "payloads": options["payloads"] or ("{}",)}

        def signed(_: str, body: bytes, headers: Mapping[str, str]) -> dict[str, str]:
            return account.signing_headers("lambda", url, body, headers)

        plan = make(given, shape, url, None, None, signed)
        name = f"{function} in {account.region}"
        yield replace(plan, target_name=name, label=options["label"] or name)
    finally:
        account.close()


def _function(options: Mapping[str, Any], account: AwsAccount) -> tuple[str, str | None]:
    """The deployed function's name, and the alias that serves; None: it has none.

    In the folder of another tool's project, the function is the one with this logical id in the stack.
    """
    from thawd.deploy.aws import naming

    settings = load(options["config_path"])
    name: str = options["target"]
    project = project_of(options["config_path"])
    if project is None:
        if name not in settings.functions:
            fail(f"there is no function {name!r}; {did_you_mean(name, settings.functions)}")
        return naming.function_name(stack_name(settings, options["stack"]), name), naming.ALIAS
    if options["stack"] is None:
        raise click.UsageError("--remote in the folder of a project needs --stack, the name of its stack at AWS")
    return function_of(account, options["stack"], name), None
