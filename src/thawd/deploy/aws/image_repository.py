"""The repository for a stack's container images in the account's registry (ECR): signs in, pushes, removes.

The repository is made before the stack, because Lambda takes an image only from a repository of its own account that
has the image already. An image is named by its digest in the template.

Source: ECR API reference, GetAuthorizationToken; Lambda developer guide, "Create a function using a container image".
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from urllib.parse import urlsplit

from thawd.deploy.aws import naming
from thawd.deploy.aws.account import AwsSession, explained
from thawd.deploy.aws.stack import DeploymentError
from thawd.oci import image_lookup, references
from thawd.oci.credentials import Credentials
from thawd.oci.image_store import Images

_LAMBDA_READS = ["ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"]


def sign_in(session: AwsSession) -> tuple[str, Credentials]:
    """Return the host of the account's registry, and credentials that are valid for twelve hours.

    Raises:
        DeploymentError: AWS cannot be reached or refuses, its answer is not one, or an emulator has no registry.
    """
    with explained():
        [found] = session.client("ecr").get_authorization_token()["authorizationData"]
    try:
        user, _, password = base64.b64decode(found["authorizationToken"], validate=True).decode().partition(":")
    except ValueError:  # the text may be a part of the token
        raise DeploymentError("ECR's answer has no token to sign in with") from None
    host = urlsplit(found["proxyEndpoint"]).netloc
    if session.endpoint_url is not None and host.endswith((".amazonaws.com", ".amazonaws.com.cn")):
        raise DeploymentError(
            f"{session.endpoint_url} emulates AWS, but has no registry: it names {host}. Deploy images to AWS itself"
        )
    return host, Credentials(user, password)


def push(
    session: AwsSession, stack: str, digests: Iterable[str], *, store: Path, report: Callable[[str], None]
) -> None:
    """Push images to the stack's repository, which is made if it is missing. Blobs that it has are not sent again.

    Args:
        session: the account and region.
        stack: name of the stack.
        digests: digests of images in the store.
        store: folder of the store of images.
        report: called with the name of each image.

    Raises:
        DeploymentError: AWS cannot be reached, or refuses.
        ImageError: the store does not have an image.
        RegistryError: the registry refuses or fails.
    """
    wanted = list(dict.fromkeys(digests))
    if not wanted:
        return
    repository = naming.repository_name(stack)
    host, credentials = sign_in(session)
    _make(session, repository)
    images = Images(store)
    for digest in wanted:
        # The tag keeps rules that remove untagged images from removing this one.
        reference = references.parse(f"{host}/{repository}:{digest.partition(':')[2]}")
        report(f"{host}/{repository}@{digest}")
        image_lookup.push(images, digest, reference, os.environ, credentials=credentials)


def _make(session: AwsSession, repository: str) -> None:
    """Make the repository, from which Lambda may read for functions of this account."""
    from botocore.exceptions import ClientError

    client = session.client("ecr")
    with explained():
        try:
            client.create_repository(repositoryName=repository)
        except ClientError as error:
            if error.response["Error"]["Code"] != "RepositoryAlreadyExistsException":
                raise
        statement = {
            "Sid": "LambdaReadsImages",
            "Effect": "Allow",
            "Principal": {"Service": "lambda.amazonaws.com"},
            "Action": _LAMBDA_READS,
            "Condition": {"StringEquals": {"aws:SourceAccount": session.account_id()}},
        }
        policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        client.set_repository_policy(repositoryName=repository, policyText=policy)


def remove(session: AwsSession, stack: str, *, must_exist: bool) -> None:
    """Remove a stack's repository with all images.

    Args:
        session: the account and region.
        stack: name of the stack.
        must_exist: whether the stack has functions with images. If not, a user who may not use ECR needs no right.

    Raises:
        DeploymentError: AWS refuses.
    """
    from botocore.exceptions import ClientError

    with explained():
        try:
            session.client("ecr").delete_repository(repositoryName=naming.repository_name(stack), force=True)
        except ClientError as error:
            code = error.response["Error"]["Code"]
            if code != "RepositoryNotFoundException" and (must_exist or "AccessDenied" not in code):
                raise
