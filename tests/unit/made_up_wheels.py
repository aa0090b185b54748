"""Makes wheels of packages that exist only in tests."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def make_wheel(
    folder: Path,
    name: str,
    files: Mapping[str, str | bytes],
    *,
    version: str = "1.0",
    tag: str = "py3-none-any",
    requires: Sequence[str] = (),
    scripts: Sequence[str] = (),
) -> Path:
    """Make a wheel in `folder`.

    Args:
        folder: made if it is missing.
        name: name of the distribution, without hyphens.
        files: contents by path.
        version: version of the distribution.
        tag: the wheel's tag.
        requires: requirements of the distribution.
        scripts: entry points, such as ``run = package:main``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-{tag}.whl"
    info = f"{name}-{version}.dist-info"
    metadata = "".join(f"Requires-Dist: {each}\n" for each in requires)
    written = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    if scripts:
        written[f"{info}/entry_points.txt"] = "[console_scripts]\n" + "\n".join(scripts) + "\n"
    written[f"{info}/RECORD"] = "".join(f"{each},,\n" for each in [*written, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for each, content in written.items():
            archive.writestr(each, content)
    return path
