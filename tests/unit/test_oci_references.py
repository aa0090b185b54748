"""Names of images: what they are completed with, and what is no name."""

from __future__ import annotations

import pytest

from thawd.errors import ImageError
from thawd.oci.references import parse

DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("text", "registry", "repository", "tag", "digest"),
    [
        ("app", "", "app", "latest", None),
        ("team/app:1.0", "", "team/app", "1.0", None),
        ("docker.io/python:3.12-slim", "docker.io", "library/python", "3.12-slim", None),
        ("index.docker.io/me/app", "docker.io", "me/app", "latest", None),
        ("localhost:5000/app", "localhost:5000", "app", "latest", None),
        ("localhost/app", "localhost", "app", "latest", None),
        ("[::1]:5000/app:2", "[::1]:5000", "app", "2", None),
        ("Registry.Example/a/b_c--d:V_1", "registry.example", "a/b_c--d", "V_1", None),
        ("public.ecr.aws/lambda/python:3.12", "public.ecr.aws", "lambda/python", "3.12", None),
        (f"r.example/app@{DIGEST}", "r.example", "app", None, DIGEST),
        (f"r.example/app:1@{DIGEST}", "r.example", "app", "1", DIGEST),
    ],
)
def test_a_name_has_these_parts(text: str, registry: str, repository: str, tag: str | None, digest: str | None) -> None:
    found = parse(text)
    assert (found.registry, found.repository, found.tag, found.digest) == (registry, repository, tag, digest)
    assert parse(str(found)) == found


@pytest.mark.parametrize(
    "text",
    ["", ":", "App", "a//b", "a/", "/a", "a:", "a:b:c", "a@", "a b", "a:-x", "../x", "-a", "a\n", "r.example/",
     "r.example:port/a", "a@sha512:00", f"a@{DIGEST}0", "a" * 256, "a:" + "t" * 129, "http://r.example/a"],
)  # fmt: skip
def test_what_is_no_name_is_refused_in_words(text: str) -> None:
    with pytest.raises(ImageError, match="is not"):
        parse(text)
