"""examples/sam-split: `thawd up` beside a template whose function fetches its packages and its model at import."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from tests.clients import client_of
from tests.integration.conftest import Project, eventually

pytest.importorskip("moto", reason="needs the extra `aws`")
pytest.importorskip("samtranslator", reason="needs the extra `aws`")

EXAMPLE = Path(__file__).parents[2] / "examples" / "sam-split"
RUNTIME = f"python{sys.version_info[0]}.{sys.version_info[1]}"


def picture(colour: tuple[int, int, int]) -> bytes:
    written = io.BytesIO()
    Image.new("RGB", (16, 16), colour).save(written, "PNG")
    return written.getvalue()


def test_pictures_become_rows_and_the_function_is_thawed_with_what_it_has_fetched(project: Project) -> None:
    shutil.copytree(EXAMPLE, project.root, dirs_exist_ok=True)
    subprocess.run([sys.executable, "make_parts.py", "build"], cwd=project.root, check=True)
    with project.up("--port", "0", "--parameters", f"Runtime={RUNTIME}") as running:
        s3 = running.s3()
        s3.create_bucket(Bucket="parts")
        for part in (project.root / "build").iterdir():
            s3.upload_file(str(part), "parts", part.name)
        [stack] = client_of(running.url, "cloudformation").describe_stacks()["Stacks"]
        outputs = {each["OutputKey"]: each["OutputValue"] for each in stack["Outputs"]}
        dynamodb, name = client_of(running.url, "dynamodb"), outputs["Function"]

        def labels() -> dict[str, str]:
            found = dynamodb.scan(TableName=outputs["Labels"])["Items"]
            return {item["picture"]["S"]: item["label"]["S"] for item in found}

        s3.put_object(Bucket=outputs["Pictures"], Key="a red.png", Body=picture((200, 30, 30)))
        eventually(lambda: labels() == {"a red.png": "red"}, what="the first row")
        eventually(lambda: running.function(name)["start"] == "thaw", what="the snapshot")
        s3.delete_objects(Bucket="parts", Delete={"Objects": [{"Key": "packages.zip"}, {"Key": "model.zip"}]})
        colours = {"green": (50, 170, 60), "blue": (30, 60, 220), "grey": (120, 125, 130)}
        for colour, rgb in colours.items():
            s3.put_object(Bucket=outputs["Pictures"], Key=f"{colour}.png", Body=picture(rgb))
        expected = {"a red.png": "red", **{f"{colour}.png": colour for colour in colours}}
        eventually(lambda: labels() == expected, what="all rows")
        assert running.function(name)["starts"]["thaw"]["count"] >= 1
