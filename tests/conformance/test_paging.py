"""Lists in pages: every item once and in order, whatever the size of the pages; markers of each list.

Source: AWS Lambda API reference, `MaxItems`, `Marker` and `NextMarker` of the operations whose names begin with List;
botocore's paginators.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from .conftest import CODE, Lambda
from .wire import Wire, operation

ARN = "arn:aws:lambda:us-east-1:000000000000:"
NAME = "paged"
SIGNER = "arn:aws:signer:us-east-1:000000000000:/signing-profiles/paged/0123456789"
NAMED = {"FunctionName": NAME}
# For each list, its parameters, the member with the items, and what identifies an item.
LISTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "ListFunctions": ({}, "Functions", "FunctionArn"),
    "ListVersionsByFunction": (NAMED, "Versions", "Version"),
    "ListAliases": (NAMED, "Aliases", "Name"),
    "ListFunctionEventInvokeConfigs": (NAMED, "FunctionEventInvokeConfigs", "FunctionArn"),
    "ListFunctionUrlConfigs": (NAMED, "FunctionUrlConfigs", "FunctionArn"),
    "ListProvisionedConcurrencyConfigs": (NAMED, "ProvisionedConcurrencyConfigs", "FunctionArn"),
    "ListLayers": ({}, "Layers", "LayerName"),
    "ListLayerVersions": ({"LayerName": NAME}, "LayerVersions", "Version"),
    "ListEventSourceMappings": (NAMED, "EventSourceMappings", "UUID"),
    "ListCodeSigningConfigs": ({}, "CodeSigningConfigs", "CodeSigningConfigId"),
    "ListFunctionsByCodeSigningConfig": ({"CodeSigningConfigArn": "{csc}"}, "FunctionArns", ""),
}
EXPECTED: dict[str, list[Any]] = {
    "ListVersionsByFunction": ["$LATEST", "1", "2", "3"],
    "ListAliases": ["a", "b", "c"],
    "ListFunctionEventInvokeConfigs": [f"{ARN}function:{NAME}:{one}" for one in ("$LATEST", "1", "a")],
    "ListFunctionUrlConfigs": [f"{ARN}function:{NAME}{one}" for one in ("", ":a", ":b")],
    "ListLayerVersions": [3, 2, 1],
}


@pytest.fixture(scope="module")
def wire(aws: Lambda) -> Iterator[Wire]:
    """A connection to a server with at least three items of everything."""
    client = aws.client
    aws.create(NAME)
    for text in ("a", "b", "c"):
        aws.update(NAME, Description=text)
        number = aws.publish(NAME)
        client.create_alias(FunctionName=NAME, Name=text, FunctionVersion=number)
        client.publish_layer_version(LayerName=NAME, Content={"ZipFile": CODE})
        client.publish_layer_version(LayerName=f"{NAME}-{text}", Content={"ZipFile": CODE})
        queue = f"arn:aws:sqs:us-east-1:000000000000:paged-{text}"
        client.create_event_source_mapping(FunctionName=NAME, EventSourceArn=queue, Enabled=False)
        client.create_code_signing_config(AllowedPublishers={"SigningProfileVersionArns": [SIGNER]})
    for qualifier in ("$LATEST", "1", "a"):
        client.put_function_event_invoke_config(FunctionName=NAME, Qualifier=qualifier, MaximumRetryAttempts=0)
    client.create_function_url_config(FunctionName=NAME, AuthType="NONE")
    for qualifier in ("a", "b"):
        client.create_function_url_config(FunctionName=NAME, AuthType="NONE", Qualifier=qualifier)
        client.put_provisioned_concurrency_config(
            FunctionName=NAME, Qualifier=qualifier, ProvisionedConcurrentExecutions=1
        )
    csc = client.list_code_signing_configs()["CodeSigningConfigs"][0]["CodeSigningConfigArn"]
    for name in (NAME, "paged-2", "paged-3"):
        if name != NAME:
            aws.create(name)
        client.put_function_code_signing_config(FunctionName=name, CodeSigningConfigArn=csc)
    LISTS["ListFunctionsByCodeSigningConfig"][0]["CodeSigningConfigArn"] = csc
    connection = Wire(aws.running.url)
    yield connection
    connection.close()
    for name in (NAME, "paged-2", "paged-3"):
        client.delete_function(FunctionName=name)


def items(wire: Wire, name: str, **given: Any) -> tuple[list[Any], str | None]:
    """Return what identifies the items on one page, and the marker of the next page."""
    parameters, member, identifier = LISTS[name]
    answer = wire.call(name, {**parameters, **given})
    assert answer.status == 200, answer.body
    found = answer.document
    return [one[identifier] if identifier else one for one in found[member]], found.get("NextMarker")


def everything(wire: Wire, name: str, size: int) -> list[list[Any]]:
    """Return all pages of a list."""
    pages, marker = [], None
    while True:
        page, marker = items(wire, name, MaxItems=size, **({} if marker is None else {"Marker": marker}))
        pages.append(page)
        assert marker != "", "an empty marker would end the list for every client"
        if marker is None:
            return pages


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("name", LISTS)
def test_pages_of_any_size_have_every_item_once(wire: Wire, name: str, size: int) -> None:
    pages = everything(wire, name, size)
    found = [item for page in pages for item in page]
    whole, marker = items(wire, name)
    assert marker is None
    assert found == whole
    assert len(set(found)) == len(found) >= 2
    assert all(len(page) <= size for page in pages)
    assert found == EXPECTED.get(name, found)


@pytest.mark.parametrize("name", LISTS)
def test_the_last_page_has_no_marker(wire: Wire, name: str) -> None:
    whole, _ = items(wire, name)
    assert items(wire, name, MaxItems=len(whole))[1] is None
    assert items(wire, name, MaxItems=len(whole) - 1)[1] is not None


@pytest.mark.parametrize("name", LISTS)
def test_a_marker_that_was_never_given_is_refused(wire: Wire, name: str) -> None:
    answer = wire.call(name, {**LISTS[name][0], "Marker": "never given"})
    assert (answer.status, answer.code) == (400, "InvalidParameterValueException")


@pytest.mark.parametrize("name", LISTS)
def test_a_page_of_no_items_is_refused(wire: Wire, name: str) -> None:
    answer = wire.call(name, {**LISTS[name][0], "MaxItems": 0})
    assert (answer.status, answer.code) == (400, "ValidationException")
    assert answer.message == (
        "1 validation error detected: Value '0' at 'maxItems' failed to satisfy constraint: Member must have value "
        "greater than or equal to 1"
    )


@pytest.mark.parametrize("name", LISTS)
def test_the_output_has_only_members_of_the_model(wire: Wire, name: str) -> None:
    model = operation(name).output_shape
    answer = wire.call(name, {**LISTS[name][0], "MaxItems": 1}).document
    assert set(answer) == set(model.members), "the first page has items and a marker"
    member = model.members[LISTS[name][1]].member
    if member.type_name == "structure":
        assert set(answer[LISTS[name][1]][0]) <= set(member.members)
