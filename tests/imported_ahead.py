"""Which modules a process imports before `tests.prestarted` forks it, for each program that the forks run."""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

_THAWD = (
    "thawd.cli.program",
    "thawd.cli.bench",
    "thawd.cli.up",
    "thawd.server.serving",
    "thawd.deploy.projects.stacks",
    "thawd.bench.measuring",
    "thawd.snapshot.lint",
    "uvicorn.lifespan.off",
    "uvloop",
    # A server with a table in DynamoDB, a destination at AWS or a bucket elsewhere imports these.
    "boto3",
    "obstore",
)
EMULATOR = "thawd.server.emulator.moto_program"
_MOTO = (
    EMULATOR,
    "moto.moto_server.werkzeug_app",
    # The first stack imports this: the models of all services whose resources stacks make.
    "moto.cloudformation.models",
    "moto.scheduler.models",
    "moto.stepfunctions.parser.models",
    # The first request of each service imports these.
    *(
        f"moto.{service}.{part}"
        for service in (
            *("apigateway", "apigatewayv2", "awslambda", "cloudformation", "cognitoidp", "dynamodb", "ecr", "events"),
            *(
                "iam",
                "kinesis",
                "logs",
                "s3",
                "scheduler",
                "secretsmanager",
                "sns",
                "sqs",
                "ssm",
                "stepfunctions",
                "sts",
            ),
        )
        for part in ("urls", "responses")
    ),
    "samtranslator.translator.translator",
    "samtranslator.parser.parser",
    "werkzeug.serving",
)
IMPORTED: Mapping[str, Sequence[str]] = {
    "thawd": _THAWD,
    "thawd --aws": (*_THAWD, "thawd.deploy.projects.stack_updates", *_MOTO),
    EMULATOR: _MOTO,
    "aws": ("awscli.clidriver", "awscli.handlers"),
    "sam": (
        "samcli.cli.main",
        "samcli.commands.deploy.command",
        "samcli.commands.deploy.deploy_context",
        "samcli.commands.package.package_context",
        "samcli.commands.remote.invoke.cli",
        "samcli.commands.remote.remote_invoke_context",
        "samcli.commands.list.resources.resources_context",
        "samcli.commands.list.stack_outputs.stack_outputs_context",
        "samcli.commands.logs.logs_context",
        "samcli.commands.delete.delete_context",
    ),
}
"""For each program, which is a module and perhaps an argument of it: the modules to import ahead."""

SET_BY_IMPORTS: dict[str, str] = {}
"""Environment variables that the imports of this process have set."""


def import_ahead(program: str) -> None:
    """Import the modules of a program, in a process that is forked afterwards."""
    sys.path[:] = [entry for entry in sys.path if entry not in ("", str(ROOT))]
    before = dict(os.environ)
    for name in IMPORTED[program]:
        importlib.import_module(name)
    if "thawd.server.serving" in IMPORTED[program]:
        _examine_ahead()
    if EMULATOR in IMPORTED[program]:
        _read_models_ahead()
    SET_BY_IMPORTS.update({key: value for key, value in os.environ.items() if before.get(key) != value})
    gc.collect()
    gc.freeze()


def _examine_ahead() -> None:
    """Do what each server would do again with the same result: examine its types, and look for boto3."""
    from thawd.environments import boto3_for_functions
    from thawd.system import decoded_types

    decoded_types.examine()
    boto3_for_functions.folders()
    boto3_for_functions.boto3_for((sys.version_info[0], sys.version_info[1]))


def _read_models_ahead() -> None:
    """Do what each emulator would do again with the same result: read botocore's models of services."""
    from thawd.server.emulator import imports_ahead, service_models

    service_models.share()
    imports_ahead.import_now()
