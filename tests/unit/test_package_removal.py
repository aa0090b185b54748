"""`thawd.deploy.packages.removal` and `distributions`: what stays in packages, and which requirement brings it."""

from __future__ import annotations

import base64
import ctypes
import hashlib
import importlib.metadata
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.made_up_wheels import make_wheel
from thawd.deploy.packages import elf
from thawd.deploy.packages.distributions import Distribution, brought_by, groups, read_distributions
from thawd.deploy.packages.removal import Removed, slim

# An extension module of this interpreter that names the libraries it needs: a shared object that every machine has.
LIBRARY = next(
    path
    for path in sorted(Path(sysconfig.get_config_var("DESTSHARED")).glob("_*.so"))
    if (found := elf.read(path)) is not None and any(name.startswith("libc.so") for name in found.needed)
)


def installed(folder: Path, *wheels: Path, requested: Sequence[str] = ("one",)) -> list[Distribution]:
    """Return the distributions of wheels that are unpacked in `folder`, as an installer does it."""
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    return read_distributions(folder, requested)


def slimmed(folder: Path, files: dict[str, str | bytes]) -> tuple[set[str], list[Removed]]:
    """Return the paths that stay of a distribution ``one``, and what is removed."""
    [each], removed = slim(installed(folder / "site", make_wheel(folder, "one", files)))
    return {item.path for item in each.items if ".dist-info/" not in item.path}, removed


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        ("one/tests/test_a.py", "tests"),
        ("one/inner/test/data/large.bin", "tests"),
        ("one/docs/guide.py", "documents"),
        ("one/README.md", "documents"),
        ("share/doc/one/index.html", "documents"),
        ("one/__init__.pyi", "stubs"),
        ("one/py.typed", "stubs"),
        ("one/include/one.h", "build"),
        ("one/_fast.pyx", "build"),
        ("one/libone.a", "build"),
        ("one/__pycache__/__init__.cpython-311.pyc", "bytecode"),
        ("one/__init__.pyc", "bytecode"),
        ("bin/one", "scripts"),
        ("one-1.0.dist-info/INSTALLER", "installer"),
        ("one-1.0.dist-info/direct_url.json", "installer"),
    ],
)
def test_what_no_import_needs_is_left_out(tmp_path: Path, path: str, rule: str) -> None:
    content = "#!/somewhere/bin/python\n" if path == "bin/one" else "..."
    kept, removed = slimmed(tmp_path, {"one/__init__.py": "A = 1\n", path: content})
    assert kept == {"one/__init__.py"}
    assert removed == [Removed(rule, "one", 1, len(content))]


@pytest.mark.parametrize(
    "source",
    [
        "from one.tests import base\n",
        "import one.tests.base as base\n",
        "from .tests.base import A\n",
        "from . import other, tests\n",
        "from . import (\n    other,\n    tests,\n)\n",
        "import importlib\nbase = importlib.import_module('one.tests.base')\n",
    ],
)
def test_tests_that_a_module_names_stay(tmp_path: Path, source: str) -> None:
    files: dict[str, str | bytes] = {
        "one/__init__.py": source,
        "one/tests/__init__.py": "",
        "one/tests/base.py": "A = 1\n",
    }
    kept, removed = slimmed(tmp_path, files)
    assert kept == set(files)
    assert removed == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("one/__init__.pyi", "lazy_loader.attach_stub(__name__, __file__)\n"),
        ("one/NOTES.md", "open('NOTES.md')\n"),
        ("one/testing/__init__.py", ""),
        ("one/data/labels.txt", ""),
        ("one/compiled.pyc", ""),
        ("bin/tool", "#!/bin/sh\n"),
        ("one-1.0.dist-info/licenses/docs/LICENSE.md", ""),
    ],
)
def test_what_an_import_may_need_stays(tmp_path: Path, path: str, source: str) -> None:
    files: dict[str, str | bytes] = {"one/__init__.py": source, path: source}
    [each], removed = slim(installed(tmp_path / "site", make_wheel(tmp_path, "one", files)))
    assert path in {item.path for item in each.items}
    assert removed == []


def test_a_rule_can_be_left_out(tmp_path: Path) -> None:
    found = installed(tmp_path / "s", make_wheel(tmp_path, "one", {"one/tests/a.py": "", "one/a.pyi": ""}))
    [each], removed = slim(found, without={"tests"})
    assert "one/tests/a.py" in {item.path for item in each.items}
    assert [it.rule for it in removed] == ["stubs"]


