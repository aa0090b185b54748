"""Resource types that are accepted but not made. They watch, describe or pace a stack, which works without them.

The stack's events, and a line on the console, say what is missing.
"""

from __future__ import annotations

from thawd.server.emulator.cloudformation.providers.aws_clients import Aws
from thawd.server.emulator.cloudformation.providers.resource_kind import Kind, Made, Wanted

_ALARMS, _SCALING = "its alarms do not watch metrics", "nothing scales by it; thawd scales by requests"
_ACCESS = "access is not restricted by it"
_MISSING = {
    "AWS::CDK::Metadata": "",
    "AWS::CloudWatch::": _ALARMS,
    "AWS::ApplicationInsights::": _ALARMS,
    "AWS::ApplicationAutoScaling::": _SCALING,
    "AWS::CodeDeploy::": "an alias moves to its new version immediately",
    "AWS::IAM::": _ACCESS,
    "AWS::Logs::ResourcePolicy": _ACCESS,
    "AWS::Logs::QueryDefinition": "the query is not stored",
    "AWS::XRay::": "no traces are sampled by it",
    "AWS::Synthetics::": "nothing probes the stack by it",
    "AWS::Budgets::": "no cost is watched",
    "AWS::ResourceGroups::": "resources are not grouped",
    "AWS::ServiceCatalogAppRegistry::": "the application is not registered",
    "AWS::Chatbot::": "it sends no notifications",
}


def missing_without(kind: str) -> str | None:
    """Return what a stack does not do without resources of this type; None: the stack needs them."""
    for beginning, missing in _MISSING.items():
        if kind == beginning or (beginning.endswith("::") and kind.startswith(beginning)):
            return missing
    return None


def _make(aws: Aws, wanted: Wanted) -> Made:
    service, name = wanted.kind.split("::")[1].lower(), wanted.name
    arn = f"arn:aws:{service}:{wanted.stack.region}:{wanted.stack.account}:{name}"
    return Made(name, {"Arn": arn, "Id": name, "Name": name})


KIND = Kind(_make, lambda aws, resource: None, lambda aws, resource, wanted: None)
"""The kind of all harmless resources: they exist as records only."""
