"""Which names in FROM mean Lambda's base images for Python, and of which version."""

from __future__ import annotations

import pytest

from thawd.deploy.images.lambda_base import version_of
from thawd.errors import ImageError
from thawd.oci.documents import machine_architecture

OWN, OTHER = {"amd64": ("x86_64", "arm64"), "arm64": ("arm64", "x86_64")}[machine_architecture()]


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("public.ecr.aws/lambda/python:3.12", "3.12"),
        (f"public.ecr.aws/lambda/python:3.9-{OWN}", "3.9"),
        ("public.ecr.aws/lambda/python:3.11.2024.05.01", "3.11"),
        ("amazon/aws-lambda-python:3.13", "3.13"),
        ("docker.io/amazon/aws-lambda-python:3.13", "3.13"),
        ("public.ecr.aws/lambda/python:latest", None),
        ("public.ecr.aws/lambda/nodejs:20", None),
        ("python:3.12", None),
        ("evil.example/public.ecr.aws/lambda/python:3.12", None),
    ],
)
def test_a_name_means_a_version(name: str, version: str | None) -> None:
    assert version_of(name) == version


def test_the_image_for_the_other_architecture_is_refused() -> None:
    with pytest.raises(ImageError, match="another architecture"):
        version_of(f"public.ecr.aws/lambda/python:3.12-{OTHER}")
