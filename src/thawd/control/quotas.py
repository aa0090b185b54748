"""The quotas of the Lambda API: AWS's, or only what this machine can hold (``server.limits``). No side effects.

Source: AWS Lambda developer guide, "Lambda quotas", "SnapStart: Supported features and limitations".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from thawd.resources import MAX_ENVIRONMENT_BYTES
from thawd.stores.uploaded_code import MAX_UNZIPPED_BYTES, MAX_ZIP_BYTES

_MOST_LAYERS = 5
_SNAP_START_TMP_MB = 512


@dataclass(frozen=True, slots=True)
class Quotas:
    """Sizes and combinations of settings that the Lambda API accepts.

    Attributes:
        zip_bytes: largest zip file in a request; None: as large as the request may be.
        environment_bytes: most bytes of a function's environment variables, as JSON text.
        layers: most layers of a function; None: any number.
        unzipped_bytes: returns the most bytes of a function's unpacked code and layers.
        snap_start_tmp_mb: largest ``/tmp`` of a function with SnapStart, MB; None: any.
        has_networks: whether subnets and security groups must exist.
        is_aws: whether the quotas are AWS's, so that what AWS does not combine with SnapStart is refused.
    """

    zip_bytes: int | None
    environment_bytes: int
    layers: int | None
    unzipped_bytes: Callable[[], int]
    snap_start_tmp_mb: int | None
    has_networks: bool
    is_aws: bool


def aws_quotas() -> Quotas:
    """The quotas of AWS Lambda."""
    return Quotas(
        zip_bytes=MAX_ZIP_BYTES,
        environment_bytes=MAX_ENVIRONMENT_BYTES,
        layers=_MOST_LAYERS,
        unzipped_bytes=lambda: MAX_UNZIPPED_BYTES,
        snap_start_tmp_mb=_SNAP_START_TMP_MB,
        has_networks=True,
        is_aws=True,
    )


def machine_quotas(free_bytes: Callable[[], int]) -> Quotas:
    """What this machine can hold.

    Args:
        free_bytes: returns the free space of the disk with the data folder. A package may take half of it.
    """
    return Quotas(
        zip_bytes=None,
        environment_bytes=_MOST_VARIABLES_BYTES,
        layers=None,
        unzipped_bytes=lambda: max(MAX_UNZIPPED_BYTES, free_bytes() // 2),
        snap_start_tmp_mb=None,
        has_networks=False,
        is_aws=False,
    )


# A process gets its variables and arguments in at most a quarter of its largest stack, which is 8 MiB by default, and
# each variable in at most 128 KiB (execve(2)). This leaves room for Lambda's own variables.
_MOST_VARIABLES_BYTES = 1 << 20
MOST_VARIABLE_BYTES = 131_071
"""Most bytes of one environment variable, with its name and the equals sign."""
