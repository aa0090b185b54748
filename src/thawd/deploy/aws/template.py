"""Makes the CloudFormation template of a configuration. The same configuration and code give the same bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from thawd.deploy.aws.alarms_and_dashboard import add_watching
from thawd.deploy.aws.buckets_and_tables import add_stores
from thawd.deploy.aws.functions import add_function
from thawd.deploy.aws.queues_and_schedules import add_schedule, add_scheduler_role, add_sources
from thawd.deploy.aws.routes_and_urls import add_routes, add_url
from thawd.deploy.aws.stack import DeploymentError, Missing, Order, Stack

# Source: CloudFormation user guide, "Understand CloudFormation quotas".
MAX_RESOURCES = 500
MAX_TEMPLATE_BYTES = 1_000_000


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration as a template.

    Attributes:
        template: the template.
        missing: settings of thawd.toml that AWS cannot carry out.
    """

    template: dict[str, Any]
    missing: tuple[Missing, ...]

    @property
    def text(self) -> str:
        """The template as JSON."""
        return text_of(self.template)


def text_of(template: Mapping[str, Any]) -> str:
    """Return a template as JSON, with sorted keys."""
    return json.dumps(template, sort_keys=True, indent=1, ensure_ascii=False)


def make_model(order: Order) -> Model:
    """Make the template of a configuration.

    Raises:
        DeploymentError: a handler cannot work on Lambda, or the template exceeds CloudFormation's quotas.
    """
    stack = Stack(order)
    if not order.settings.functions:
        raise DeploymentError(f"{order.settings.path} declares no functions; there is nothing to deploy")
    for function in order.settings.functions.values():
        add_function(stack, function)
        add_sources(stack, function)
    add_stores(stack)
    add_routes(stack)
    for name, url in order.settings.urls.items():
        add_url(stack, name, url)
    for schedule in order.settings.schedules.values():
        add_schedule(stack, schedule)
    add_scheduler_role(stack)
    add_watching(stack)
    template = {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"{order.stack}: deployed by thawd",
        "Resources": stack.resources,
        "Outputs": stack.outputs,
    }
    model = Model(template=template, missing=tuple(dict.fromkeys(stack.missing)))
    if len(stack.resources) > MAX_RESOURCES:
        raise DeploymentError(
            f"the stack would have {len(stack.resources)} resources, and CloudFormation allows {MAX_RESOURCES}; divide "
            "the configuration into several"
        )
    if len(model.text.encode()) > MAX_TEMPLATE_BYTES:
        raise DeploymentError(
            f"the template would have {len(model.text.encode())} bytes, and CloudFormation allows "
            f"{MAX_TEMPLATE_BYTES}; divide the configuration into several"
        )
    return model
