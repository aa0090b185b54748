"""Disk snapshots, with processes that are really frozen and thawed, as this user and as others."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.disk_bench import MAPPED, MIB, NATIVE, SOME_FILES, USERS, Bench, bench_of, user_named
from thawd.snapshot.disk import file_trees
from thawd.snapshot.disk.temporary_folders import Disks, DiskSnapshot, MountKind


@pytest.fixture(params=USERS)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    with bench_of(user_named(request.param)) as bench:
        yield bench


def test_every_copy_has_the_files_of_init_for_itself(bench: Bench) -> None:
    snapshot = bench.freeze(SOME_FILES)
    assert snapshot is not None
    first, second = bench.thaw(snapshot), bench.thaw(snapshot)
    for copy in (first, second):
        assert copy.do("sorted(os.listdir(FOLDER))") == ["folder", "link", "model", "notes"]
        assert copy.do("open('model', 'rb').read() == b'weights ' * (1 << 17)")
        assert copy.do("open(FOLDER + '/link').read(), os.getcwd() == FOLDER") == ("from init\n", True)
    first.do("open('notes', 'a').write('first')")
    second.do("open('notes', 'a').write('second')")
    second.do("open('new', 'w').write('of the second')")
    assert first.do("open('notes').read()") == "from init\nfirst"
    assert second.do("open('notes').read()") == "from init\nsecond"
    assert first.do("os.path.exists('new')") is False
    assert bench.thaw(snapshot).do("open('notes').read(), os.path.exists('new')") == ("from init\n", False)
    assert snapshot.files is not None
    assert (snapshot.files / "notes").read_text() == "from init\n"


def test_files_of_init_can_be_removed_renamed_and_replaced(bench: Bench) -> None:
    snapshot = bench.freeze(SOME_FILES)
    copy = bench.thaw(snapshot)
    copy.do("os.remove('notes'), os.rename('model', 'renamed'), shutil.rmtree('folder')")
    assert copy.do("sorted(os.listdir(FOLDER)), os.path.exists('link')") == (["link", "renamed"], False)
    copy.do("os.mkdir('folder'), open('notes', 'w').write('anew')")
    assert copy.do("os.listdir('folder'), open('link').read()") == ([], "anew")
    assert copy.do("open('renamed', 'rb').read() == b'weights ' * (1 << 17)")
    assert bench.thaw(snapshot).do("sorted(os.listdir(FOLDER))") == ["folder", "link", "model", "notes"]


def test_a_folder_of_init_can_be_moved(bench: Bench) -> None:
    """rename(2) alone suffices only where overlays may hide their markers (docs/explanation/disk-snapshots.md)."""
    copy = bench.thaw(bench.freeze(SOME_FILES))
    copy.do("shutil.move('folder', 'moved')")
    assert copy.do("os.listdir('moved'), os.path.exists('folder')") == (["inside"], False)


def test_new_files_belong_to_the_user_and_processes_started_see_them(bench: Bench) -> None:
    copy = bench.thaw(bench.freeze(SOME_FILES))
    copy.do("open('new', 'w').write('x')")
    mine = (bench.user.uid, bench.user.uid) if bench.user.uid is not None else (os.geteuid(), os.getegid())
    assert copy.do("[(s.st_uid, s.st_gid) for s in map(os.stat, ['new', 'notes', '.'])]") == [mine] * 3
    assert copy.do("(os.getuid(), os.getgid())") == mine
    status = (bench.data / "tmp" / "copy-1" / "upper" / "new").stat()
    assert (status.st_uid, status.st_gid) == mine
    listed = "subprocess.run(['/bin/ls', FOLDER], stdout=subprocess.PIPE, text=True).stdout.split()"
    assert copy.do(listed) == ["folder", "link", "model", "new", "notes"]


def test_a_copy_has_no_rights_that_it_did_not_have(bench: Bench) -> None:
    copy = bench.thaw(bench.freeze(SOME_FILES))
    effective = "[line for line in open('/proc/self/status') if line.startswith('CapEff')]"
    if bench.user.uid is not None:
        assert copy.do(effective) == ["CapEff:\t0000000000000000\n"]
        assert "non-zero exit status" in copy.ask(
            "subprocess.run(['mount', '-t', 'tmpfs', 'none', FOLDER], check=True)"
        )
    elif bench.user.prepare is not None:
        # Its capabilities are those of root in a user namespace, which do not apply to files of others.
        assert "Invalid argument" in copy.ask("os.chown('notes', 1234, 1234)")
    else:
        mine = [line for line in Path("/proc/self/status").read_text().splitlines(True) if line.startswith("CapEff")]
        assert copy.do(effective) == mine


def test_proc_tells_a_copy_all_about_itself(bench: Bench) -> None:
    copy = bench.thaw(
        bench.freeze(
            SOME_FILES, "import threading; s = threading.Event(); threading.Thread(target=s.wait, daemon=True).start()"
        )
    )
    assert copy.do("len(os.listdir('/proc/self/task'))") == 2
    for name in ("maps", "smaps", "status", "fdinfo/0", "mountinfo"):
        assert copy.do(f"len(open('/proc/self/{name}').read()) > 0"), name
    assert copy.do("any(' ' + FOLDER + ' ' in line for line in open('/proc/self/mountinfo'))")
    # The platform must be able to read these files, too: it watches the copy's memory.
    with bench.user.acting():
        assert "Rss" in Path(f"/proc/{copy.pid}/smaps_rollup").read_text()
        assert f"TMPDIR={bench.data}" in Path(f"/proc/{copy.pid}/environ").read_text()


def test_mapped_open_and_deleted_files_come_back(bench: Bench) -> None:
    snapshot = bench.freeze(SOME_FILES, MAPPED)
    for name in ("first", "second"):
        copy = bench.thaw(snapshot)
        assert copy.do("m.shared[:16], m.private[:16]") == (b"weights weights ", b"CHANGED weights ")
        assert copy.do("m.shared[:] == b'weights ' * (1 << 17)")
        assert copy.do("m.reading.read(7)") == b"weights"
        copy.do(f"m.log.write('{name}\\n'), m.log.flush()")
        assert copy.do("open('log').read()") == f"one\n{name}\n"
        assert copy.do("(m.gone.seek(0), m.gone.read(8), m.lost[-8:], os.path.exists('gone'))") == (
            *(0, b"no name ", b"no name "),
            False,
        )
    assert snapshot is not None
    assert snapshot.files is not None
    assert (snapshot.files / "log").read_text() == "one\n"


WRITTEN = """
with open("table", "wb") as file:
    file.write(bytes(8192))