def test_the_record_lists_what_is_left(tmp_path: Path) -> None:
    library = with_symbols(tmp_path).read_bytes()
    files: dict[str, str | bytes] = {"one/__init__.py": "", "one/tests/a.py": "", "one/_fast.so": library}
    [each], removed = slim(installed(tmp_path / "site", make_wheel(tmp_path, "one", files)))
    for item in each.items:
        path = tmp_path / "out" / item.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(item.read())
        assert path.stat().st_size == item.size_bytes
    [distribution] = importlib.metadata.distributions(path=[str(tmp_path / "out")])
    listed = {str(file): file for file in distribution.files or ()}
    assert set(listed) == {item.path for item in each.items}
    cut = (tmp_path / "out/one/_fast.so").read_bytes()
    assert removed == [Removed("tests", "one", 1, 0), Removed("symbols", "one", 1, len(library) - len(cut))]
    assert (listed["one/_fast.so"].size, listed["one/_fast.so"].hash.value) == (  # type: ignore[union-attr]
        len(cut),
        base64.urlsafe_b64encode(hashlib.sha256(cut).digest()).decode().rstrip("="),
    )
    assert ctypes.CDLL(str(tmp_path / "out/one/_fast.so")).answer() == 42
    assert (tmp_path / "out/one-1.0.dist-info/RECORD").read_bytes().count(b"\r") == 0


def test_a_library_is_not_cut_if_its_rule_is_left_out(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "one", {"one/_fast.so": with_symbols(tmp_path).read_bytes()})
    [each], removed = slim(installed(tmp_path / "site", wheel), without={"symbols"})
    assert removed == [] and not any(item.is_cut for item in each.items)


def test_each_distribution_names_the_chain_of_requirements_that_brings_it(tmp_path: Path) -> None:
    found = installed(
        tmp_path / "site",
        make_wheel(tmp_path, "one", {"one.py": ""}, requires=["two>=1", 'extra; extra == "more"']),
        make_wheel(tmp_path, "two", {"two.py": ""}, requires=["Three.Four"]),
        make_wheel(tmp_path, "three_four", {"three.py": ""}),
        make_wheel(tmp_path, "extra", {"extra.py": ""}),
    )
    assert brought_by(found) == {
        "one": ("one",),
        "two": ("one", "two"),
        "three-four": ("one", "two", "three-four"),
        "extra": ("one", "extra"),
    }


def test_distributions_with_a_common_folder_of_modules_are_a_group(tmp_path: Path) -> None:
    found = installed(
        tmp_path / "site",
        make_wheel(tmp_path, "one", {"shared/a.py": "", "bin/x": ""}),
        make_wheel(tmp_path, "two", {"shared/b.py": "", "bin/y": ""}),
        make_wheel(tmp_path, "three", {"three/a.py": "", "bin/z": ""}),
    )
    assert groups(found) == {"one": "one", "two": "one", "three": "three"}


def test_shared_objects_and_those_that_they_load_are_a_group(tmp_path: Path) -> None:
    read = elf.read(LIBRARY)
    assert read is not None
    needed = next(name for name in read.needed if name.startswith("libc.so"))
    found = installed(
        tmp_path / "site",
        make_wheel(tmp_path, "one", {"one/_fast.so": LIBRARY.read_bytes()}),
        make_wheel(tmp_path, "zwei", {f"zwei/{needed}": LIBRARY.read_bytes()}),
    )
    assert groups(found) == {"one": "one", "zwei": "one"}


# Shared objects


def with_symbols(folder: Path) -> Path:
    """Return a small shared object with symbol tables and debugging sections. Skips where there is no compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    (folder / "a.c").write_text("static int twice(int n) { return 2 * n; } int answer(void) { return twice(21); }\n")
    subprocess.run([compiler, "-g", "-shared", "-fPIC", "-o", folder / "a.so", folder / "a.c"], check=True)
    return folder / "a.so"


def test_a_shared_object_without_its_symbols_works(tmp_path: Path) -> None:
    original = with_symbols(tmp_path)
    read = elf.read(original)
    assert read is not None and read.may_be_cut
    cut = elf.cut(original.read_bytes()[: read.loaded_bytes])
    assert len(cut) < original.stat().st_size
    (tmp_path / "cut.so").write_bytes(cut)
    program = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).answer())"
    done = subprocess.run([sys.executable, "-c", program, tmp_path / "cut.so"], capture_output=True, check=True)
    assert done.stdout == b"42\n"
    assert elf.read(tmp_path / "cut.so") is not None


def test_a_shared_object_with_something_appended_is_not_cut(tmp_path: Path) -> None:
    original = with_symbols(tmp_path)
    (tmp_path / "more.so").write_bytes(original.read_bytes() + b"an archive")
    read = elf.read(tmp_path / "more.so")
    assert read is not None and not read.may_be_cut


def test_the_machine_and_the_libraries_of_a_shared_object_are_read() -> None:
    read = elf.read(LIBRARY)
    assert read is not None
    assert ctypes.sizeof(ctypes.c_void_p) == 8 and read.machine in ("x86_64", "aarch64")
    assert any(name.startswith("libc.so") for name in read.needed)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=8), st.integers(0, 20_000))
def test_broken_shared_objects_are_left_as_they_are(tmp_path: Path, changes: list[tuple[int, int]], size: int) -> None:
    content = bytearray(LIBRARY.read_bytes())
    for place, value in changes:
        content[4 + place] = value
    path = tmp_path / "broken.so"
    path.write_bytes(content[:size] if size > 10_000 else content)
    read = elf.read(path)
    if read is not None:
        assert 0 < read.loaded_bytes <= path.stat().st_size
