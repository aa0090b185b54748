"""The bucket for the code of all stacks of an account and region. Each stack has a folder in it."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping

from thawd.deploy.aws import naming
from thawd.deploy.aws.account import AwsSession, explained
from thawd.deploy.aws.assets import Asset
from thawd.deploy.aws.stack import DeploymentError


class ArtifactBucket:
    """The bucket for code. Every request names the account that must own it, so that no other account gets code.

    Args:
        session: the account and region.
    """

    def __init__(self, session: AwsSession) -> None:
        self._session = session
        self.owner = session.account_id()
        self.name = naming.ASSETS_BUCKET.replace("${AWS::AccountId}", self.owner).replace(
            "${AWS::Region}", session.region
        )

    def make(self) -> None:
        """Create the bucket if it is missing.

        Raises:
            DeploymentError: it belongs to another account, or AWS refuses.
        """
        from botocore.exceptions import ClientError

        client, region = self._session.client("s3"), self._session.region
        with explained():
            try:
                client.head_bucket(Bucket=self.name, ExpectedBucketOwner=self.owner)
            except ClientError as error:
                if error.response["ResponseMetadata"]["HTTPStatusCode"] != 404:
                    raise DeploymentError(
                        f"the bucket {self.name} for the code cannot be used, it may belong to another account: {error}"
                    ) from None
                place = {"CreateBucketConfiguration": {"LocationConstraint": region}}
                try:
                    client.create_bucket(Bucket=self.name, **({} if region == "us-east-1" else place))
                except client.exceptions.BucketAlreadyOwnedByYou:
                    pass  # another deployment has made it meanwhile

    def upload(self, archives: Iterable[Asset], *, report: Callable[[str], None]) -> None:
        """Upload the archives that the bucket does not have yet. `report` is called with the key of each of them."""
        self.make()
        for asset in archives:
            with explained():
                if not self._has(asset.key):
                    report(asset.key)
                    with asset.file.open("rb") as body:
                        self._session.client("s3").upload_fileobj(
                            body, self.name, asset.key, ExtraArgs={"ExpectedBucketOwner": self.owner}
                        )

    def put(self, objects: Mapping[str, bytes], *, report: Callable[[str], None] = lambda key: None) -> None:
        """Store the objects, named by their content, that the bucket does not have yet; `report` as in `upload`."""
        if objects:
            self.make()
        for key, content in objects.items():
            with explained():
                if not self._has(key):
                    report(key)
                    self._session.client("s3").upload_fileobj(
                        io.BytesIO(content), self.name, key, ExtraArgs={"ExpectedBucketOwner": self.owner}
                    )

    def put_template(self, stack: str, text: str) -> str:
        """Store a template, and return the URL for CloudFormation."""
        self.make()
        key = f"{stack}/{naming.digest(text, length=64)}.template.json"
        client = self._session.client("s3")
        with explained():
            client.put_object(Bucket=self.name, Key=key, Body=text.encode(), ExpectedBucketOwner=self.owner)
        return self.url(key)

    def url(self, key: str) -> str:
        """Return an object's URL. Its host is that of the client: other partitions have other domains."""
        return f"{self._session.client('s3').meta.endpoint_url}/{self.name}/{key}"

    def remove(self, stack: str) -> None:
        """Remove a stack's archives, and the bucket if no other stack has archives in it."""
        from botocore.exceptions import ClientError

        client, owned = self._session.client("s3"), {"Bucket": self.name, "ExpectedBucketOwner": self.owner}
        with explained():
            try:
                for page in client.get_paginator("list_objects_v2").paginate(Prefix=f"{stack}/", **owned):
                    for entry in page.get("Contents", []):
                        client.delete_object(Key=entry["Key"], **owned)
                client.delete_bucket(**owned)
            except ClientError as error:
                if error.response["Error"]["Code"] not in ("NoSuchBucket", "BucketNotEmpty"):
                    raise

    def _has(self, key: str) -> bool:
        from botocore.exceptions import ClientError

        try:
            self._session.client("s3").head_object(Bucket=self.name, Key=key, ExpectedBucketOwner=self.owner)
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] == 404:
                return False
            raise
        return True
