"""examples/cdk-captions: `thawd up` beside what CDK makes of the app; its image is built and its function thawed."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from tests import deployment_clients
from tests.clients import client_of
from tests.integration.conftest import Project, eventually

pytest.importorskip("moto", reason="needs the extra `aws`")

EXAMPLE = Path(__file__).parents[2] / "examples" / "cdk-captions"


def picture(colour: tuple[int, int, int]) -> bytes:
    written = io.BytesIO()
    Image.new("RGB", (16, 8), colour).save(written, "PNG")
    return written.getvalue()


def test_pictures_become_captions_in_an_image_that_is_built_and_thawed(project: Project) -> None:
    shutil.copytree(EXAMPLE, project.root, dirs_exist_ok=True)
    dockerfile = project.root / "captions" / "Dockerfile"
    here = f"python:{sys.version_info[0]}.{sys.version_info[1]}"
    # Compiling all modules of the packages takes longer than the few that the function imports once.
    text = dockerfile.read_text().replace("python:3.11", here).replace("pip install", "pip install --no-compile")
    dockerfile.write_text(text)
    # boto3 is in the base image already.
    requirements = dockerfile.with_name("requirements.txt")
    requirements.write_text(requirements.read_text().replace("boto3\n", ""))
    synthesised = subprocess.run(
        [deployment_clients.cdk_python(), "app.py"],
        cwd=project.root,
        env={**os.environ, "CDK_OUTDIR": "cdk.out"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert synthesised.returncode == 0, synthesised.stderr
    with project.up("--port", "0") as running:
        stacks = client_of(running.url, "cloudformation").describe_stacks()["Stacks"]
        [outputs] = [stack["Outputs"] for stack in stacks if stack["StackName"] == "Captions"]
        values = {each["OutputKey"]: each["OutputValue"] for each in outputs}
        functions, dynamodb = running.client(), client_of(running.url, "dynamodb")
        given = {"FunctionName": values["Function"], "Qualifier": "live"}
        eventually(
            lambda: functions.get_provisioned_concurrency_config(**given)["Status"] == "READY",
            what="the provisioned environments",
        )
        colours = {"a red.png": (200, 20, 20), "b.png": (30, 60, 220), "c.png": (250, 250, 250)}
        for key, colour in colours.items():
            running.s3().put_object(Bucket=values["Bucket"], Key=key, Body=picture(colour))

        def captions() -> dict[str, str]:
            found = dynamodb.scan(TableName=values["Table"])["Items"]
            return {item["picture"]["S"]: item["caption"]["S"] for item in found}

        expected = {
            "a red.png": "a dark red picture of 16 by 8 pixels",
            "b.png": "a blue picture of 16 by 8 pixels",
            "c.png": "a bright grey picture of 16 by 8 pixels",
        }
        eventually(lambda: captions() == expected, what="a caption for each picture")
        shown = functions.get_function(**given)["Configuration"]
        assert shown["PackageType"] == "Image"
        assert running.function(values["Function"])["start"] == "thaw", running.function(values["Function"])
