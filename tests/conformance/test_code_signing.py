"""Code signing configurations: their documents and errors, and that code is not taken for verified.

Source: Lambda API reference, the operations with CodeSigningConfig in their names; shapes and words as observed on AWS.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from .conftest import CODE, OTHER_CODE, ROLE, RUNTIME, Lambda

PREFIX = "arn:aws:lambda:us-east-1:000000000000:"
ABSENT = f"{PREFIX}code-signing-config:csc-{'1' * 17}"
PUBLISHERS = {"SigningProfileVersionArns": ["arn:aws:signer:us-east-1:000000000000:/signing-profiles/test"]}


def made(aws: Lambda, policy: str | None = None, **more: Any) -> dict[str, Any]:
    policies = {"CodeSigningPolicies": {"UntrustedArtifactOnDeployment": policy}} if policy else {}
    answer = aws.client.create_code_signing_config(AllowedPublishers=PUBLISHERS, **policies, **more)
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 201
    return dict(answer["CodeSigningConfig"])


def refused(call: Callable[..., Any], **parameters: Any) -> tuple[str, int, str, bool]:
    with pytest.raises(ClientError) as refusal:
        call(**parameters)
    response = refusal.value.response
    error = response["Error"]
    return error["Code"], response["ResponseMetadata"]["HTTPStatusCode"], error["Message"], "Type" in response


def test_a_configuration_is_made_changed_listed_and_deleted(aws: Lambda) -> None:
    config = made(aws, "Enforce", Description="words")
    arn = config["CodeSigningConfigArn"]
    assert re.fullmatch(re.escape(f"{PREFIX}code-signing-config:") + "csc-[a-z0-9]{17}", arn)
    assert config.pop("LastModified")
    assert config == {
        "CodeSigningConfigId": arn.rpartition(":")[2],
        "CodeSigningConfigArn": arn,
        "Description": "words",
        "AllowedPublishers": PUBLISHERS,
        "CodeSigningPolicies": {"UntrustedArtifactOnDeployment": "Enforce"},
    }
    warn = {"UntrustedArtifactOnDeployment": "Warn"}
    changed = aws.client.update_code_signing_config(CodeSigningConfigArn=arn, CodeSigningPolicies=warn)
    assert changed["CodeSigningConfig"]["CodeSigningPolicies"] == warn
    assert changed["CodeSigningConfig"]["Description"] == "words"
    found = aws.client.get_code_signing_config(CodeSigningConfigArn=arn)["CodeSigningConfig"]
    assert found == changed["CodeSigningConfig"]
    assert found in aws.client.list_code_signing_configs()["CodeSigningConfigs"]
    aws.client.delete_code_signing_config(CodeSigningConfigArn=arn)
    said = f"The Lambda code signing configuration {arn} can not be found."
    for call in (aws.client.get_code_signing_config, aws.client.delete_code_signing_config):
        assert refused(call, CodeSigningConfigArn=arn) == ("ResourceNotFoundException", 404, said, False)


def test_without_a_policy_it_warns(aws: Lambda) -> None:
    assert made(aws)["CodeSigningPolicies"] == {"UntrustedArtifactOnDeployment": "Warn"}


def test_a_function_gets_a_configuration_and_loses_it(aws: Lambda) -> None:
    name, arn = aws.create(), made(aws)["CodeSigningConfigArn"]
    empty = aws.client.get_function_code_signing_config(FunctionName=name)
    assert set(empty) == {"ResponseMetadata"}
    aws.client.delete_function_code_signing_config(FunctionName=name)
    put = aws.client.put_function_code_signing_config(FunctionName=name, CodeSigningConfigArn=arn)
    got = aws.client.get_function_code_signing_config(FunctionName=name)
    for answer in (put, got):
        assert (answer["CodeSigningConfigArn"], answer["FunctionName"]) == (arn, name)
    listed = aws.client.list_functions_by_code_signing_config(CodeSigningConfigArn=arn)
    assert listed["FunctionArns"] == [f"{PREFIX}function:{name}"]
    code, status, _, _ = refused(aws.client.delete_code_signing_config, CodeSigningConfigArn=arn)
    assert (code, status) == ("ResourceConflictException", 409)
    aws.client.delete_function_code_signing_config(FunctionName=name)
    assert aws.client.list_functions_by_code_signing_config(CodeSigningConfigArn=arn)["FunctionArns"] == []
    aws.client.delete_code_signing_config(CodeSigningConfigArn=arn)


def test_an_absent_configuration_or_function_is_told_as_on_aws(aws: Lambda) -> None:
    name = aws.create()
    said = "The code signing configuration cannot be found. Check that the provided configuration is not deleted: "
    for called in (name, "absent"):
        found = refused(aws.client.put_function_code_signing_config, FunctionName=called, CodeSigningConfigArn=ABSENT)
        assert found == ("CodeSigningConfigNotFoundException", 404, f"{said}{ABSENT}.", True)
    arn = made(aws)["CodeSigningConfigArn"]
    missing = ("ResourceNotFoundException", 404, f"Function not found: {PREFIX}function:absent", True)
    assert refused(aws.client.get_function_code_signing_config, FunctionName="absent") == missing
    assert refused(aws.client.delete_function_code_signing_config, FunctionName="absent") == missing
    put = aws.client.put_function_code_signing_config
    assert refused(put, FunctionName="absent", CodeSigningConfigArn=arn) == missing


def test_code_that_must_be_signed_is_refused_because_thawd_cannot_verify_it(aws: Lambda) -> None:
    arn = made(aws, "Enforce")["CodeSigningConfigArn"]
    given = {"Runtime": RUNTIME, "Role": ROLE, "Handler": "app.handler", "Code": {"ZipFile": CODE}}
    found = refused(aws.client.create_function, FunctionName=aws.name(), CodeSigningConfigArn=arn, **given)
    assert found[:2] == ("CodeVerificationFailedException", 400)
    assert "thawd cannot verify signatures" in found[2]
    name = aws.create()
    aws.client.put_function_code_signing_config(FunctionName=name, CodeSigningConfigArn=arn)
    assert refused(aws.client.update_function_code, FunctionName=name, ZipFile=OTHER_CODE)[:2] == found[:2]
    aws.client.update_code_signing_config(
        CodeSigningConfigArn=arn, CodeSigningPolicies={"UntrustedArtifactOnDeployment": "Warn"}
    )
    aws.client.update_function_code(FunctionName=name, ZipFile=OTHER_CODE)
    aws.updated(name)
    warned = aws.create(CodeSigningConfigArn=arn)
    assert aws.client.get_function_code_signing_config(FunctionName=warned)["CodeSigningConfigArn"] == arn
