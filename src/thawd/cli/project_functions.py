"""Functions of another tool's project for private servers: `thawd bench --engine` and `thawd tune`.

The running server has the function in a stack, with its code, its settings and the names of tables and queues. A
private server has no stacks. So the function is copied from the running server into a configuration of its own, and its
calls of AWS's services still go to the running server.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from thawd.cli.client import address, request, url_of
from thawd.cli.exits import fail
from thawd.cli.options import load
from thawd.cli.projects import function_named

if TYPE_CHECKING:
    from thawd.config import Settings


class CopiedFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A function of the running server as a configuration of its own.

    Attributes:
        settings: the configuration.
        name: the function's name in it, which is that on the running server.
        aws: URL of the running server, for its calls of AWS's services.
    """

    settings: Settings
    name: str
    aws: str


@contextlib.contextmanager
def copied_function(settings: Settings, target: str) -> Iterator[CopiedFunction]:
    """Copy a function of the running server for the ``with`` block. If that is not possible, the command ends.

    Args:
        settings: address and credentials of the running server, and its data folder.
        target: name of the function, or its logical id in the project.
    """
    name = running_name(settings, target)
    found = _asked(settings, f"/2015-03-31/functions/{quote(name, safe='')}")
    url = url_of(address(settings))
    with tempfile.TemporaryDirectory(prefix="thawd-project-") as folder:
        place = Path(folder)
        declared = _declared(settings, name, found, place / "code")
        file = place / "thawd.toml"
        file.touch(mode=0o600)  # it has values of environment variables
        file.write_text(_toml(settings, name, declared))
        yield CopiedFunction(settings=load(file, {}), name=name, aws=url)


def running_name(settings: Settings, target: str) -> str:
    """Return the name on the running server of a function, given its name or its logical id. Else the command ends."""
    status, _, _ = request(settings, f"/2015-03-31/functions/{quote(os.fsencode(target), safe='')}", None, {})
    if status != 404:
        return target
    found = function_named(settings, target)
    if found is None:
        fail(f"the running server has no function {target!r}, and no stack or more than one with this logical id")
    return found


def _asked(settings: Settings, path: str) -> dict[str, Any]:
    status, _, body = request(settings, path, None, {})
    if status != 200:
        fail(f"the running server answers {status} for {path}: {body[:200].decode(errors='replace')}")
    document: dict[str, Any] = json.loads(body)
    return document


def _declared(settings: Settings, name: str, found: Mapping[str, Any], code: Path) -> dict[str, Any]:
    """Return the function's options as in thawd.toml, and unpack its code."""
    configuration = found["Configuration"]
    asks = configuration["SnapStart"]["ApplyOn"] != "None"
    declared: dict[str, Any] = {
        "snapshot": asks or settings.server.snapshots == "all",
        "memory_mb": configuration["MemorySize"],
        "timeout_s": configuration["Timeout"],
        "ephemeral_storage_mb": configuration["EphemeralStorage"]["Size"],
        "environment": configuration.get("Environment", {}).get("Variables", {}),
    }
    logging = configuration["LoggingConfig"]
    declared["log_format"] = logging["LogFormat"]
    if logging["LogFormat"] == "JSON":
        declared["application_log_level"] = logging["ApplicationLogLevel"]
        declared["system_log_level"] = logging["SystemLogLevel"]
    if configuration["PackageType"] == "Image":
        given = configuration.get("ImageConfigResponse", {}).get("ImageConfig", {})
        names = {"EntryPoint": "entry_point", "Command": "command", "WorkingDirectory": "working_directory"}
        config = {names[key]: value for key, value in given.items()}
        return {**declared, "image": found["Code"]["ImageUri"], **({"image_config": config} if config else {})}
    if "Location" not in found["Code"]:
        fail(f"{name} is a function of thawd.toml; measure it in the folder of that")
    _unpack(found["Code"]["Location"], code)
    for layer in reversed(configuration.get("Layers", ())):  # of two layers with a file, the later one's counts
        arn = quote(layer["Arn"], safe="")
        content = _asked(settings, f"/2018-10-31/layers?find=LayerVersion&Arn={arn}")["Content"]
        with tempfile.TemporaryDirectory(dir=code.parent) as unpacked:
            _unpack(content["Location"], Path(unpacked))
            _add_layer(configuration, layer["Arn"], Path(unpacked), code)
    return {
        **declared,
        "handler": configuration["Handler"],
        "runtime": configuration["Runtime"],
        "code": "code",
    }


def _unpack(url: str, folder: Path) -> None:
    """Unpack a zip file of the running server, with the files' permissions and links."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url) as answer, zipfile.ZipFile(io.BytesIO(answer.read())) as archive:
        folder.mkdir(exist_ok=True)
        for entry in archive.infolist():
            mode = entry.external_attr >> 16
            if (mode & 0o170000) == 0o120000:
                path = folder / entry.filename
                path.parent.mkdir(parents=True, exist_ok=True)
                path.symlink_to(os.fsdecode(archive.read(entry)))
                continue
            path = Path(archive.extract(entry, folder))
            if path.is_file() and mode & 0o777:
                path.chmod(mode & 0o777)


def _add_layer(configuration: Mapping[str, Any], arn: str, layer: Path, code: Path) -> None:
    """Put a layer's modules beside the code, where the code has none of their names. They are searched after the code.

    If the layer has other files, the command ends: functions of a private server have no ``/opt``.
    Source: Lambda developer guide, "Packaging your layer content".
    """
    runtime = configuration["Runtime"]
    searched = [(f"python/lib/{runtime}/site-packages", ""), ("python", ""), ("nodejs/node_modules", "node_modules")]
    searched.append((f"nodejs/node{runtime.removeprefix('nodejs').removesuffix('.x')}/node_modules", "node_modules"))
    files = (path.relative_to(layer) for path in sorted(layer.rglob("*")) if not path.is_dir() or path.is_symlink())
    other = next((path for path in files if path.parts[0] not in ("python", "nodejs")), None)
    if other is not None:
        fail(
            f"{configuration['FunctionName']} has the layer {arn} with {other}, and functions of a private server have "
            "no /opt; measure it on the running server, without --engine and --from"
        )
    for within, below in searched:
        place = layer / within
        for entry in list(place.iterdir()) if place.is_dir() else ():
            target = code / below / entry.name
            if not target.exists() and entry != layer / "python" / "lib":
                target.parent.mkdir(parents=True, exist_ok=True)
                entry.rename(target)


def _toml(settings: Settings, name: str, declared: Mapping[str, Any]) -> str:
    """Return the configuration: the function, the running server's data folder, and interpreters."""
    lines = [f"[functions.{_text(name)}]", *(f"{key} = {_value(value)}" for key, value in declared.items())]
    lines += ["[server]", f"data = {_text(str(settings.server.data))}"]
    lines.append(f"snapshots = {_text('off' if settings.server.snapshots == 'off' else 'auto')}")
    if settings.server.access_keys:
        lines.append(f"access_keys = {_value(settings.server.access_keys)}")
    lines += ["[runtimes]", *(f"{_text(key)} = {_text(value)}" for key, value in settings.runtimes.items())]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_text(key)} = {_value(each)}" for key, each in value.items()) + " }"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(map(_value, value)) + "]"
    return _text(value) if isinstance(value, str) else json.dumps(value)


def _text(text: str) -> str:
    """Return a basic string of TOML: JSON's escapes are among TOML's, apart from that of DEL, which only TOML wants."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
