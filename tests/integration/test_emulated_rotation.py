"""`thawd up --aws`: Secrets Manager rotates a secret with a function, written as AWS's templates are."""

from __future__ import annotations

import botocore.exceptions
import pytest

from tests.integration.conftest import Project
from tests.integration.emulated import AwsAt

# Source: AWS Secrets Manager user guide, "Rotation function templates": the four steps and their calls.
CODE = """
import boto3
secrets = boto3.client("secretsmanager")
def handler(event, context):
    secret, token, step = event["SecretId"], event["ClientRequestToken"], event["Step"]
    if step == "createSecret":
        try:
            secrets.get_secret_value(SecretId=secret, VersionId=token, VersionStage="AWSPENDING")
        except secrets.exceptions.ResourceNotFoundException:
            old = secrets.get_secret_value(SecretId=secret, VersionStage="AWSCURRENT")["SecretString"]
            secrets.put_secret_value(
                SecretId=secret, ClientRequestToken=token, SecretString=old + "+", VersionStages=["AWSPENDING"]
            )
    if step == "testSecret" and secret == "wrong":
        raise ValueError("does not work")
"""
FUNCTION = "arn:aws:lambda:us-east-1:000000000000:function:rotate"


def test_a_function_rotates_a_secret_and_one_that_fails_leaves_the_current_value(project: Project) -> None:
    project.code(CODE)
    project.config('[functions.rotate]\nhandler = "app.handler"\n')
    with project.up("--aws") as running:
        secrets = AwsAt(running.url).client("secretsmanager")
        for name in ("right", "wrong"):
            secrets.create_secret(Name=name, SecretString="first")
        secrets.rotate_secret(SecretId="right", RotationLambdaARN=FUNCTION)
        assert secrets.get_secret_value(SecretId="right")["SecretString"] == "first+"
        with pytest.raises(botocore.exceptions.ClientError, match="ValueError: does not work"):
            secrets.rotate_secret(SecretId="wrong", RotationLambdaARN=FUNCTION)
        assert secrets.get_secret_value(SecretId="wrong")["SecretString"] == "first"
        with pytest.raises(secrets.exceptions.ResourceNotFoundException):
            secrets.rotate_secret(SecretId="right", RotationLambdaARN=f"{FUNCTION}-absent")
