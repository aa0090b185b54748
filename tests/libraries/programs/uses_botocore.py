"""boto3: an S3 client and a separate botocore session, with keep-alive connections open at the freeze."""

from __future__ import annotations

from typing import Any

import boto3
import botocore.config
import repeated


class Botocore:
    """A client that has sent requests before the freeze."""

    def __init__(self, options: repeated.Options) -> None:
        self._client = boto3.client(
            "s3",
            endpoint_url=options.address,
            region_name="eu-west-1",
            aws_access_key_id="key",
            aws_secret_access_key="secret",
            config=botocore.config.Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}),
        )

    def answer(self, number: int) -> Any:
        response = self._client.get_object(Bucket="bucket", Key=f"{repeated.name()}/{number}")
        repeated.connections.append(int(response["ResponseMetadata"]["HTTPHeaders"]["x-connection"]))
        body = response["Body"].read().decode()
        assert body == f"/bucket/{repeated.name()}/{number}", body
        return body.rsplit("/", 1)[1]


if __name__ == "__main__":
    repeated.main(Botocore)
