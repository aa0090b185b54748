"""Which of several passwords in a file is sent to a registry of container images."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from thawd.oci.credentials import find


@pytest.mark.parametrize(
    ("registry", "repository", "expected"),
    [
        ("r.example", "team/app", "team"),
        ("r.example", "team/app/model", "app"),
        ("r.example", "team/application", "team"),
        ("r.example", "teams/app", "all"),
        ("r.example", "", "all"),
        ("other.example", "team/app", ""),
        ("docker.io", "library/app", "hub"),
        ("docker.io", "mine/app", "mine"),
        ("old.example", "app", "old"),
    ],
)
def test_the_password_for_the_smallest_part_of_a_registry_is_used(
    tmp_path: Path, registry: str, repository: str, expected: str
) -> None:
    keys = {
        "r.example/other": "other",
        "r.example": "all",
        "r.example/team": "team",
        "r.example/team/app/model": "app",
        "https://index.docker.io/v1/": "hub",
        "docker.io/mine": "mine",
        "old.example/v1/": "old",
    }
    auths = {key: {"auth": base64.b64encode(f"{name}:secret".encode()).decode()} for key, name in keys.items()}
    (tmp_path / "auth.json").write_text(json.dumps({"auths": auths}))
    found, _ = find(registry, {"REGISTRY_AUTH_FILE": str(tmp_path / "auth.json")}, repository)
    assert (found.username if found else "") == expected
