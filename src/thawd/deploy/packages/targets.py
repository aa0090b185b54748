"""Targets: the Lambda runtimes that packages are made for, with Lambda's limits on packages.

Source: developer guide, "Lambda runtimes" and "Lambda quotas".
"""

from __future__ import annotations

import platform
import sys

import msgspec

from thawd.errors import ThawdError
from thawd.resources import PYTHON_RUNTIMES
from thawd.stores.uploaded_code import MAX_UNZIPPED_BYTES, MAX_ZIP_BYTES

ARCHITECTURES = ("x86_64", "arm64")
"""Lambda's names of processor architectures."""

_MACHINES = {"x86_64": "x86_64", "arm64": "aarch64"}
# Runtimes up to Python 3.11 are on Amazon Linux 2, later ones on Amazon Linux 2023. The versions of glibc are of these.
_FIRST_ON_AMAZON_LINUX_2023 = (3, 12)
_GLIBC = {"Amazon Linux 2": (2, 26), "Amazon Linux 2023": (2, 34)}
# uv has no name for platforms with glibc 2.26; this is the newest of its platforms that is not newer.
_UV_PLATFORMS = {(2, 26): "manylinux2014", (2, 34): "manylinux_2_34"}
_LEGACY_PLATFORMS = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
_OLDEST_MANYLINUX = 5


class PackageError(ThawdError):
    """A package cannot be made; the message says why and what to do."""

    type = "InvalidParameterValueException"
    status = 400
    retryable = False


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of Lambda on a function's code.

    Attributes:
        unpacked_bytes: the files of a function and its layers together must be smaller than this.
        direct_bytes: the largest zip file that a request may contain; a larger one must be uploaded to S3 first.
        layers: most layers of a function.
        image_bytes: the files of a container image together.
    """

    unpacked_bytes: int = MAX_UNZIPPED_BYTES
    direct_bytes: int = MAX_ZIP_BYTES
    layers: int = 5
    image_bytes: int = 10 * 1024**3


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The Lambda runtime for which a package is made.

    Attributes:
        python: major and minor version; None: a program of another kind runs the function.
        architecture: one of `ARCHITECTURES`.
    """

    python: tuple[int, int] | None
    architecture: str = "x86_64"

    @property
    def runtime(self) -> str:
        """Lambda's identifier of the Python runtime, such as ``python3.13``."""
        assert self.python is not None
        return f"python{self.python[0]}.{self.python[1]}"

    @property
    def machine(self) -> str:
        """Name of the architecture in wheels' tags and in ``uname``."""
        return _MACHINES[self.architecture]

    @property
    def system(self) -> str:
        """The operating system of the runtime."""
        python = self.python or _FIRST_ON_AMAZON_LINUX_2023
        return "Amazon Linux 2023" if python >= _FIRST_ON_AMAZON_LINUX_2023 else "Amazon Linux 2"

    @property
    def glibc(self) -> tuple[int, int]:
        """Version of glibc in the runtime."""
        return _GLIBC[self.system]

    @property
    def uv_platform(self) -> str:
        """The platform as ``uv --python-platform`` takes it."""
        return f"{self.machine}-{_UV_PLATFORMS[self.glibc]}"

    @property
    def pip_platforms(self) -> list[str]:
        """The platforms as ``pip --platform`` takes them, those for the newest glibc first."""
        tags = []
        for minor in range(self.glibc[1], _OLDEST_MANYLINUX - 1, -1):
            tags.append(f"manylinux_2_{minor}_{self.machine}")
            if minor in _LEGACY_PLATFORMS:
                tags.append(f"{_LEGACY_PLATFORMS[minor]}_{self.machine}")
        return tags

    def is_of_this_machine(self) -> bool:
        """Return whether programs for the target's architecture run on this machine."""
        return sys.platform == "linux" and platform.machine() == self.machine

    def __str__(self) -> str:
        what = "a program of its own" if self.python is None else f"Python {self.python[0]}.{self.python[1]}"
        return f"{what} on {self.architecture} ({self.system}, glibc {self.glibc[0]}.{self.glibc[1]})"


def python_version(text: str) -> tuple[int, int]:
    """Return the version in a text such as ``3.13`` or ``python3.13``.

    Raises:
        PackageError: Lambda has no such Python runtime.
    """
    name = text if text.startswith("python") else f"python{text}"
    name = ".".join(name.split(".")[:2])  # the last part of 3.13.2 selects no runtime
    if name not in PYTHON_RUNTIMES:
        known = ", ".join(runtime.removeprefix("python") for runtime in PYTHON_RUNTIMES)
        raise PackageError(f"{text!r} is no Python version of Lambda; it has {known}")
    major, minor = name.removeprefix("python").split(".")
    return int(major), int(minor)
