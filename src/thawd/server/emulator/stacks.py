"""Makes moto's CloudFormation stacks end as they would on AWS. Runs in the emulator's own process.

moto, the emulator, would leave a stack that fails half made, in the state CREATE_IN_PROGRESS, and would forget the
outputs of a stack that a change set has made. It would also ignore the notifications of a stack's buckets.

Source: CloudFormation user guide, "Stack status codes" and "Update CloudFormation stacks using change sets";
CloudFormation template reference, "AWS::S3::Bucket NotificationConfiguration".
"""

from __future__ import annotations

import graphlib
import ipaddress
import re
import warnings
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from thawd.server.emulator import custom_resources, log_resources, stack_apis, stack_resources, stack_schedules
from thawd.server.emulator.custom_resources import CustomResource
from thawd.server.emulator.log_resources import LogResource
from thawd.server.emulator.stack_resources import Properties, StackResource

# The resource in a text for Fn::Sub: ${Name} or ${Name.Attribute}.
_SUBSTITUTED = re.compile(r"\$\{([A-Za-z0-9]+)(?:\.[^}]*)?\}")

Connect = Callable[..., Any]


def install(connect: Connect, complain: Callable[[str], None]) -> None:
    """Change how moto makes, updates and deletes stacks.

    Args:
        connect: returns a boto3 client for thawd's API, by the name of the service. With ``is_patient``, the client
            waits for the longest invocations and does not retry.
        complain: prints a line for the operator.
    """
    stack_resources.connect(lambda: connect("lambda"))
    stack_apis.connect(connect)
    stack_resources.add(stack_apis.KINDS)
    log_resources.connect(lambda: connect("logs"))
    stack_schedules.connect(connect)
    stack_resources.add(stack_schedules.KINDS)
    custom_resources.start(lambda: connect("lambda", is_patient=True))
    _read_templates_here()
    _make_resources(complain)
    _notify(connect)
    _delete_dependents_first()
    _update_before_deleting()
    _end_as_on_aws()


def _read_templates_here() -> None:
    """Read a template whose address has this server's host from the bucket in the path, as the SAM CLI gives it.

    moto would take the first part of any host but localhost and Amazon's for a bucket.
    """
    from moto.cloudformation import models, responses, utils

    read = utils.get_stack_from_s3_url

    def read_here(template_url: str, account_id: str, partition: str) -> str:
        address = urlsplit(template_url)
        if not address.netloc.endswith("amazonaws.com") and not _host_names_a_bucket(address.hostname or ""):
            template_url = f"https://s3.amazonaws.com{address.path}"
        return read(template_url, account_id, partition)

    for module in (responses, utils, models):
        if hasattr(module, "get_stack_from_s3_url"):
            setattr(module, "get_stack_from_s3_url", read_here)  # noqa: B010


