"""Claims about the keys of functions under `--aws`: temporary, of a role of their own, valid for one run of the server.

Source: AWS STS API reference, "GetCallerIdentity".
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.integration.conftest import Project, Running
from tests.ports import quiet_port

SECRET = "not-to-be-logged/+"
CODE = """
import json, os, random, urllib.request
import boto3

clients = {name: boto3.client(name) for name in ("sts", "lambda")}
loaded = random.random()

def handler(event, context):
    if event == "who":
        identity = clients["sts"].get_caller_identity()
        answer = clients["lambda"].invoke(FunctionName="plain", Payload=b"1")
        keys = [os.environ[n] for n in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")]
        return {
            "keys": keys,
            "arn": identity["Arn"],
            "account": identity["Account"],
            "plain": json.loads(answer["Payload"].read()),
            "loaded": loaded,
        }
    return {"endpoint": os.environ["AWS_ENDPOINT_URL"]}
"""


def client(running: Running, keys: list[str], service: str = "lambda") -> Any:
    access_key, secret, token = keys
    return boto3.client(
        service,
        endpoint_url=running.url,
        region_name="us-east-1",
        aws_access_key_id=access_key,
        aws_secret_access_key=secret,
        aws_session_token=token,
        config=Config(retries={"max_attempts": 0}),
    )


def refusal(asking: Any) -> str:
    with pytest.raises(ClientError) as error:
        asking.invoke(FunctionName="plain", Payload=b"1")
    return str(error.value.response["Error"]["Code"])


def who(running: Running) -> dict[str, Any]:
    answer = client(running, ["AKIALOCAL", SECRET, ""]).invoke(FunctionName="f", Payload=b'"who"')
    document = json.loads(answer["Payload"].read())
    assert "FunctionError" not in answer, document
    return dict(document)


def written(project: Project) -> str:
    """The logs of the functions."""
    return "".join(file.read_text() for file in Path(project.root).rglob("logs/**/*") if file.is_file())


def test_functions_have_keys_of_a_role_of_their_own_that_are_valid_while_the_server_runs(project: Project) -> None:
    project.code(CODE)
    port = quiet_port()
    project.config(
        f"""
        access_keys = {{ AKIALOCAL = "{SECRET}" }}
        [functions.f]
        handler = "app.handler"
        [functions.plain]
        handler = "app.handler"
        environment = {{ AWS_ENDPOINT_URL = "http://localhost:4566" }}
        """
    )
    text = (project.root / "thawd.toml").read_text()
    (project.root / "thawd.toml").write_text(text.replace("port = 0", f"port = {port}"))
    with project.up("--aws") as running:
        first = who(running)
        assert first["arn"].startswith("arn:aws:sts::000000000000:assumed-role/")
        assert first["arn"].endswith("/f")
        assert first["account"] == "000000000000"
        assert first["plain"] == {"endpoint": "http://localhost:4566"}, "a function's own endpoint is left alone"
        access_key, secret, token = first["keys"]
        assert access_key.startswith("ASIA")
        assert (len(access_key), len(secret)) == (20, 40)
        assert client(running, first["keys"]).invoke(FunctionName="plain", Payload=b"1")["StatusCode"] == 200
        assert refusal(client(running, [access_key, "wrong", token])) == "InvalidSignatureException"
        assert refusal(client(running, [access_key, secret, "wrong"])) == "UnrecognizedClientException"
        with pytest.raises(ClientError, match="InvalidSignatureException"):
            client(running, [access_key, "wrong", token], "sts").get_caller_identity()
        said = "".join(running.output)
    with project.up("--aws") as running:
        again = who(running)
        assert again["loaded"] == first["loaded"], "the image of the first run is used"
        assert again["arn"] == first["arn"]
        assert again["keys"][0] != access_key
        assert refusal(client(running, first["keys"])) == "UnrecognizedClientException"
        said += "".join(running.output)
    logs = written(project)
    assert "START RequestId" in logs
    for logged in (said, logs):
        assert not any(each in logged for each in (secret, token, *again["keys"][1:]))
