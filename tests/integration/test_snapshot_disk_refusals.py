"""Thaws with a disk snapshot that are refused or fail: each names the cause, and no copy starts."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator

import pytest

from tests.integration.disk_bench import DEADLINE_S, MAPPED, NATIVE, SOME_FILES, USERS, Bench, bench_of, user_named
from thawd.snapshot.store.trust_and_locks import remove_tree


@pytest.fixture(params=USERS)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    with bench_of(user_named(request.param)) as bench:
        yield bench


def test_outside_of_the_temporary_folder_such_a_file_is_refused(bench: Bench) -> None:
    outside = bench.data / "outside"
    process = bench.template(SOME_FILES, f"os.chdir({str(bench.data)!r})")
    process.do(f"import mmap; open({str(outside)!r}, 'wb').write(bytes(8192))")
    process.do(f"held = mmap.mmap(os.open({str(outside)!r}, os.O_RDWR), 0)")
    assert "keep it in the temporary folder" in process.ask(f"freeze({str(bench.image)!r})")


def test_a_mapped_file_that_was_tampered_with_is_refused(bench: Bench) -> None:
    snapshot = bench.freeze(SOME_FILES, MAPPED)
    assert snapshot is not None
    assert snapshot.files is not None
    with bench.user.acting():
        (snapshot.files / "model").write_bytes(b"another")
        prepared = bench.disks.prepare(snapshot, "copy")
    ended = bench.refused(prepared.options)
    assert ended.returncode == 120
    assert ended.stderr == f"thawd: cannot thaw here: a file has changed since the freeze: {snapshot.at}/model\n"


def test_a_disk_snapshot_that_is_gone_is_a_refusal(bench: Bench) -> None:
    snapshot = bench.freeze(SOME_FILES)
    assert snapshot is not None
    assert snapshot.files is not None
    with bench.user.acting():
        prepared = bench.disks.prepare(snapshot, "copy")
        snapshot.files.rename(bench.data / "elsewhere")
    ended = bench.refused(prepared.options)
    assert ended.returncode == 120
    assert ended.stderr == (
        f"thawd: cannot thaw here: the disk snapshot that belongs to the image is gone: {snapshot.files}\n"
    )


def test_a_copy_without_its_own_folder_is_a_failure(bench: Bench) -> None:
    snapshot = bench.freeze(SOME_FILES)
    with bench.user.acting():
        prepared = bench.disks.prepare(snapshot, "copy")
        remove_tree(bench.data / "tmp" / "copy")
    ended = bench.refused(prepared.options)
    assert ended.returncode == 121
    assert ended.stderr.startswith("thawd: thaw failed at disk: the copy's own folder")
    assert str(prepared.own) in ended.stderr


def test_a_folder_that_was_used_before_is_a_failure(bench: Bench) -> None:
    snapshot = bench.freeze(SOME_FILES)
    with bench.user.acting():
        prepared = bench.disks.prepare(snapshot, "copy")
    bench.start([NATIVE / "thawd-thaw", *prepared.options, bench.image], prepared.path).answer()
    ended = bench.refused(prepared.options)
    assert ended.returncode in (120, 121)
    assert "thawd: " in ended.stderr


def in_namespaces(bench: Bench, script: str, *, of_user: bool) -> subprocess.CompletedProcess[str]:
    """Run a shell script in a new mount namespace, as a user who may mount there."""
    unshare = ["unshare", "--mount", *(["--user", "--map-root-user"] if of_user else [])]
    options = {name: value for name, value in bench.user.options().items() if name != "preexec_fn"}
    return subprocess.run(
        [*unshare, "sh", "-c", script],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        **options,
    )


def test_a_full_disk_is_a_failure_that_says_so(bench: Bench) -> None:
    """The copy's folder is on a full file system."""
    snapshot = bench.freeze(SOME_FILES)
    assert snapshot is not None
    small = bench.data / "small"
    with bench.user.acting():
        small.mkdir()
    disk = ["--disk-at", snapshot.at, "--disk-own", small, "--disk-lower", snapshot.files]
    thaw = shlex.join(map(str, [NATIVE / "thawd-thaw", *disk, bench.image]))
    fill = f"mount -t tmpfs -o nr_inodes=4 none {small} && cd {small} && mkdir upper work && : > last"
    ended = in_namespaces(bench, f"{fill} && exec {thaw}", of_user=os.geteuid() != 0 or bench.user.uid is not None)
    assert ended.returncode == 121, ended.stderr
    assert ended.stderr.startswith(
        "thawd: thaw failed at disk: the temporary folder of the copy was mounted read-only; the disk is full"
    )


def test_where_namespaces_are_forbidden_the_refusal_says_how_to_allow_them(bench: Bench) -> None:
    snapshot = bench.freeze(SOME_FILES)
    with bench.user.acting():
        prepared = bench.disks.prepare(snapshot, "copy")
    thaw = shlex.join(map(str, [NATIVE / "thawd-thaw", *prepared.options, bench.image]))
    ended = in_namespaces(bench, f"echo 0 > /proc/sys/user/max_mnt_namespaces && exec {thaw}", of_user=True)
    if "max_mnt_namespaces" in ended.stderr:
        pytest.skip("the limit of namespaces cannot be set here")
    assert ended.returncode == 120
    assert "this user may not create one; allow user namespaces (sysctl user.max_user_namespaces" in ended.stderr
