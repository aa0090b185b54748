"""Options of ``[deploy.aws]``, which ``thawd deploy aws`` reads."""

from __future__ import annotations

import re

from thawd.config import kinds
from thawd.config.options.option import REQUIRED, Option
from thawd.resources import PYTHON_RUNTIMES

# Source: CloudWatch Logs API reference, PutRetentionPolicy.
RETENTION_DAYS = (
    *(1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653),
)
# Source: CodeDeploy user guide, "Deployment configurations on an AWS Lambda compute platform".
CODEDEPLOY_ROLLOUTS = (
    *("Canary10Percent5Minutes", "Canary10Percent10Minutes", "Canary10Percent15Minutes", "Canary10Percent30Minutes"),
    *("Linear10PercentEvery1Minute", "Linear10PercentEvery2Minutes", "Linear10PercentEvery3Minutes"),
    "Linear10PercentEvery10Minutes",
)

_RETENTION = kinds.Kind(
    f"one of {', '.join(map(str, RETENTION_DAYS))}",
    lambda value: isinstance(value, int) and not isinstance(value, bool) and value in RETENTION_DAYS,
)

DEPLOY_AWS = (
    Option(
        "stack",
        kinds.pattern(
            "a name of 1 to 128 letters, digits and hyphens that begins with a letter", r"[A-Za-z][A-Za-z0-9-]{0,127}"
        ),
        "Name of the CloudFormation stack. Names of all its resources begin with it.",
        "the name of the configuration's folder",
    ),
    Option(
        "region",
        kinds.pattern("a region such as eu-west-1", r"[a-z]{2}(-[a-z]+)+-\d"),
        "AWS region.",
        "that of AWS's own settings",
    ),
    Option("architecture", kinds.choice("x86_64", "arm64"), "Processor architecture of all functions."),
    Option(
        "python",
        kinds.pattern(
            "a version of Python such as 3.12",
            "|".join(re.escape(name.removeprefix("python")) for name in PYTHON_RUNTIMES),
        ),
        "Python version of all Python functions on AWS. Snapshots need 3.12 or later.",
        "each function's own",
    ),
    Option("log_retention_days", _RETENTION, "How long CloudWatch keeps the functions' log events, in days."),
    Option(
        "tracing",
        kinds.flag(),
        'Whether X-Ray traces all functions. Otherwise it traces those with `tracing` = "Active".',
    ),
    Option("alarms", kinds.flag(), "Whether the stack has alarms on errors and throttles, and a dashboard."),
    Option(
        "alarm_topic",
        kinds.pattern("the ARN of an SNS topic", r"arn:aws[a-z-]*:sns:[a-z0-9-]+:\d{12}:[A-Za-z0-9_-]{1,256}"),
        "SNS topic that alarms notify.",
        "none: nobody is notified",
    ),
    Option(
        "rollout",
        kinds.pattern(
            '"all", a percentage such as "10%", or one of ' + ", ".join(f'"{name}"' for name in CODEDEPLOY_ROLLOUTS),
            "|".join(["all", "[1-9][0-9]?%", *CODEDEPLOY_ROLLOUTS]),
        ),
        'How a new version gets requests. "all": all of them, as soon as it is there; a percentage: this share, until '
        "a deployment with another `rollout`; a name: CodeDeploy shifts the requests in steps, and back if an alarm "
        "goes off.",
    ),
    Option(
        "statements",
        kinds.list_of("a list of tables, each as `[[deploy.aws.statements]]`"),
        "What functions may do besides what their code's `thawd.bucket` and `thawd.table` and this file show.",
        "[]",
    ),
)

STATEMENT = (
    Option("actions", kinds.list_of("a list of one or more texts", least=1), "Actions of IAM.", REQUIRED),
    Option(
        "resources", kinds.list_of("a list of one or more texts", least=1), 'ARNs of resources; "*" for all.', REQUIRED
    ),
    Option("function", kinds.text("the name of a function of this file"), "The function.", "all functions"),
)
