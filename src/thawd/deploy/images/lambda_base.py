"""A base image with the paths of AWS's images for Python, made from an interpreter of this machine.

A Dockerfile for Lambda begins with ``FROM public.ecr.aws/lambda/python:3.12``. AWS's own image contains Amazon Linux
and has to be downloaded. If the store does not have it, thawd makes an image with the same layout: the interpreter in
/var/lang, awslambdaric and boto3 in /var/runtime, /lambda-entrypoint.sh, the variables of AWS's image, and the usual
commands of this machine. It has no package manager: ``RUN dnf install`` needs the image of AWS.

The packages of the runtime are installed from the package index in pip's configuration.

Source: https://docs.aws.amazon.com/lambda/latest/dg/python-image.html;
https://github.com/aws/aws-lambda-python-runtime-interface-client
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from thawd.deploy.images.host_files import PROGRAMS, HostFiles
from thawd.deploy.images.installed_packages import add_package, packages
from thawd.deploy.images.stage_state import StageState, store
from thawd.deploy.images.step_records import StepRecords
from thawd.errors import ImageError
from thawd.oci import documents
from thawd.oci.documents import ProcessConfig
from thawd.oci.image_store import Images
from thawd.oci.layer_writing import NewEntry, add_parents
from thawd.publishing.interpreters import Interpreter, prepare_environment
from thawd.publishing.uv import find_uv
from thawd.system import folders

_RECIPE = 4  # increase it when a change of this module gives another image for the same inputs
_NAMES = re.compile(
    r"(?:public\.ecr\.aws/lambda/python|(?:docker\.io/)?amazon/aws-lambda-python):(3\.\d+)(?:[.-]([A-Za-z0-9_.-]+))?"
)
_PACKAGES = ("awslambdaric", "boto3", "pip")
_TOOLS = (
    *("sh", "bash", "ls", "cat", "cp", "mv", "rm", "mkdir", "rmdir", "ln", "chmod", "chown", "touch", "echo", "printf"),
    *("env", "pwd", "head", "tail", "sort", "uniq", "wc", "cut", "tr", "dirname", "basename", "readlink", "realpath"),
    *("mktemp", "date", "uname", "id", "test", "true", "false", "sleep", "sed", "grep", "find", "xargs", "tar", "gzip"),
    *("gunzip", "unzip", "which", "tee", "sha256sum", "du", "df", "stat", "install"),
)
# Libraries that wheels may expect of any system (PEP 600 and the manylinux policies), without those of a desktop; and
# what the C library loads by name.
_LIBRARIES = (
    *("libc.so.6", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0", "libutil.so.1", "libresolv.so.2"),
    *(
        "libnsl.so.1",
        "libcrypt.so.1",
        "libcrypt.so.2",
        "libgcc_s.so.1",
        "libstdc++.so.6",
        "libatomic.so.1",
        "libz.so.1",
    ),
    *("libexpat.so.1", "libnss_files.so.2", "libnss_dns.so.2", "libanl.so.1", "libmvec.so.1"),
)
_NOT_STDLIB = frozenset(
    {"__pycache__", "test", "tests", "idlelib", "turtledemo", "tkinter", "ensurepip", "lib2to3", "site-packages",
     "dist-packages", "EXTERNALLY-MANAGED", "lib.tap"}
)  # fmt: skip
_LIBRARY_FOLDERS = (
    *("/var/lang/lib", "/lib64", "/usr/lib64", "/var/runtime", "/var/runtime/lib"),
    *("/var/task", "/var/task/lib", "/opt/lib"),
)
_CERTIFICATES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem")
_QUESTION = (
    "import json, ssl, sys, sysconfig\n"
    "print(json.dumps([sys.base_prefix, sysconfig.get_path('stdlib'), sysconfig.get_path('platstdlib'),"
    "sysconfig.get_path('purelib'), getattr(sys, '_base_executable', sys.executable),"
    "ssl.get_default_verify_paths().openssl_cafile]))"
)
_ENTRYPOINT = """#!/bin/sh
if [ $# -ne 1 ]; then
  echo "the image's CMD must be the handler, such as app.handler" >&2
  exit 142
fi
if [ -z "$AWS_LAMBDA_RUNTIME_API" ]; then
  echo "AWS_LAMBDA_RUNTIME_API is not set: run the image with thawd, on Lambda, or below an emulator of it" >&2
  exit 142
fi
export _HANDLER="$1"
exec /var/runtime/bootstrap
"""
_BOOTSTRAP = """#!/bin/sh
export AWS_EXECUTION_ENV=AWS_Lambda_python{version}
exec /var/lang/bin/python{version} /var/runtime/bootstrap.py
"""
_BOOTSTRAP_PY = """import os
import sys

for path in (f"/opt/python/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages", "/opt/python"):
    sys.path.insert(0, path)
sys.path.insert(0, os.environ.get("LAMBDA_TASK_ROOT", "/var/task"))

from awslambdaric.__main__ import main

main([sys.argv[0], os.environ["_HANDLER"]])
"""
_PIP = """#!/var/lang/bin/python{version}
import sys

from pip._internal.cli.main import main

sys.exit(main())
"""
_PASSWD = """root:x:0:0:root:/root:/bin/sh
nobody:x:65534:65534:nobody:/:/bin/false
sbx_user1051:x:993:990::/home/sbx_user1051:/bin/false
"""
_GROUP = "root:x:0:\nnogroup:x:65534:\n"


@dataclass(frozen=True, slots=True)
class _Layout:
    """The paths of an interpreter's parts on this machine."""

    prefix: Path
    stdlib: Path
    platform_stdlib: Path
    packages: Path
    program: Path
    certificates: Path


def version_of(name: str) -> str | None:
    """Return the Python version, such as ``3.12``, in the name of an AWS base image; None: it is another image.

    Raises:
        ImageError: it is the image for another architecture (HTTP 400).
    """
    found = _NAMES.fullmatch(name)
    if found is None:
        return None
    other = {"arm64": "amd64", "x86_64": "arm64"}.get(found[2] or "")
    if other == documents.machine_architecture():
        raise ImageError(f"{name} is for another architecture than this machine's, linux/{other}")
    return found[1]


def make(
    images: Images,
    interpreter: Interpreter,
    *,
    environments: Path,
    environ: Mapping[str, str],
    on_line: Callable[[str], None],
    requirements: Sequence[str] = _PACKAGES,
) -> str:
    """Return the digest of a base image for an interpreter, which is made if the store does not have it. Blocks.

    Args:
        images: the store.
        interpreter: the interpreter. If it belongs to a virtual environment, the interpreter from which the environment
            was made is used.
        environments: folder for virtual environments, where the packages of the runtime are installed first.
        environ: environment variables for pip and uv.
        on_line: called with each line of progress.
        requirements: packages of the runtime.

    Raises:
        EnvironmentBuildError: the packages cannot be installed.
        OSError: the disk failed or is full.
    """
    layout = _layout(interpreter.path)
    interpreter = Interpreter(layout.program, interpreter.version)
    version = ".".join(map(str, interpreter.version[:2]))
    on_line(f"making public.ecr.aws/lambda/python:{version} from {interpreter}")
    file = images.folder / "runtime-requirements" / f"{'-'.join(requirements)[:100]}.txt"
    folders.make(file.parent, mode=0o700)
    with folders.replacing(file) as written:
        written.write("".join(f"{each}\n" for each in requirements).encode())
    installed = asyncio.run(
        prepare_environment(file, interpreter, environments.resolve(), on_line=on_line, environ=environ, uv=find_uv())
    )
    records = StepRecords(images, use_cache=True, on_line=on_line)
    state = StageState(key="lambda base")
    with images.adding():
        tools = [shutil.which(name, path=PROGRAMS) for name in _TOOLS]
        key = state.step(_RECIPE, interpreter, installed, version, tools)
        state.add(
            # After an update of this machine's libraries, the image would keep the earlier ones.
            records.layer(
                key,
                lambda: _with_folders(_system(layout, version) | _runtime(installed, layout, version)),
                of_machine=True,
            ),
            f"Python {version} and awslambdaric, in the paths of Lambda",
        )
        state.env |= _environment()
        state.config = ProcessConfig(entrypoint=["/lambda-entrypoint.sh"], working_dir="/var/task")
        return store(images, state, architecture=documents.machine_architecture())


def _layout(python: Path) -> _Layout:
    """Ask an interpreter for its layout. For a virtual environment, ask the interpreter from which it was made."""
    for _ in range(2):
        done = subprocess.run(
            [python, "-I", "-c", _QUESTION], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=True
        )
        layout = _Layout(*map(Path, json.loads(done.stdout)))
        python = layout.program
    return layout


def _system(layout: _Layout, version: str) -> dict[str, NewEntry]:
    """Return the interpreter, the commands, and the folders of Lambda."""
    host = HostFiles()
    for link in ("/bin", "/sbin", "/lib", "/lib64"):
        if Path(link).is_symlink():
            host.add(Path(link))
    host.add_programs(_TOOLS)
    host.add_named_libraries(_LIBRARIES)
    library = f"var/lang/lib/python{version}"
    for stdlib in dict.fromkeys((layout.stdlib, layout.platform_stdlib)):
        host.add_tree(stdlib, library, without=_NOT_STDLIB)
    for path in [path for path in host.entries if path.startswith(f"{library}/config-")]:
        del host.entries[path]
    extensions = [each.content for each in host.entries.values() if isinstance(each.content, Path)]
    program = layout.program.resolve()
    needed = [program, *(path for path in extensions if path.suffix == ".so")]
    host.add_libraries(needed, elsewhere="var/lang/lib")
    host.entries[f"var/lang/bin/python{version}"] = NewEntry(0o755, program)
    for name in ("python3", "python"):
        host.entries[f"var/lang/bin/{name}"] = NewEntry(symlink=f"python{version}")
    for path in ("/etc/os-release", "/etc/mime.types"):
        if Path(path).exists():
            host.add(Path(path))
    bundle = next((path for path in map(Path, _CERTIFICATES) if path.exists()), None)
    if bundle is not None:
        host.add(bundle)
        host.entries[str(layout.certificates)[1:]] = NewEntry(0o644, bundle.resolve())
    return host.entries


def _with_folders(entries: dict[str, NewEntry]) -> dict[str, NewEntry]:
    entries["etc/passwd"] = NewEntry(0o644, _PASSWD.encode())
    entries["etc/group"] = NewEntry(0o644, _GROUP.encode())
    entries["etc/nsswitch.conf"] = NewEntry(0o644, b"hosts: files dns\n")
    entries["tmp"] = NewEntry(0o1777)
    entries["root"] = NewEntry(0o700)
    for name in ("dev", "proc", "opt", "var/task", "var/runtime"):
        entries[name] = NewEntry(0o755)
    add_parents(entries, list(entries))
    return entries


def _runtime(installed: Path, layout: _Layout, version: str) -> dict[str, NewEntry]:
    """Return pip, the packages of the runtime, and the scripts that start it.

    Args:
        installed: interpreter of the virtual environment with the packages.
        layout: the interpreter's layout, with the folder in which it searches for pip.
        version: version of Python.
    """
    host = HostFiles()
    own = f"var/lang/{layout.packages.relative_to(layout.prefix)}"
    for path in packages(installed):
        is_pip = path.name == "pip" or path.name.startswith("pip-")
        add_package(host, path, f"{own if is_pip else 'var/runtime'}/{path.name}")
    objects = [each.content for each in host.entries.values() if isinstance(each.content, Path)]
    for name in ("pip", "pip3"):
        host.entries[f"var/lang/bin/{name}"] = NewEntry(0o755, _PIP.format(version=version).encode())
    host.entries["var/runtime/bootstrap"] = NewEntry(0o755, _BOOTSTRAP.format(version=version).encode())
    host.entries["var/runtime/bootstrap.py"] = NewEntry(0o644, _BOOTSTRAP_PY.encode())
    host.entries["lambda-entrypoint.sh"] = NewEntry(0o755, _ENTRYPOINT.encode())
    host.add_libraries([path for path in objects if ".so" in path.name], elsewhere="var/lang/lib")
    return host.entries


def _environment() -> dict[str, str]:
    """Return the variables of AWS's image."""
    return {
        "LANG": "en_US.UTF-8",
        "TZ": ":/etc/localtime",
        "PATH": "/var/lang/bin:/usr/local/bin:/usr/bin/:/bin:/opt/bin",
        "LD_LIBRARY_PATH": ":".join(_LIBRARY_FOLDERS),
        "LAMBDA_TASK_ROOT": "/var/task",
        "LAMBDA_RUNTIME_DIR": "/var/runtime",
    }
