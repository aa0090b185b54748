"""An account and region of AWS: its clients, credentials and signatures. The only module here that imports boto3."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from thawd.deploy.aws.stack import DeploymentError

_LONGEST_INVOCATION_S = 910


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """Region, credentials and endpoint of AWS. A field that is None gets its value from AWS's own settings.

    Attributes:
        region: region.
        profile: profile of the credentials.
        endpoint_url: URL of all services, for example of an emulator.
    """

    region: str | None = None
    profile: str | None = None
    endpoint_url: str | None = None


class AwsSession:
    """Clients of an account and region of AWS.

    All methods raise `DeploymentError` if AWS cannot be reached or refuses a request; the message has AWS's reason.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self.endpoint_url = access.endpoint_url
        self._clients: dict[str, Any] = {}
        with explained():
            import boto3

            self._session = boto3.Session(profile_name=access.profile, region_name=access.region)
        if self._session.region_name is None:
            raise DeploymentError("no AWS region is set; give --region, or set region in [deploy.aws]")
        self.region: str = self._session.region_name

    def client(self, service: str) -> Any:
        """Return the client of a service."""
        if service not in self._clients:
            from botocore.config import Config

            config = Config(retries={"mode": "standard", "total_max_attempts": 5})
            if service == "lambda":  # an invocation takes up to 15 minutes, and must not be repeated
                config = config.merge(Config(read_timeout=_LONGEST_INVOCATION_S, retries={"total_max_attempts": 1}))
            if self._access.endpoint_url is not None:
                config = config.merge(Config(s3={"addressing_style": "path"}))
            with explained():
                self._clients[service] = self._session.client(
                    service, endpoint_url=self._access.endpoint_url, config=config
                )
        return self._clients[service]

    def signing_headers(self, service: str, url: str, body: bytes, headers: Mapping[str, str]) -> dict[str, str]:
        """Return the headers that sign a POST request (Signature Version 4).

        Args:
            service: the service's name in signatures, such as ``lambda``.
            url: URL of the request.
            body: body of the request.
            headers: the other headers of the request.
        """
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest

        with explained():
            credentials = self._session.get_credentials()
        if credentials is None:
            raise DeploymentError("there are no AWS credentials; see `aws configure`")
        request = AWSRequest("POST", url, headers=dict(headers), data=body)
        SigV4Auth(credentials.get_frozen_credentials(), service, self.region).add_auth(request)
        return {name: value for name, value in request.headers.items() if name not in headers}

    @property
    def dns_suffix(self) -> str:
        """The domain of AWS's services in the region's partition."""
        is_china = self._session.get_partition_for_region(self.region) == "aws-cn"
        return "amazonaws.com.cn" if is_china else "amazonaws.com"

    def close(self) -> None:
        """Close all connections."""
        while self._clients:
            self._clients.popitem()[1].close()

    def account_id(self) -> str:
        """Return the account's id."""
        with explained():
            return str(self.client("sts").get_caller_identity()["Account"])


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Inside the ``with`` block, exceptions of boto3 become `DeploymentError`."""
    try:
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError
    except ImportError:
        raise DeploymentError("deployments to AWS need boto3: pip install 'thawd[aws]'") from None
    try:
        yield
    except NoCredentialsError:
        raise DeploymentError("there are no AWS credentials; run aws configure, or give --profile") from None
    except (Boto3Error, BotoCoreError, ClientError) as error:
        raise DeploymentError(f"AWS: {error}") from error
