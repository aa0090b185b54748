"""Which file of this machine a process in a root sees at a path."""

from __future__ import annotations

from pathlib import Path

import pytest

from thawd.snapshot.disk.root_mounts import PACKAGE, RootMounts


@pytest.fixture
def mounts(tmp_path: Path) -> RootMounts:
    root, package = tmp_path / "root", tmp_path / "package"
    for folder in (root / "opt/data", root / "usr/lib", root / ".thawd/thawd", package):
        folder.mkdir(parents=True)
    for file in (root / "opt/data/x", root / "usr/lib/x.so", package / "module.py"):
        file.touch()
    (root / "opt/alias").symlink_to("/opt/data")
    (root / "opt/relative").symlink_to("../usr/../usr/lib")
    (root / "lib").symlink_to("usr/lib")
    (root / "opt/out").symlink_to("../../../../../../etc")
    (root / "opt/circle").symlink_to("circle")
    (root / "opt/package").symlink_to(PACKAGE)
    return RootMounts(root, Path("/"), {PACKAGE: package})


@pytest.mark.parametrize(
    ("seen", "real"),
    [
        ("/opt/data/x", "root/opt/data/x"),
        ("/opt/alias/x", "root/opt/data/x"),
        ("/opt/relative/x.so", "root/usr/lib/x.so"),
        ("/lib/x.so", "root/usr/lib/x.so"),
        ("/.thawd/thawd/module.py", "package/module.py"),
        ("/opt/package/module.py", "package/module.py"),
    ],
)
def test_links_and_mounts_are_followed_inside_the_root(mounts: RootMounts, seen: str, real: str) -> None:
    assert mounts.real(Path(seen)) == mounts.folder.parent / real


@pytest.mark.parametrize("path", ["/dev/null", "/proc/self/maps", "/opt/out/passwd", "/opt/circle", "/opt/missing"])
def test_a_path_of_the_machine_or_of_nothing_stays_as_it_is(mounts: RootMounts, path: str) -> None:
    assert mounts.real(Path(path)) == Path(path)
