"""`thawd deploy aws` of container images: they are pushed to the account's registry, and functions run in them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.clients import KEYS
from tests.image_roots import add_image
from tests.integration.conftest import Running
from tests.integration.emulated import AwsAt
from tests.processes.registry_server import RegistryServer, running_registry
from thawd.cli.program import main
from thawd.deploy.aws import image_repository
from thawd.deploy.aws.account import Access, AwsSession
from thawd.deploy.aws.stack import DeploymentError
from thawd.oci import image_lookup
from thawd.oci.credentials import Credentials
from thawd.oci.image_store import Images
from thawd.oci.references import parse
from thawd.snapshot.engine import unavailable

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))

APP = "def handler(event, context): return {'doubled': 2 * event['n']}\n"
REGISTRY = "000000000000.dkr.ecr.us-east-1.amazonaws.com"


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    with running_registry() as server:
        server.demands = "basic"
        yield server


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: RegistryServer) -> Path:
    """A folder with a function whose code is an image. The account's registry is one on this machine."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name.upper(), value)

    def sign_in(session: object) -> tuple[str, Credentials]:
        return registry.host, Credentials("me", "secret")

    monkeypatch.setattr(image_repository, "sign_in", sign_in)
    (tmp_path / "thawd.toml").write_text('[functions.double]\nimage = "double:1"\n')
    add_image(Images(tmp_path / ".thawd" / "images"), "double:1", {"var/task/app.py": APP})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def deploy(emulating: Running, *arguments: str) -> Result:
    target = ["--stack", "shop", "--region", "us-east-1", "--endpoint-url", emulating.url]
    return CliRunner().invoke(main, ["deploy", "aws", *arguments, *target])


def test_an_image_is_pushed_once_runs_and_leaves_with_its_stack(
    emulating: Running, registry: RegistryServer, app: Path
) -> None:
    repositories = AwsAt(emulating.url).client("ecr")
    planned = deploy(emulating, "--plan")
    assert "+ AWS::Lambda::Function DoubleFunction" in planned.output, planned.output
    assert (registry.contents, repositories.describe_repositories()["repositories"]) == ({}, [])

    digest = Images(app / ".thawd" / "images").names()["double:1"]
    # The emulator's registry is that of no machine, so the image is put where the server looks for it.
    other = Images(emulating.project.data / "images")
    with other.adding():
        other.set_name(f"{REGISTRY}/thawd-assets/shop@{digest}", _copied(app, other, registry, emulating))
    first = deploy(emulating, "--yes")
    assert first.exit_code == 0, first.output
    assert f"thawd-assets/shop/manifests/{digest.partition(':')[2]}" in registry.contents
    policy = json.loads(repositories.get_repository_policy(repositoryName="thawd-assets/shop")["policyText"])
    assert policy["Statement"][0]["Condition"] == {"StringEquals": {"aws:SourceAccount": "000000000000"}}
    answer = deploy(emulating, "invoke", "double", "-p", '{"n": 21}')
    assert json.loads(answer.stdout) == {"doubled": 42}, answer.output

    assert "stack shop: nothing to change" in deploy(emulating, "--plan").stdout
    uploads = sum(method == "POST" for method, *_ in registry.seen)
    (app / "thawd.toml").write_text('[functions.double]\nimage = "double:1"\nmemory_mb = 256\n')
    assert deploy(emulating, "--yes").exit_code == 0
    assert sum(method == "POST" for method, *_ in registry.seen) == uploads

    assert deploy(emulating, "destroy", "--yes").exit_code == 0
    assert repositories.describe_repositories()["repositories"] == []


def _copied(app: Path, other: Images, registry: RegistryServer, emulating: Running) -> str:
    """Copy the image into the server's store; returns its digest."""
    images, there = Images(app / ".thawd" / "images"), parse(f"{registry.host}/copied:1")
    image_lookup.push(images, images.names()["double:1"], there, {}, credentials=Credentials("me", "secret"))
    before, registry.demands = registry.demands, ""
    try:
        return image_lookup.pull(other, there, {}, lambda line: None)
    finally:
        registry.demands = before
        registry.contents.clear()


def test_the_token_of_ecr_becomes_credentials_for_the_registry_that_it_names(emulating: Running) -> None:
    session = AwsSession(Access(region="us-east-1"))
    session._clients["ecr"] = AwsAt(emulating.url).client("ecr")
    host, credentials = image_repository.sign_in(session)
    assert (host, credentials.username) == (REGISTRY, "AWS")
    assert credentials.password and credentials.password not in repr(credentials)


def test_an_emulator_without_a_registry_is_refused_and_nothing_is_sent_to_aws(emulating: Running) -> None:
    session = AwsSession(Access(region="us-east-1", endpoint_url=emulating.url))
    session._clients["ecr"] = AwsAt(emulating.url).client("ecr")
    with pytest.raises(DeploymentError, match="emulates AWS, but has no registry"):
        image_repository.sign_in(session)
