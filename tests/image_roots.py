"""Makes images with the layout of Lambda's Python base image, from the interpreter that runs the tests."""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from thawd.oci import documents
from thawd.oci.documents import Descriptor, ImageConfig, Manifest, ProcessConfig, RootFilesystem
from thawd.oci.image_store import Images

BUILD = Path(__file__).resolve().parent.parent / "build"
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
PYTHON = f"/var/lang/bin/python{VERSION}"
ENV = {
    "PATH": "/var/lang/bin:/usr/local/bin:/usr/bin:/bin:/opt/bin",
    "LD_LIBRARY_PATH": "/var/lang/lib:/lib64:/usr/lib64:/var/runtime:/var/task:/opt/lib",
    "LANG": "en_US.UTF-8",
    "TZ": ":/etc/localtime",
    "LAMBDA_TASK_ROOT": "/var/task",
    "LAMBDA_RUNTIME_DIR": "/var/runtime",
}
"""The variables of Lambda's base image."""

_LEFT_OUT = shutil.ignore_patterns(
    *("test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "site-packages", "config-*", "lib2to3"),
    *("pydoc_data", "distutils", "unittest", "*.opt-?.pyc", "_tkinter*", "_test*", "_ctypes_test*", "xxlimited*"),
)
_LIBRARY = re.compile(r"(/\S+) \(0x")
# What Lambda's image has under this name: it executes the runtime, which is a client of the Runtime API.
_ENTRYPOINT = f"""#!/bin/sh
export _HANDLER="$1" PYTHONPATH="$LAMBDA_RUNTIME_DIR"
cd "${{LAMBDA_TASK_ROOT:-/var/task}}"
exec {PYTHON} -m awslambdaric "$1"
"""


def base_root() -> Path:
    """A folder in ``build/`` with the files of the base image; copy it before you change it. Made once.

    Returns:
        The folder. It belongs to the user who runs the tests, and other users can read it.
    """
    of_this_file = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:8]
    made = BUILD / f"lambda-root-{'.'.join(map(str, sys.version_info[:3]))}-{of_this_file}"
    BUILD.mkdir(exist_ok=True)
    with (BUILD / "lambda-root.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            partial = Path(tempfile.mkdtemp(dir=BUILD, prefix=".lambda-root-"))
            _fill(partial)
            partial.chmod(0o755)
            partial.rename(made)
    return made


def add_image(
    images: Images,
    name: str,
    files: Mapping[str, str],
    *,
    base: bool = True,
    config: ProcessConfig | None = None,
    architecture: str = "",
) -> str:
    """Put an image into a store, and give it a name.

    Args:
        images: the store.
        name: the image's name.
        files: texts of files by their paths in the image, without the first slash; a path that ends with ``*`` is of
            an executable. A text that begins with ``->`` is the target of a link.
        base: whether the image has the files of Lambda's base image.
        config: the image's configuration; None: that of the base image, with the handler ``app.handler``.
        architecture: for which the image says to be; empty: this machine's.

    Returns:
        The digest of the image's manifest.
    """
    own = io.BytesIO()
    with tarfile.open(fileobj=own, mode="w") as tar:
        for path, text in files.items():
            info = tarfile.TarInfo(path.rstrip("*"))
            info.mode = 0o755 if path.endswith("*") else 0o644
            if text.startswith("->"):
                info.type, info.linkname = tarfile.SYMTYPE, text[2:]
                tar.addfile(info)
            else:
                info.size = len(text.encode())
                tar.addfile(info, io.BytesIO(text.encode()))
    layers = [*([base_layer().read_bytes()] if base else []), own.getvalue()]
    with images.adding():
        described = []
        for layer in layers:
            digest = f"sha256:{hashlib.sha256(layer).hexdigest()}"
            images.blobs.store(digest, [layer], size=len(layer), what=name)
            described.append(Descriptor(documents.LAYER_TAR, digest, len(layer)))
        content = documents.encode(
            ImageConfig(
                architecture=architecture or documents.machine_architecture(),
                os="linux",
                rootfs=RootFilesystem([each.digest for each in described]),
                config=config or lambda_config(),
            )
        )
        described_config = Descriptor(documents.CONFIG, images.blobs.add(content), len(content))
        manifest = Manifest(2, described_config, described, documents.MANIFEST)
        added = images.blobs.add(documents.encode(manifest))
        images.set_name(name, added)
    return added


def lambda_config(command: Sequence[str] = ("app.handler",), **more: Any) -> ProcessConfig:
    """The configuration of an image that is built on Lambda's base image."""
    env = [f"{name}={value}" for name, value in ENV.items()]
    values = {"env": env, "entrypoint": ["/lambda-entrypoint.sh"], "cmd": list(command), "working_dir": "/var/task"}
    return ProcessConfig(**(values | more))


def base_layer() -> Path:
    """The base image's files as a tar file in ``build/``. Made once."""
    root = base_root()
    made = root.with_name(f"{root.name}.tar")
    with (BUILD / "lambda-root.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            partial = made.with_name(f"{made.name}.partial")
            with tarfile.open(partial, "w") as tar:
                tar.add(root, ".")
            partial.rename(made)
    return made


def _fill(root: Path) -> None:
    lang = root / "var" / "lang"
    prefix = Path(sys.base_prefix)
    for folder in (
        "var/task",
        "var/runtime",
        "opt",
        "etc",
        "tmp",
        "usr/bin",
        "bin",
        "lib64",
        "var/lang/bin",
        "var/lang/lib",
    ):
        (root / folder).mkdir(parents=True, exist_ok=True)
    interpreter = Path(os.path.realpath(prefix / "bin" / f"python{VERSION}"))
    shutil.copy2(interpreter, lang / "bin" / f"python{VERSION}")
    (lang / "bin" / "python3").symlink_to(f"python{VERSION}")
    library = Path(os.__file__).parent
    shutil.copytree(library, lang / "lib" / f"python{VERSION}", symlinks=True, ignore=_LEFT_OUT)
    (lang / "lib" / f"python{VERSION}" / "site-packages").mkdir(exist_ok=True)
    programs = [interpreter, Path(os.path.realpath("/bin/sh")), Path(os.path.realpath("/bin/true"))]
    for program in programs[1:]:
        shutil.copy2(program, root / "bin" / program.name)
    (root / "bin" / "sh").unlink(missing_ok=True)
    (root / "bin" / "sh").symlink_to(programs[1].name)
    for binary in (*programs, *(lang / "lib" / f"python{VERSION}" / "lib-dynload").glob("*.so")):
        _copy_libraries(binary, root, lang)
    entrypoint = root / "lambda-entrypoint.sh"
    entrypoint.write_text(_ENTRYPOINT)
    entrypoint.chmod(0o755)
    runtime = root / "var" / "runtime"
    _copy_distribution("awslambdaric", runtime)
    for binary in runtime.rglob("*.so"):
        _copy_libraries(binary, root, lang)


def _copy_distribution(name: str, folder: Path) -> None:
    """Copy an installed distribution, and those that it needs, to a folder."""
    for file in metadata.files(name) or []:
        if ".." not in file.parts and "__pycache__" not in file.parts:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file.locate(), folder / file)
    for requirement in metadata.requires(name) or []:
        needed = re.match(r"[\w.-]+", requirement)
        if needed is not None and "extra ==" not in requirement:
            _copy_distribution(needed[0], folder)


def _copy_libraries(binary: Path, root: Path, lang: Path) -> None:
    output = subprocess.run(["ldd", str(binary)], capture_output=True, text=True, check=False).stdout
    for found in _LIBRARY.findall(output):
        source = Path(found)
        to = root / found[1:] if found.startswith(("/lib64/", "/lib/")) else lang / "lib" / source.name
        if "ld-linux" in source.name or to.is_relative_to(root / "lib"):
            to = root / "lib64" / source.name
        if not to.exists():
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(os.path.realpath(source), to)
