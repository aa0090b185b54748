"""Makes what a deployment uploads: the code of each function, and the layer with the package ``thawd``.

`thawd.deploy.packages` divides functions into archives. The same files give the same bytes, so the key of an archive,
which contains its digest, changes only with its contents.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

import thawd
from thawd.config import Settings
from thawd.deploy.aws.function_images import FunctionImages
from thawd.deploy.aws.stack import Code, DeploymentError, LayerCode
from thawd.deploy.aws.used_stores import Uses, read_uses
from thawd.deploy.aws.web_applications import application_of, layer_files
from thawd.deploy.packages import making
from thawd.deploy.packages.planning import FunctionPlan
from thawd.deploy.packages.targets import Limits, PackageError, python_version
from thawd.deploy.packages.trial import NOT_TRIED
from thawd.deploy.packages.writing import ArchiveFile, part_key
from thawd.resources import Function

# zip knows no earlier time.
_TIME = (1980, 1, 1, 0, 0, 0)
_LAYER_BYTES = 131_072
"""Room for the layer with the package ``thawd``."""


class Asset(msgspec.Struct, frozen=True, kw_only=True):
    """An archive to upload.

    Attributes:
        key: key of its object: the stack's name, and a name with the archive's digest.
        file: the archive.
    """

    key: str
    file: Path


class Assets(msgspec.Struct, frozen=True, kw_only=True):
    """The archives of a deployment.

    Attributes:
        code: code of each function, by function name.
        layer_key: key of the layer's archive; None: no function needs the layer.
        archives: all archives.
        images: digests of the container images.
        image_store: folder of the store that has them.
    """

    code: dict[str, Code]
    layer_key: str | None
    archives: tuple[Asset, ...]
    images: tuple[str, ...] = ()
    image_store: Path


def make_assets(
    settings: Settings, *, stack: str, folder: Path, tries_imports: bool, report: Callable[[str], None]
) -> Assets:
    """Make the archives of a configuration.

    Args:
        settings: the configuration.
        stack: name of the stack.
        folder: folder for the archives.
        tries_imports: whether the handlers are imported from the finished archives.
        report: gets lines about steps that take long, and about handlers that were not imported.

    Raises:
        DeploymentError: a function cannot be packaged for Lambda.
    """
    images = FunctionImages(settings, report)
    code = {
        name: Code(image=images.named(function))
        for name, function in settings.functions.items()
        if function.image is not None
    }
    packaged = [name for name in settings.functions if name not in code]
    uses = {name: _uses_of(settings.functions[name]) for name in packaged}
    limits = Limits()
    python = settings.deployment.python
    order = making.Order(
        output=folder,
        architecture=settings.deployment.architecture,
        python=None if python is None else python_version(python),
        tries_imports=tries_imports,
        # One layer, and room in the limit of all files, are for the package thawd.
        limits=msgspec.structs.replace(
            limits, layers=limits.layers - 1, unpacked_bytes=limits.unpacked_bytes - _LAYER_BYTES
        ),
    )
    try:
        packages = making.make(settings, packaged, order, report)
    except PackageError as error:
        raise DeploymentError(error.message) from None
    has_applications = any(application_of(settings.functions[name]) is not None for name in packaged)
    has_stores = any((found or Uses()).has_stores for found in uses.values())
    layer = _layer(stack, folder, layer_files() if has_applications else {}) if has_stores or has_applications else None
    for ready in packages.prepared:
        for note in ready.notes:
            report(f"functions.{ready.function.name}: {note}")
    for plan in packages.plan.functions:
        trial = packages.trials[plan.function]
        if tries_imports and trial.state == NOT_TRIED:
            report(f"the import of {plan.function} was not tried: {trial.detail}")
        if plan.form == "image":
            digest = images.made(settings.functions[plan.function], plan, uses[plan.function])
            code[plan.function] = Code(image=digest, uses=uses[plan.function])
        else:
            code[plan.function] = _code(settings, plan, packages.files, stack=stack, uses=uses[plan.function])
    keys = {
        name: _key(stack, archive) if archive.file.endswith(".zip") else f"{stack}/{archive.file}"
        for name, archive in packages.files.items()
    }
    archives = {keys[name]: folder / archive.file for name, archive in packages.files.items()}
    if layer is not None:
        archives[layer.key] = layer.file
    return Assets(
        code=code,
        layer_key=None if layer is None else layer.key,
        archives=tuple(Asset(key=key, file=file) for key, file in sorted(archives.items())),
        images=tuple(sorted({each.image for each in code.values() if each.image is not None})),
        image_store=images.store,
    )


def _uses_of(function: Function) -> Uses | None:
    is_python = function.runtime is None or function.runtime.startswith("python")
    return read_uses(function.code, function.handler) if is_python else None


def _key(stack: str, archive: ArchiveFile) -> str:
    return f"{stack}/{archive.sha256}.zip"


def _code(
    settings: Settings, plan: FunctionPlan, files: Mapping[str, ArchiveFile], *, stack: str, uses: Uses | None
) -> Code:
    function = settings.functions[plan.function]
    return Code(
        key=_key(stack, files[plan.function]),
        uses=uses,
        runtime=plan.runtime or str(function.runtime),
        handler=plan.handler,
        layers=tuple(LayerCode(name=name, key=_key(stack, files[name])) for name in plan.layers),
        part=files[part_key(plan.function)].file if plan.part else None,
        ephemeral_storage_mb=max(plan.ephemeral_storage_mb, function.ephemeral_storage_mb),
    )


def _layer(stack: str, folder: Path, more: Mapping[str, bytes]) -> Asset:
    """Make the layer with the package ``thawd``. Modules have the same names there, so that they find each other.

    Args:
        stack: name of the stack.
        folder: folder for the archive.
        more: further files of the layer.
    """
    package = Path(thawd.__file__).parent
    files = {
        "python/thawd/__init__.py": (package / "runtime" / "deployed_services.py").read_bytes(),
        "python/thawd/wire/__init__.py": b"",
        "python/thawd/wire/dynamodb_items.py": (package / "wire" / "dynamodb_items.py").read_bytes(),
        **more,
    }
    file = folder / "thawd.zip"
    with zipfile.ZipFile(file, "w", compression=zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, _TIME)
            entry.external_attr = 0o100644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return Asset(key=f"{stack}/{hashlib.sha256(file.read_bytes()).hexdigest()}.zip", file=file)