def _host_names_a_bucket(host: str) -> bool:
    """Whether a host is an address with a bucket in front, such as pictures.localhost or pictures.s3.local."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return "." in host and not host.startswith(("s3.", "s3-"))
    return False


def _make_resources(complain: Callable[[str], None]) -> None:
    """Make custom resources, and those that `stack_resources` knows, and report those that moto leaves out."""
    from moto.cloudformation import parsing

    class_of, parse = parsing.resource_class_from_type, parsing.parse_resource

    def class_of_ours_too(resource_type: str) -> Any:
        if custom_resources.makes(resource_type):
            return CustomResource
        if log_resources.makes(resource_type):
            return LogResource
        return StackResource if stack_resources.makes(resource_type) else class_of(resource_type)

    def parse_or_report(resource: Properties, resources: Any) -> Any:
        found = parse(resource, resources)
        if found is None and resource["Type"] not in parsing.NULL_MODELS:
            complain(
                f"thawd: --aws: the stack {resources['AWS::StackName']} is made without its resource of the type "
                f"{resource['Type']}: the emulator has none of this type"
            )
        return found

    setattr(parsing, "resource_class_from_type", class_of_ours_too)  # noqa: B010 - mypy forbids to assign to a function
    setattr(parsing, "parse_resource", parse_or_report)  # noqa: B010
    warnings.filterwarnings("ignore", message="Tried to parse .* not supported by moto")


# Notifications of buckets

_CONFIGURATIONS = {
    "LambdaConfigurations": ("LambdaFunctionConfigurations", "Function", "LambdaFunctionArn"),
    "QueueConfigurations": ("QueueConfigurations", "Queue", "QueueArn"),
    "TopicConfigurations": ("TopicConfigurations", "Topic", "TopicArn"),
}


def _notify(connect: Connect) -> None:
    """Set the notifications of a stack's buckets through thawd, which invokes the functions that they name."""
    from moto.s3.models import FakeBucket

    create, update = FakeBucket.create_from_cloudformation_json, FakeBucket.update_from_cloudformation_json
    delete = FakeBucket.delete_from_cloudformation_json

    def create_and_notify(
        kind: Any, /, resource_name: str, cloudformation_json: Any, account_id: str, region_name: str, **facts: Any
    ) -> Any:
        bucket = create(resource_name, cloudformation_json, account_id, region_name, **facts)
        configuration = notifications_of(cloudformation_json.get("Properties", {}))
        if configuration:
            try:
                _set(connect, bucket.name, configuration)
            except Exception:
                delete(bucket.name, cloudformation_json, account_id, region_name)
                raise
        return bucket

    def update_and_notify(
        kind: Any,
        /,
        original_resource: Any,
        new_resource_name: str,
        cloudformation_json: Any,
        *place: str,
        **named: str,
    ) -> Any:
        bucket = update(original_resource, new_resource_name, cloudformation_json, *place, **named)
        _set(connect, bucket.name, notifications_of(cloudformation_json.get("Properties", {})))
        return bucket

    def forget_and_delete(
        kind: Any, /, resource_name: str, cloudformation_json: Any, account_id: str, region_name: str
    ) -> None:
        if notifications_of(cloudformation_json.get("Properties", {})):
            _set(connect, resource_name, {})
        delete(resource_name, cloudformation_json, account_id, region_name)

    setattr(FakeBucket, "create_from_cloudformation_json", classmethod(create_and_notify))  # noqa: B010
    setattr(FakeBucket, "update_from_cloudformation_json", classmethod(update_and_notify))  # noqa: B010
    setattr(FakeBucket, "delete_from_cloudformation_json", classmethod(forget_and_delete))  # noqa: B010


def _set(connect: Connect, bucket: str, configuration: Properties) -> None:
    connect("s3").put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration=configuration)


def notifications_of(properties: Properties) -> Properties:
    """The notifications in a template's bucket, as the parameter of S3's PutBucketNotificationConfiguration."""
    given = properties.get("NotificationConfiguration", {})
    made: Properties = {}
    for name, (api_name, target, api_target) in _CONFIGURATIONS.items():
        for each in given.get(name, []):
            one = {"Events": [each["Event"]], api_target: each[target]}
            rules = each.get("Filter", {}).get("S3Key", {}).get("Rules", [])
            if rules:
                one["Filter"] = {"Key": {"FilterRules": [{"Name": r["Name"], "Value": r["Value"]} for r in rules]}}
            made.setdefault(api_name, []).append(one)
    if "EventBridgeConfiguration" in given:
        made["EventBridgeConfiguration"] = {}
    return made


# How a stack ends


def _delete_dependents_first() -> None:
    """Delete a stack's resources in the order of their dependencies: a custom resource before the function behind it.

    moto would delete them in any order.
    """
    from moto.cloudformation.parsing import ResourceMap

    def delete(resources: Any) -> None:
        template = resources._resource_json_map

        def work(name: str) -> None:
            made = resources._parsed_resources.get(name)
            if made is not None and not isinstance(made, str):
                resources._delete_resource(made, template[name])
                del resources._parsed_resources[name]

        names = [name for name in dependents_first(template) if template[name].get("DeletionPolicy") != "Retain"]
        _in_rounds(names, work)

    setattr(ResourceMap, "delete", delete)  # noqa: B010