table = mmap.mmap(os.open("table", os.O_RDWR), 0)
view = mmap.mmap(os.open("table", os.O_RDONLY), 0, access=mmap.ACCESS_READ)
table[0:4] = b"init"
"""


def test_without_overlays_copies_find_the_same_in_copies_of_the_files(bench: Bench) -> None:
    snapshot = bench.freeze(SOME_FILES, MAPPED, WRITTEN)
    bench.disks._mount_kind = (MountKind.BIND, "as where the kernel knows no overlays")
    for name in ("first", "second"):
        copy = bench.thaw(snapshot)
        assert copy.do("sorted(os.listdir(FOLDER))") == ["folder", "link", "log", "model", "notes", "table"]
        assert copy.do("m.shared[:16], m.private[:16], m.lost[-8:]") == (
            *(b"weights weights ", b"CHANGED weights "),
            b"no name ",
        )
        copy.do(f"m.log.write('{name}\\n'), m.log.flush(), table.__setitem__(slice(0, 4), b'{name[:4]}')")
        assert copy.do("open('log').read(), view[:4]") == (f"one\n{name}\n", name[:4].encode())
        copy.do("os.rename('folder', 'moved')")
        assert (bench.data / "tmp" / f"copy-{bench.count}" / "moved" / "inside").read_text() == "x"


def test_a_file_mapped_shared_and_writable_is_each_copys_own(bench: Bench) -> None:
    snapshot = bench.freeze(SOME_FILES, WRITTEN)
    first, second = bench.thaw(snapshot), bench.thaw(snapshot)
    assert first.do("table[:4], view[:4]") == (b"init", b"init")
    first.do("table.__setitem__(slice(0, 4), b'1st ')")
    second.do("table.__setitem__(slice(0, 4), b'2nd ')")
    # All mappings of the file show the same bytes as the file itself.
    assert first.do("view[:4], open('table', 'rb').read(4)") == (b"1st ", b"1st ")
    assert second.do("view[:4], open('table', 'rb').read(4)") == (b"2nd ", b"2nd ")
    assert bench.thaw(snapshot).do("table[:4]") == b"init"


def test_a_large_file_is_shared_until_it_is_written(bench: Bench) -> None:
    snapshot = bench.freeze(
        SOME_FILES,
        "os.posix_fallocate(os.open('large', os.O_RDWR | os.O_CREAT), 0, 1 << 30)",
        "big = mmap.mmap(os.open('large', os.O_RDONLY), 0, access=mmap.ACCESS_READ)",
    )
    free_bytes = free(bench.data)
    copies = [bench.thaw(snapshot) for _ in range(3)]
    for copy in copies:
        assert copy.do("big[-1], os.stat('large').st_size") == (0, 1 << 30)
    assert sum(bench.disks.used_bytes(f"copy-{number}") for number in (1, 2, 3)) < MIB
    # less than the file's size, because other processes write to this disk too
    assert free_bytes - free(bench.data) < 1024 * MIB
    copies[0].do("open('notes', 'a').write('x')")
    assert sum(bench.disks.used_bytes(f"copy-{number}") for number in (1, 2, 3)) < MIB


def free(folder: Path) -> int:
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


def test_the_pages_of_a_mapped_file_are_shared_by_all_copies(bench: Bench) -> None:
    snapshot = bench.freeze(SOME_FILES, "open('model', 'wb').write(os.urandom(1 << 20) * 32)", MAPPED)
    copies = [bench.thaw(snapshot) for _ in range(4)]
    for copy in copies:
        copy.do("sum(m.shared[::4096]) and None")
    for copy in copies:
        text = copy.do("open('/proc/self/smaps').read()")
        block = next(
            part for part in text.split("VmFlags") if f"{snapshot and snapshot.at}/model" in part and " r--s " in part
        )
        sizes = {line.split(":")[0]: int(line.split()[1]) for line in block.splitlines() if line.endswith(" kB")}
        # The kernel may take back some pages of the file meanwhile.
        assert 28 * 1024 <= sizes["Rss"] <= 32 * 1024
        assert sizes["Pss"] <= 32 * 1024 // 4 + 1024
        assert sizes["Private_Clean"] + sizes["Private_Dirty"] <= 1024


def test_a_copy_can_be_frozen_again_with_what_it_wrote(bench: Bench) -> None:
    snapshot = bench.freeze(SOME_FILES, MAPPED)
    copy = bench.thaw(snapshot)
    copy.do("os.remove('notes'), open('second', 'w').write('generation'), m.log.write('copy\\n'), m.log.flush()")
    again = bench.data / "again"
    assert copy.do(f"freeze({str(again)!r})") == "frozen"
    assert snapshot is not None
    with bench.user.acting():
        merged = bench.data / "again.disk"
        # The platform sees the copy's mounts only through the copy's root folder in /proc.
        file_trees.copy(Path(f"/proc/{copy.pid}/root{snapshot.at}"), merged)
    copy.kill()
    assert not [path for path in merged.rglob("*") if path.is_char_device()]
    bench.image = again  # the new image refers to the first one, which stays
    third = bench.thaw(DiskSnapshot(snapshot.at, merged, snapshot.found))
    assert third.do("sorted(os.listdir(FOLDER))") == ["folder", "link", "log", "model", "second"]
    assert third.do("m.shared[:8], m.private[:8], m.lost[-8:]") == (b"weights ", b"CHANGED ", b"no name ")
    assert third.do("open('log').read()") == "one\ncopy\n"


FORK = """
r, w = os.pipe()
pid = os.fork()
if not pid:
    try:
        enter_disk({}, {}, {})
        os.chdir(FOLDER)
        answer = open('notes').read()
        open('notes', 'a').write('of the fork')
    except BaseException as error:
        answer = repr(error)
    os.write(w, answer.encode())
    os._exit(0)
