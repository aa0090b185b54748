"""Versions and aliases: the share of requests that a new version gets, gradual rollouts, provisioned concurrency."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from thawd.deploy.aws import naming
from thawd.deploy.aws.stack import Stack, attribute, ref, trust
from thawd.resources import Function

_CODEDEPLOY_ROLE = "arn:${AWS::Partition}:iam::aws:policy/service-role/AWSCodeDeployRoleForLambda"
_PROVISIONED = "lambda:function:ProvisionedConcurrency"


def add_alias(stack: Stack, function: Function, version_id: str, version: Mapping[str, Any]) -> None:
    """Add the function's version and its alias, with its rollout and its provisioned concurrency.

    Args:
        stack: the stack.
        function: the function.
        version_id: logical id of the new version. It contains a digest of the version's code and settings.
        version: the version's resource.
    """
    stack.resources[version_id] = dict(version)
    alias = {
        "FunctionName": ref(stack.function_id(function.name)),
        "FunctionVersion": attribute(version_id, "Version"),
        "Name": naming.ALIAS,
    }
    more: dict[str, Any] = {}
    rollout = stack.aws.rollout
    if rollout.endswith("%") and (previous := _previous(stack, function, version_id)) is not None:
        # The previous version stays in the template unchanged, and gets the rest of the requests.
        stack.resources[previous[0]] = previous[1]
        alias["FunctionVersion"] = attribute(previous[0], "Version")
        weight = {"FunctionVersion": attribute(version_id, "Version"), "FunctionWeight": int(rollout[:-1]) / 100}
        alias["RoutingConfig"] = {"AdditionalVersionWeights": [weight]}
    elif rollout != "all" and not rollout.endswith("%"):
        group = _add_codedeploy(stack, function, rollout)
        more["UpdatePolicy"] = {
            "CodeDeployLambdaAliasUpdate": {"ApplicationName": ref("CodeDeploy"), "DeploymentGroupName": ref(group)}
        }
    if function.provisioned_concurrency:
        alias["ProvisionedConcurrencyConfig"] = {"ProvisionedConcurrentExecutions": function.provisioned_concurrency}
    logical_id = naming.logical_id(function.name, "Alias")
    stack.add(logical_id, "AWS::Lambda::Alias", alias, **more)
    _add_provisioned_schedules(stack, function, alias=logical_id)
    stack.output(logical_id + "Arn", ref(logical_id), f"function {function.name}")


def _previous(stack: Stack, function: Function, version_id: str) -> tuple[str, dict[str, Any]] | None:
    """Return the logical id and resource of the previous version; None: the new version is the first.

    During a rollout, the previous version is the one from before the rollout.
    """
    resources = (stack.order.deployed or {}).get("Resources", {})
    alias = resources.get(naming.logical_id(function.name, "Alias"), {}).get("Properties", {})
    served = alias.get("FunctionVersion", {}).get("Fn::GetAtt", [""])[0]
    if served == version_id or served not in resources:
        return None
    return served, copy.deepcopy(resources[served])


def _add_codedeploy(stack: Stack, function: Function, rollout: str) -> str:
    stack.add("CodeDeploy", "AWS::CodeDeploy::Application", {"ComputePlatform": "Lambda"})
    role = {
        "AssumeRolePolicyDocument": trust("codedeploy.amazonaws.com"),
        "ManagedPolicyArns": [{"Fn::Sub": _CODEDEPLOY_ROLE}],
    }
    stack.add("CodeDeployRole", "AWS::IAM::Role", role)
    events = ["DEPLOYMENT_FAILURE"]
    alarms = None
    if stack.aws.alarms:
        events = ["DEPLOYMENT_FAILURE", "DEPLOYMENT_STOP_ON_ALARM", "DEPLOYMENT_STOP_ON_REQUEST"]
        alarms = {"Enabled": True, "Alarms": [{"Name": naming.alarm_name(stack.name, function.name, "errors")}]}
    properties = {
        "ApplicationName": ref("CodeDeploy"),
        "ServiceRoleArn": attribute("CodeDeployRole", "Arn"),
        "DeploymentConfigName": f"CodeDeployDefault.Lambda{rollout}",
        "DeploymentStyle": {"DeploymentType": "BLUE_GREEN", "DeploymentOption": "WITH_TRAFFIC_CONTROL"},
        "AutoRollbackConfiguration": {"Enabled": True, "Events": events},
        "AlarmConfiguration": alarms,
    }
    return stack.add(
        naming.logical_id(function.name, "DeploymentGroup"), "AWS::CodeDeploy::DeploymentGroup", properties
    )


def _add_provisioned_schedules(stack: Stack, function: Function, *, alias: str) -> None:
    entries = stack.settings.provisioned_schedules.get(function.name, ())
    if not entries:
        return
    actions = [
        {
            "ScheduledActionName": f"provisioned-{index}",
            "Schedule": entry.schedule,
            "Timezone": entry.timezone,
            "ScalableTargetAction": {"MinCapacity": entry.count, "MaxCapacity": entry.count},
        }
        for index, entry in enumerate(entries)
    ]
    properties = {
        "ServiceNamespace": "lambda",
        "ScalableDimension": _PROVISIONED,
        "ResourceId": f"function:{naming.function_name(stack.name, function.name)}:{naming.ALIAS}",
        "MinCapacity": function.provisioned_concurrency,
        "MaxCapacity": function.provisioned_concurrency,
        "ScheduledActions": actions,
    }
    stack.add(
        naming.logical_id(function.name, "Provisioned"),
        "AWS::ApplicationAutoScaling::ScalableTarget",
        properties,
        DependsOn=[alias],
    )