def _update_before_deleting() -> None:
    """Make an update create and change resources in the order of their dependencies, and delete others only then.

    moto would delete first, and would fail if a resource that stays still uses one that goes: a stage its deployment.
    """
    from moto.cloudformation.parsing import ResourceMap, parse_and_update_resource

    def update(resources: Any, template: dict[str, Any], parameters: dict[str, Any] | None = None) -> None:
        changes, before = resources.build_resource_diff(template, parameters), dict(resources._resource_json_map)
        resources._template = template
        if parameters:
            resources.input_parameters = parameters
        resources.load_mapping()
        resources.load_parameters()
        resources.load_conditions()
        resources._resource_json_map = template["Resources"]
        place = {"account_id": resources._account_id, "region_name": resources._region_name}

        def modify(name: str) -> None:
            changed = parse_and_update_resource(name, template["Resources"][name], resources, **place)
            resources._parsed_resources[name] = changed

        def remove(name: str) -> None:
            made = resources._parsed_resources.get(name)
            if made is not None and not isinstance(made, str) and before[name].get("DeletionPolicy") != "Retain":
                resources._delete_resource(made, before[name])
            resources._parsed_resources.pop(name, None)

        try:
            for name in dependents_first(template["Resources"])[::-1]:
                if name in changes["Add"]:
                    resources[name]  # moto makes a resource when something asks for it
                elif name in changes["Modify"]:
                    modify(name)
            _in_rounds([name for name in dependents_first(before) if name in changes["Remove"]], remove)
        except Exception as error:
            raise _UpdateFailedError(error) from error

    setattr(ResourceMap, "update", update)  # noqa: B010


class _UpdateFailedError(Exception):
    """A resource could not be created, changed or deleted. What was changed before stays changed.

    Args:
        cause: the resource's error.
    """

    def __init__(self, cause: Exception) -> None:
        super().__init__(_words(cause))
        self.message = _words(cause)


def _in_rounds(names: list[str], work: Callable[[str], None]) -> None:
    """Do `work` for each name, and again for those where it failed, as long as it succeeds for one.

    A resource may need another one in a way that the template does not show.
    """
    while names:
        failed: dict[str, Exception] = {}
        for name in names:
            try:
                work(name)
            except Exception as error:  # whatever fails may succeed after the others
                failed[name] = error
        if len(failed) == len(names):
            raise next(iter(failed.values()))
        names = list(failed)


def dependents_first(resources: dict[str, Any]) -> list[str]:
    """The names of a template's resources, each before those that it refers to or depends on."""
    needs = {name: _named_in(resource) & resources.keys() - {name} for name, resource in resources.items()}
    try:
        return list(graphlib.TopologicalSorter(needs).static_order())[::-1]
    except graphlib.CycleError:  # the emulator could not have made them, or only some of them
        return list(resources)[::-1]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _named_in(value: Any) -> set[str]:
    """What a part of a template names: resources, and perhaps parameters."""
    if isinstance(value, list):
        return set().union(*map(_named_in, value))
    if not isinstance(value, dict):
        return set()
    named: set[str] = set()
    for key, given in value.items():
        texts = [given] if isinstance(given, str) else [each for each in _list(given) if isinstance(each, str)]
        if key in ("Ref", "DependsOn"):
            named.update(texts)
        elif key == "Fn::GetAtt":
            named.update(texts[0].split(".")[:1] if texts else [])
        elif key == "Fn::Sub":
            named.update(each for text in texts[:1] for each in _SUBSTITUTED.findall(text))
        named |= _named_in(given)
    return named