os.waitpid(pid, 0)
said = os.read(r, 1000).decode()
os.close(r), os.close(w)
"""


def test_a_fork_of_a_copy_gets_a_folder_of_its_own(bench: Bench) -> None:
    snapshot = bench.freeze(SOME_FILES)
    copy = bench.thaw(snapshot)
    copy.do("open('notes', 'a').write('of the copy')")
    with bench.user.acting():
        prepared = bench.disks.prepare(snapshot, "fork")
    assert prepared.lower is not None
    copy.do(FORK.format(*map(repr, map(str, (prepared.at, prepared.own, prepared.lower)))))
    assert copy.do("said") == "from init\n"
    assert copy.do("open('notes').read()") == "from init\nof the copy"
    assert prepared.own is not None
    assert (prepared.own / "upper" / "notes").read_text() == "from init\nof the fork"


def test_a_fork_of_a_process_that_was_not_frozen_gets_one_too(bench: Bench) -> None:
    template = bench.template(SOME_FILES)
    with bench.user.acting():
        found = bench.disks.look("template")
        prepared = bench.disks.prepare(found, "fork")
    assert prepared.lower == prepared.at
    template.do(FORK.format(*map(repr, map(str, (prepared.at, prepared.own, prepared.lower)))))
    assert template.do("said") == "from init\n"
    assert template.do("open('notes').read()") == "from init\n"
    assert prepared.own is not None
    assert (prepared.own / "upper" / "notes").read_text() == "from init\nof the fork"


def test_thaw_that_starts_itself_anew_keeps_its_mounts(bench: Bench) -> None:
    """Thaw starts itself again if the vDSO is sealed and in the way of a mapping."""
    snapshot = bench.freeze(SOME_FILES)
    assert snapshot is not None
    options = ["--again", "1", "--disk-at", str(snapshot.at), "--disk-own", "/nowhere", "--try", "disk"]
    assert bench.refused(options).returncode == 0
    assert bench.refused(options[2:]).returncode == 121


def test_a_folder_that_was_used_and_is_empty_is_private_too(bench: Bench) -> None:
    snapshot = bench.freeze("import tempfile; kept = tempfile.mkdtemp(); os.rmdir(kept); kept = tempfile.gettempdir()")
    assert snapshot is not None
    assert snapshot.files is None
    first, second = bench.thaw(snapshot), bench.thaw(snapshot)
    first.do("open(kept + '/file', 'w').write('first')")
    assert second.do("os.listdir(kept)") == []
    assert first.do("os.listdir(FOLDER), os.environ['TMPDIR'] == FOLDER") == (["file"], True)
    assert (bench.data / "tmp" / "copy-1" / "file").read_text() == "first"
    assert list(snapshot.at.iterdir()) == []


def test_a_folder_that_was_not_used_needs_no_namespace(bench: Bench) -> None:
    snapshot = bench.freeze()
    assert snapshot is None
    copy = bench.thaw(snapshot)
    assert Path(f"/proc/{copy.pid}/ns/mnt").readlink() == Path("/proc/self/ns/mnt").readlink()


def mounts_on(data: Path) -> list[str]:
    """Return the mounts below a folder, in all visible mount namespaces."""
    found = set()
    for mounts in Path("/proc").glob("[0-9]*/mountinfo"):
        with contextlib.suppress(OSError):
            found.update(line.split()[4] for line in mounts.read_text().splitlines() if f" {data}/" in line)
    return sorted(found)


def test_nothing_is_left_of_copies_that_died(bench: Bench) -> None:
    snapshot = bench.freeze(SOME_FILES, MAPPED)
    assert snapshot is not None
    copies = [bench.thaw(snapshot) for _ in range(3)]
    for copy in copies:
        copy.do("open('new', 'w').write('x'), os.remove('notes'), shutil.rmtree('folder')")
    assert mounts_on(bench.data) == [str(snapshot.at)]
    with bench.user.acting():
        bench.disks.remove("template")
    assert copies[0].do("sorted(os.listdir(FOLDER))") == ["link", "log", "model", "new"]
    for copy in copies:
        copy.kill()
    assert mounts_on(bench.data) == []
    with bench.user.acting():
        for number in (1, 2, 3):
            bench.disks.remove(f"copy-{number}")
    assert list((bench.data / "tmp").iterdir()) == []


def test_after_the_death_of_the_server_the_next_one_cleans_up(bench: Bench) -> None:
    snapshot = bench.freeze(SOME_FILES, MAPPED)
    copies = [bench.thaw(snapshot) for _ in range(2)]
    for copy in copies:
        copy.do("open('new', 'w').write('x'), shutil.rmtree('folder'), os.mkdir('folder')")
        copy.popen.send_signal(signal.SIGKILL)
        copy.popen.wait()
    with bench.user.acting():
        next_server = Disks(bench.data / "tmp", program=NATIVE / "thawd-thaw")
        assert next_server.clean() == 3
        assert list((bench.data / "tmp").iterdir()) == []
        bench.disks = next_server
        bench.disks._mount_kind = (MountKind.OVERLAY, "")
        found = bench.disks.load(bench.data / "image.disk")
    assert bench.thaw(found).do("sorted(os.listdir(FOLDER))") == ["folder", "link", "log", "model", "notes"]
