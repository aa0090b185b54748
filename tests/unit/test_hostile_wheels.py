"""`thawd.deploy.packages` with wheels that lie about themselves: no file is lost, confused or read from elsewhere."""

from __future__ import annotations

import importlib.metadata
import io
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.unit.made_up_wheels import make_wheel
from thawd.deploy.packages import elf
from thawd.deploy.packages.archives import write_tar, write_zip
from thawd.deploy.packages.contents import Item, items_of
from thawd.deploy.packages.distributions import UNOWNED, Distribution, read_distributions
from thawd.deploy.packages.measuring import piece_of
from thawd.deploy.packages.removal import slim

INFO = "one-1.0.dist-info"


def installed(folder: Path, files: Mapping[str, str | bytes]) -> list[Distribution]:
    """Return the distributions of a wheel ``one`` whose files, also its metadata, are replaced by `files`."""
    with zipfile.ZipFile(make_wheel(folder, "one", {"one/__init__.py": ""})) as archive:
        archive.extractall(folder / "site")
    for name, content in files.items():
        path = folder / "site" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_distributions(folder / "site", ["one"])


def paths(distributions: list[Distribution]) -> dict[str, set[str]]:
    return {each.name: {item.path for item in each.items if ".dist-info" not in item.path} for each in distributions}


def digest(distribution: Distribution) -> str:
    return piece_of(distribution, group="", brought_by=(), packer=None).digest


def test_two_distributions_with_one_name_count_as_one_and_no_file_is_lost(tmp_path: Path) -> None:
    files = {"ONE-2.dist-info/METADATA": "Name: One\nVersion: 2\n", "ONE-2.dist-info/RECORD": "b.py,,\n", "b.py": ""}
    assert paths(installed(tmp_path, files)) == {"one": {"one/__init__.py", "b.py"}}


@pytest.mark.parametrize("name", ["", "other files", "one/two", "\u00fcn\u00ef"])
def test_a_distribution_without_a_valid_name_has_that_of_its_folder(tmp_path: Path, name: str) -> None:
    files = {"two-2.dist-info/METADATA": f"Name: {name}\nVersion: 2\n", "loose.py": ""}
    assert paths(installed(tmp_path, files)) == {"one": {"one/__init__.py"}, "two": set(), UNOWNED: {"loose.py"}}


def test_metadata_that_is_no_text_is_read_as_far_as_possible(tmp_path: Path) -> None:
    metadata = "Name: one\nVersion: 1\u00e9\nRequires-Dist: two; extra == '\u00e9'\nRequires-Dist: three\n"
    [one] = installed(tmp_path, {f"{INFO}/METADATA": metadata.encode("latin-1")})
    assert (one.requires, one.may_require, type(one.version)) == (("three",), ("two",), str)
    slim([one])


@pytest.mark.parametrize(
    "record",
    [
        f"./one/__init__.py,,\none//b.py,,\n../../bin/run,,\n{INFO}/RECORD,,\n",
        f"one/__init__.py,,\none/b.py,,\nbin/run,,\none/b.py,,\n\n{'a' * 200_000},,\n",
    ],
)
def test_files_belong_to_the_distribution_that_lists_them_however_it_writes_their_paths(
    tmp_path: Path, record: str
) -> None:
    files: dict[str, str | bytes] = {f"{INFO}/RECORD": record, "one/b.py": "", "bin/run": b"\x7fELF"}
    distributions = installed(tmp_path, files)
    assert paths(distributions) == {"one": {"one/__init__.py", "one/b.py", "bin/run"}}
    [one], _ = slim(distributions)
    for item in one.items:
        (tmp_path / "out" / item.path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "out" / item.path).write_bytes(item.read())
    [read] = importlib.metadata.distributions(path=[str(tmp_path / "out")])
    assert {str(file) for file in read.files or ()} >= {"one/__init__.py", "one/b.py", "bin/run"}


def test_distributions_with_equal_records_and_other_bytes_are_different(tmp_path: Path) -> None:
    record = {f"{INFO}/RECORD": f"one/__init__.py,sha256=AAAA,5\n{INFO}/RECORD,,\n"}
    [first] = installed(tmp_path / "first", {**record, "one/__init__.py": "A = 1"})
    [other] = installed(tmp_path / "other", {**record, "one/__init__.py": "A = 2"})
    [again] = installed(tmp_path / "again", {**record, "one/__init__.py": "A = 1"})
    assert digest(first) == digest(again) != digest(other)


def test_an_empty_folder_among_the_scripts_is_no_script(tmp_path: Path) -> None:
    (tmp_path / "site/bin/empty").mkdir(parents=True)
    (tmp_path / "site/bin/link").symlink_to("/etc/passwd")
    distributions, _ = slim(installed(tmp_path, {}))
    assert {"bin/empty", "bin/link"} <= {item.path for each in distributions for item in each.items}


def test_a_section_that_only_its_program_reads_is_kept(tmp_path: Path) -> None:
    compiler, objcopy = shutil.which("gcc"), shutil.which("objcopy")
    if compiler is None or objcopy is None:
        pytest.skip("there is no gcc with binutils")
    (tmp_path / "a.c").write_text("int answer(void) { return 42; }\n")
    (tmp_path / "data").write_bytes(b"data" * 1000)
    library, more = tmp_path / "a.so", tmp_path / "more.so"
    subprocess.run([compiler, "-g", "-shared", "-fPIC", "-o", library, tmp_path / "a.c"], check=True)
    subprocess.run([objcopy, "--add-section", f".own={tmp_path / 'data'}", library, more], check=True)
    without, with_own = elf.read(library), elf.read(more)
    assert without is not None and without.may_be_cut
    assert with_own is not None and not with_own.may_be_cut


@pytest.mark.parametrize("write", [write_zip, write_tar])
def test_a_file_that_changes_while_it_is_packed_is_refused(tmp_path: Path, write: object) -> None:
    (tmp_path / "code").mkdir()
    for size_bytes in (999, 1001):
        (tmp_path / "code/a").write_bytes(bytes(1000))
        items = items_of(tmp_path / "code")
        (tmp_path / "code/a").write_bytes(bytes(size_bytes))
        with pytest.raises(OSError, match="has changed"):
            write(items, io.BytesIO())  # type: ignore[operator]


def test_a_large_file_is_read_in_parts_with_the_same_bytes(tmp_path: Path) -> None:
    content = bytes(range(256)) * 10_000
    (tmp_path / "code").mkdir()
    (tmp_path / "code/large").write_bytes(content)
    [item] = items_of(tmp_path / "code")
    assert max(len(chunk) for chunk in item.chunks()) <= 1 << 20
    zipped, tarred = io.BytesIO(), io.BytesIO()
    write_zip([item], zipped)
    write_tar([item], tarred)
    whole = io.BytesIO()
    write_zip([Item(path="large", source=item.source, size_bytes=len(content), mode=item.mode, content=content)], whole)
    assert zipped.getvalue() == whole.getvalue()
    assert zipfile.ZipFile(zipped).read("large") == content
    tarred.seek(0)
    with tarfile.open(fileobj=tarred) as archive:
        extracted = archive.extractfile("large")
        assert extracted is not None and extracted.read() == content
