"""Installs requirements for a target from wheels, into a plain folder. Nothing is built, so no package's code runs.

uv installs, with the settings that the user has made for pip (`thawd.publishing.uv`). If uv lacks one of these
settings, pip installs. pip evaluates environment markers for its own interpreter, not for the target; so it is used
only if the target is this machine's.

Source: https://docs.astral.sh/uv/reference/cli/#uv-pip-install, https://pip.pypa.io/en/stable/cli/pip_install/.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from thawd.deploy.packages.targets import PackageError, Target
from thawd.errors import EnvironmentBuildError
from thawd.publishing.requirement_files import wants_hashes, why_built, why_pip
from thawd.publishing.uv import find_uv, uv_settings

_UV = (
    *("pip", "install", "--no-config", "--no-python-downloads", "--no-progress", "--color", "never"),
    *("--index-strategy", "unsafe-best-match", "--link-mode", "copy"),
)
_PIP = (
    "-I",
    "-m",
    "pip",
    "--disable-pip-version-check",
    "--no-input",
    "install",
    "--progress-bar",
    "off",
    "--no-compile",
)
_TAIL_LINES = 20
_BUILDING = ("UV_NO_BINARY", "UV_NO_BINARY_PACKAGE")


def install(requirements: Path, target: Target, into: Path, *, lock: int, environ: Mapping[str, str]) -> None:
    """Install the packages of a requirements file. Blocks.

    Args:
        requirements: the requirements file, an absolute path.
        target: the platform and the Python version that wheels are chosen for.
        into: a folder that does not exist yet.
        lock: file descriptor that the installer inherits. So a lock on it is held until the installer has ended, even
            if this process is killed.
        environ: environment variables for uv and pip.

    Raises:
        PackageError: there is no wheel for the target, or the installation failed; the message has the installer's
            last lines. Or the file asks for a package that would be built here.
    """
    try:
        built = why_built(requirements)
    except EnvironmentBuildError as error:
        raise PackageError(error.message) from error
    if built is not None:
        raise PackageError(
            f"{requirements} asks for a package that would be built on this machine: {built}. Packages are installed "
            "from wheels only. Build a wheel (pip wheel --no-deps FOLDER), and name its path instead"
        )
    command, variables = _command(requirements, target, into, environ)
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=requirements.parent,  # relative paths in a requirements file begin at its folder
            env={**environ, **variables},
            pass_fds=(lock,),
            check=False,
        )
    except OSError as error:
        raise PackageError(f"{command[0]} cannot be started: {error.strerror}; reinstall it") from error
    if done.returncode != 0:
        output = done.stdout.decode(errors="replace").splitlines()[-_TAIL_LINES:]
        raise PackageError(_failure(requirements, target, output))
    into.mkdir(exist_ok=True)  # nothing may have been required
    _check(requirements, into)


def _command(
    requirements: Path, target: Target, into: Path, environ: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Return the installer's command line, and variables for it."""
    assert target.python is not None
    version = f"{target.python[0]}.{target.python[1]}"
    uv, settings = find_uv(), uv_settings(environ)
    try:
        reason = "uv is not installed" if uv is None else settings.why_pip or why_pip(requirements)
        hashes = ["--require-hashes"] if wants_hashes(requirements) else []
    except EnvironmentBuildError as error:
        raise PackageError(error.message) from error
    if uv is not None and reason is None:
        command = [str(uv), *_UV, "--python", sys.executable, "--python-version", version]
        # A package that is built here would be built for this machine. --only-binary does not override the setting
        # no-binary for a package that it names.
        kept = [each for each in settings.arguments if not each.startswith("--no-binary=")]
        command += ["--python-platform", target.uv_platform, *kept, *hashes]
        command += ["--only-binary", ":all:", "--target", str(into), "-r", str(requirements)]
        return command, settings.variables
    if target.python != sys.version_info[:2] or not target.is_of_this_machine():
        raise PackageError(
            f"{requirements} must be installed by pip, because {reason}; but pip can choose packages only for Python "
            f"{sys.version_info[0]}.{sys.version_info[1]} on this machine, not for {target}. Remove the cause, so that "
            "uv can install, or make the package for this machine's Python and architecture"
        )
    command = [sys.executable, *_PIP, "--only-binary", ":all:", "--implementation", "cp", "--python-version", version]
    command += [part for platform in target.pip_platforms for part in ("--platform", platform)]
    return [*command, "--target", str(into), "-r", str(requirements)], {}


def _failure(requirements: Path, target: Target, output: list[str]) -> str:
    lines = "\n".join(f"    {line}" for line in output)
    if any(os.strerror(errno.ENOSPC) in line for line in output):
        return f"{requirements} cannot be installed, because the disk is full; free some space on it:\n{lines}"
    newer = "" if target.glibc >= (2, 34) else "package for Python 3.12 or newer (--python), which has glibc 2.34; "
    return (
        f"{requirements} cannot be installed for {target}. The installer's last lines:\n{lines}\n"
        f"Packages are installed from wheels only. Require versions that have wheels for this target; {newer}"
        "or name the path of a wheel of your own in the requirements file"
    )


def _check(requirements: Path, into: Path) -> None:
    """Check that everything was installed from wheels that others can use, too.

    Raises:
        PackageError: a requirement is a link to a folder of this machine, or was built on this machine.
    """
    for folder in sorted(into.glob("*.dist-info")):
        name = folder.name.removesuffix(".dist-info")
        origin = _origin(folder / "direct_url.json")
        if origin.get("dir_info", {}).get("editable"):
            raise PackageError(
                f"{requirements} installs {name} as editable: the package would contain only a link to "
                f"{origin.get('url')}. Remove -e and name a wheel instead (build it with: pip wheel --no-deps FOLDER)"
            )
        tags = [line for line in _text(folder / "WHEEL").splitlines() if line.startswith("Tag:")]
        built_here = [tag for tag in tags if tag.rpartition("-")[2].startswith("linux_")]
        if tags and len(built_here) == len(tags):
            raise PackageError(
                f"the wheel of {name} was built for one machine only ({built_here[0]}), not for Lambda. "
                "Use a wheel with a manylinux tag (the tool auditwheel makes one)"
            )


def _origin(file: Path) -> dict[str, dict[str, object]]:
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def installer_environment() -> dict[str, str]:
    """Return the environment variables for installers: those of this process, without those that make uv build."""
    return {name: value for name, value in os.environ.items() if name not in _BUILDING}
