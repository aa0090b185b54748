"""Configurations for tests of deployments to AWS."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from thawd import config
from thawd.deploy.aws.stack import Code, Order
from thawd.deploy.aws.template import Model, make_model
from thawd.deploy.aws.used_stores import read_uses

QUEUE = "arn:aws:sqs:us-east-1:000000000000:orders"
DEAD = "arn:aws:sqs:us-east-1:000000000000:dead"
FOREIGN = "arn:aws:sqs:eu-west-1:123456789012:theirs"

CLASSIFY = """import thawd
def handler(event, context):
    data = thawd.bucket("uploads").read(event["key"])
    thawd.table("labels").put(event["key"], {"bytes": len(data)})
"""
PLAIN = "def handler(event, context): return event\n"

EVERYTHING = f"""
[functions.classify]
handler = "classify.handler"
memory_mb = 1024
timeout_s = 60
environment = {{ MODEL = "squeezenet", PASSWORD = "correct horse" }}
reserved_concurrency = 20
maximum_retry_attempts = 1
on_success = "function:after"
on_failure = "arn:aws:sns:us-east-1:000000000000:failures"
dead_letter = "{DEAD}"

[[functions.classify.sources]]
sqs = "{QUEUE}"
batch_size = 5
maximum_concurrency = 4
report_batch_item_failures = true
filters = [{{ body = {{ kind = ["order"] }} }}]

[[functions.classify.sources]]
sqs = "{FOREIGN}"

[functions.after]
handler = "plain.handler"
provisioned_concurrency = 2
log_format = "JSON"
log_group = "shared"
keep_alive = "histogram"

[[functions.after.provisioned_schedule]]
schedule = "cron(0 8 ? * MON-FRI *)"
count = 10
timezone = "Europe/Berlin"

[functions.after.url]
auth_type = "NONE"
cors = {{ allow_origins = ["*"], allow_methods = ["GET"] }}

[buckets.uploads]
notify = [{{ function = "classify", suffix = ".png" }}, {{ function = "after", prefix = "in/", suffix = ".txt" }}]

[tables.labels]

[schedules.nightly]
function = "after"
schedule = "cron(0 2 * * ? *)"
timezone = "Europe/Berlin"

[schedules.often]
function = "after"
schedule = "rate(5 minutes)"
input = {{ price = "${{5}}" }}

[routes]
"POST /classify" = "classify"
"GET /items/{{id}}" = {{ function = "after", payload_format = "1.0" }}
"POST /later" = {{ function = "after", asynchronous = true }}

[http.cors]
allow_origins = ["https://example.com"]

[deploy.aws]
log_retention_days = 14
tracing = true
"""


def order(
    folder: Path, text: str, *, deployed: Mapping[str, Any] | None = None, key: str = "one", **modules: str
) -> Order:
    """Return the order to deploy a configuration as the stack ``shop``.

    Args:
        folder: folder of the configuration and the code.
        text: the configuration.
        deployed: the deployed template.
        key: changes with the code.
        modules: further modules of the code, by name.
    """
    for name, source in {"classify": CLASSIFY, "plain": PLAIN, **modules}.items():
        (folder / f"{name}.py").write_text(source)
    (folder / "thawd.toml").write_text(text)
    settings = config.load(folder / "thawd.toml", environ={})
    code = {
        name: Code(
            key=f"shop/{key}.zip",
            runtime=function.runtime or "python3.12",
            uses=read_uses(function.code, function.handler),
        )
        for name, function in settings.functions.items()
    }
    return Order(
        settings=settings,
        stack="shop",
        code=code,
        layer_key="shop/layer.zip",
        deployed=deployed,
    )


def model(folder: Path, text: str, **more: Any) -> Model:
    """Return the model of a configuration; see `order`."""
    return make_model(order(folder, text, **more))


def deployed(made: Model) -> dict[str, Any]:
    """Return a template as AWS returns it."""
    template: dict[str, Any] = json.loads(made.text)
    return template


def of_type(made: Model, kind: str) -> list[dict[str, Any]]:
    """Return the properties of all resources of a type."""
    resources = made.template["Resources"].values()
    return [resource.get("Properties", {}) for resource in resources if resource["Type"] == kind]