def _end_as_on_aws() -> None:
    """Make stacks end in the state in which AWS would leave them: if one fails, with the reason."""
    from moto.cloudformation.models import CloudFormationBackend
    from moto.cloudformation.responses import CloudFormationResponse

    create_change_set = CloudFormationResponse.create_change_set
    create_stack, execute = CloudFormationBackend.create_stack, CloudFormationBackend.execute_change_set
    update_stack = CloudFormationBackend.update_stack

    def create_or_roll_back(backend: Any, *given: Any, **named: Any) -> Any:
        before = set(backend.stacks)
        try:
            return create_stack(backend, *given, **named)
        except Exception as error:
            new = [stack for identifier, stack in backend.stacks.items() if identifier not in before]
            if not new:
                raise  # the template itself is refused
            _roll_back(new[0], error)
            return new[0]

    def update_or_end(backend: Any, name: str, *given: Any, **named: Any) -> Any:
        try:
            return update_stack(backend, name, *given, **named)
        except _UpdateFailedError as error:
            stack = backend.get_stack(name)
            _end(stack, "UPDATE_ROLLBACK_FAILED", error)
            return stack

    def execute_or_roll_back(backend: Any, change_set_name: str, stack_name: str | None = None) -> None:
        found = _change_set(backend, change_set_name, stack_name)
        try:  # with the id, because moto would take another stack's change set of the same name
            execute(backend, found.change_set_id if found else change_set_name, stack_name)
        except Exception as error:
            if found is None or found.stack_id not in backend.stacks:
                raise
            found.execution_status = "EXECUTE_FAILED"
            stack = backend.stacks[found.stack_id]
            if found.change_set_type == "CREATE":
                _roll_back(stack, error)
            else:
                _end(stack, "UPDATE_ROLLBACK_FAILED", error)  # what was changed before the failure stays changed
        else:
            if found is not None:
                _take_over(backend.stacks[found.stack_id], found)

    def create_change_set_even_without_changes(response: Any) -> Any:
        # On AWS such a change set is created, and fails. moto would refuse to create it, and `aws cloudformation deploy
        # --no-fail-on-empty-changeset` would fail.
        response._validate_different_update = lambda *given: None
        return create_change_set(response)

    setattr(CloudFormationResponse, "create_change_set", create_change_set_even_without_changes)  # noqa: B010
    setattr(CloudFormationBackend, "create_stack", create_or_roll_back)  # noqa: B010
    setattr(CloudFormationBackend, "update_stack", update_or_end)  # noqa: B010
    setattr(CloudFormationBackend, "execute_change_set", execute_or_roll_back)  # noqa: B010


def _roll_back(stack: Any, error: Exception) -> None:
    stack._add_stack_event("CREATE_FAILED", resource_status_reason=_words(error))
    try:
        stack.resource_map.delete()
    except Exception as failure:  # a resource that cannot be deleted
        _end(stack, "ROLLBACK_FAILED", failure)
    else:
        _end(stack, "ROLLBACK_COMPLETE", error)
    # moto makes a resource when something asks for it, for example an output. From now on there is nothing to ask for.
    stack.output_map._output_json_map = {}
    stack.resource_map._resource_json_map = {}


def _end(stack: Any, status: str, error: Exception) -> None:
    stack.status = status
    stack._add_stack_event(status, resource_status_reason=_words(error))


def _words(error: Exception) -> str:
    return str(getattr(error, "message", None) or error)


def _change_set(backend: Any, name: str, stack_name: str | None) -> Any:
    sets = backend.change_sets
    newest_first = (each for each in reversed(sets.values()) if each.change_set_name == name)
    of_stack = (each for each in newest_first if stack_name in (None, each.stack_name, each.stack_id))
    return sets.get(name) or next(of_stack, None)


def _take_over(stack: Any, change_set: Any) -> None:
    """Give a stack the template and the outputs of a change set that has been executed."""
    stack.template = change_set.template
    stack.parameters = dict(stack.resource_map.resolved_parameters)  # with defaults, as the next change set has them
    stack._parse_template()
    stack.description = stack.template_dict.get("Description")
    stack.output_map = stack._create_output_map()
