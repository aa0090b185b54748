"""Images are built from Dockerfiles without Docker: what each instruction leaves in the image, and what is cached."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.small_base import NAME, add_small_base
from tests.privileges import MODULES, unprivileged_python
from tests.unit.oci_layers import add_image, files, layer, link
from tests.waiting import pause
from thawd.deploy.images.building import BuildRequest, build
from thawd.errors import ImageError
from thawd.oci.image_store import Images
from thawd.oci.root import Root

Built = Callable[..., Root]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Images:
    store = Images(tmp_path_factory.mktemp("store") / "oci")
    add_small_base(store)
    return store


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def built(images: Images, tmp_path: Path, lines: list[str]) -> Built:
    """Builds a Dockerfile in `tmp_path`, and returns the image's root."""

    def built(text: str, **fields: object) -> Root:
        (tmp_path / "Dockerfile").write_text(text)
        lines.clear()
        request = BuildRequest(tmp_path, tmp_path / "Dockerfile", environ=dict(os.environ), **fields)  # type: ignore[arg-type]
        return images.root(build(images, request, lines.append))

    return built


def from_cache(lines: list[str]) -> int:
    return sum("from an earlier build" in line for line in lines)


def test_copy_puts_files_and_folders_where_docker_does(built: Built, tmp_path: Path) -> None:
    (tmp_path / "src/inner").mkdir(parents=True)
    (tmp_path / "src/a.py").write_text("a")
    (tmp_path / "src/inner/b.py").write_text("b")
    (tmp_path / "src/inner/c.txt").write_text("c")
    (tmp_path / "src/link").symlink_to("a.py")
    (tmp_path / ".dockerignore").write_text("**/*.txt\n")
    root = built(
        "FROM scratch\nWORKDIR /w\nCOPY src ./whole\nCOPY src/a.py one\nCOPY src/*.py src/inner many/\n"
        'COPY ["src/link", "/link"]\nCOPY --chmod=750 src/a.py /deep/er/a.py\nCOPY . /all/\n'
    )
    found = files(root.folder)
    assert {path: content for path, content in found.items() if not path.startswith("all")} == {
        "deep": None, "deep/er": None, "deep/er/a.py": b"a", "link": b"a",
        "w": None, "w/many": None,
        "w/many/a.py": b"a", "w/many/b.py": b"b", "w/one": b"a",
        "w/whole": None, "w/whole/a.py": b"a", "w/whole/inner": None,
        "w/whole/inner/b.py": b"b", "w/whole/link": "a.py",
    }  # fmt: skip
    assert found["all/src/a.py"] == b"a" and "all/src/inner/c.txt" not in found
    assert stat.S_IMODE((root.folder / "deep/er/a.py").stat().st_mode) == 0o750
    assert root.working_dir == "/w"


def test_copy_follows_a_link_of_the_image_and_stays_in_the_folder(built: Built, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    root = built(f"FROM {NAME}\nRUN mkdir /real && ln -s /real /to\nCOPY a /to/\nCOPY a /to/b\n")
    assert files(root.folder / "real") == {"a": b"a", "b": b"a"}
    (tmp_path / "out").symlink_to("/etc/passwd")
    (tmp_path / "up").symlink_to("..")
    for source, message in (
        ("../a", "leads out"),
        ("out", "not there"),
        ("up/x", "leads out"),
        ("gone", "is not in"),
        ("*.x", "not in"),
    ):
        with pytest.raises(ImageError, match=rf"line 2: .*{message}"):
            built(f"FROM {NAME}\nCOPY {source} /x\n")


def test_run_sees_the_image_alone_and_its_changes_become_a_layer(built: Built, lines: list[str]) -> None:
    root = built(
        f"FROM {NAME}\nRUN rm /etc/removed && mkdir -p /new/empty && echo text > /new/file && chmod 700 /new/file && "
        "ln /new/file /new/same && ln -s file /new/link && cat /etc/passwd > /etc/copied\n"
        "RUN ls / && ls /proc/self/fd > /dev/null && echo $BASE > /dev/null && id\n"
    )
    found = files(root.folder)
    assert "etc/removed" not in found and found["etc/copied"] == found["etc/passwd"]
    assert {name: found[name] for name in found if name.startswith("new")} == {
        "new": None, "new/empty": None, "new/file": b"text\n", "new/link": "file", "new/same": b"text\n",
    }  # fmt: skip
    assert (root.folder / "new/same").stat().st_ino == (root.folder / "new/file").stat().st_ino
    shown = lines[
        lines.index("line 3: " + "RUN ls / && ls /proc/self/fd > /dev/null && echo $BASE > /dev/null && id") + 1 :
    ]
    assert "work" not in shown and "home" not in shown and "etc" in shown
    assert any(line.startswith("uid=0") for line in shown)
    assert not {"dev", "proc", "tmp", "etc/resolv.conf", "etc/hosts"} & set(found)


def test_layers_below_are_never_changed_by_a_command(built: Built, images: Images) -> None:
    base = images.root(images.names()[NAME])
    before = files(base.folder)
    built(f"FROM {NAME}\nRUN echo more >> /etc/passwd && chmod 777 /etc/group && rm -rf /etc/removed\n")
    assert files(base.folder) == before
    assert stat.S_IMODE((base.folder / "etc/group").stat().st_mode) == 0o644


def test_a_command_that_fails_is_named_with_its_line_status_and_last_words(built: Built, images: Images) -> None:
    with pytest.raises(ImageError, match=r"(?s)line 3: RUN .* ended with status 3.*\n    why not"):
        built(f"FROM {NAME}\n\nRUN echo why not >&2; exit 3\n")
    assert not [path for path in (images.folder / "new").iterdir() if path.suffix != ".lock"]


def test_a_command_for_a_package_manager_that_is_missing_is_told_the_way_out(built: Built) -> None:
    with pytest.raises(ImageError, match=r"(?s)line 2: .*status 127.*dnf.*docker-archive:FILE"):
        built(f"FROM {NAME}\nRUN dnf -y install gcc\n")


def test_variables_reach_commands_and_words_by_the_rules_of_arg_and_env(built: Built) -> None:
    root = built(
        f"ARG GLOBAL=g\nARG NAME={NAME}\nFROM $NAME\nARG GLOBAL\nARG A=1\nARG GIVEN=default\n"
        "ENV B=$A-$GLOBAL A=env C=$A\n"
        'RUN echo "$A $B $C $GIVEN $TARGETARCH $HOME" > /said\nENV LATER=x\nLABEL l="$A" m=n\n'
        "WORKDIR /${LATER}\nWORKDIR y\n",
        build_args={"GIVEN": "given", "UNKNOWN": "x"},
    )
    assert files(root.folder)["said"] == b"env 1-g 1 given  /root\n"
    assert root.env == {"PATH": "/usr/bin:/bin", "BASE": "1", "B": "1-g", "A": "env", "C": "1", "LATER": "x"}
    assert root.working_dir == "/x/y"


def test_cmd_and_entrypoint_replace_those_of_the_base(built: Built, images: Images) -> None:
    first = built(
        f'FROM {NAME}\nENTRYPOINT ["/run"]\nCMD ["a"]\nUSER app\nEXPOSE 80\nVOLUME /v\nSTOPSIGNAL 9\nMAINTAINER me\n'
    )
    assert (first.entrypoint, first.cmd, first.user) == (["/run"], ["a"], "app")
    images.set_name("first:latest", first.digest)
    second = built("FROM first\nENTRYPOINT echo $HOME\n")
    assert (second.entrypoint, second.cmd) == (["/bin/sh", "-c", "echo $HOME"], [])
    third = built('FROM first\nSHELL ["/bin/dash", "-e", "-c"]\nCMD b\nHEALTHCHECK CMD true\n')
    assert (third.entrypoint, third.cmd) == (["/run"], ["/bin/dash", "-e", "-c", "b"])


def test_stages_copy_from_each_other_and_from_images(built: Built, lines: list[str]) -> None:
    root = built(
        f"FROM {NAME} AS made\nRUN echo made > /made\nFROM {NAME} AS skipped\nRUN exit 1\n"
        "FROM scratch\nCOPY --from=made /made /a\nCOPY --from=0 /etc/pass* /etc/\n"
        f"COPY --from={NAME} /etc/group /etc/\n"
    )
    assert sorted(files(root.folder)) == ["a", "etc", "etc/group", "etc/passwd"]


def test_heredocs_are_scripts_and_files(built: Built) -> None:
    root = built(
        f"FROM {NAME}\nENV V=1\nRUN <<EOF\necho one > /one\necho $V > /v\nEOF\nRUN cat > /two <<X\ntwo $V\nX\n"
        "COPY <<A <<'B' /made/\n\"$V\" it's\nA\n$V\nB\n"
    )
    found = files(root.folder)
    assert (found["one"], found["v"], found["two"]) == (b"one\n", b"1\n", b"two 1\n")
    assert (found["made/A"], found["made/B"]) == (b'"1" it\'s\n', b"$V\n")


def test_add_unpacks_archives_and_refuses_what_leaves_the_folder_or_is_a_url(built: Built, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/f").write_text("f")
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as tar:
        tar.add(tmp_path / "in", "top")
    root = built("FROM scratch\nADD a.tgz /x\nADD in/f /y/\n")
    assert files(root.folder) == {"x": None, "x/top": None, "x/top/f": b"f", "y": None, "y/f": b"f"}
    with tarfile.open(tmp_path / "bad.tar", "w") as tar:
        tar.add(tmp_path / "in/f", "../out")
    with pytest.raises(ImageError, match=r"line 2: bad\.tar: .*leave"):
        built("FROM scratch\nADD bad.tar /x\n")
    with pytest.raises(ImageError, match="would download"):
        built("FROM scratch\nADD https://example.com/x /x\n")


def test_a_second_build_runs_nothing_and_is_the_same_image(built: Built, tmp_path: Path, lines: list[str]) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    text = f"FROM {NAME}\nCOPY a /a\nRUN cat /proc/sys/kernel/random/uuid > /once\nCOPY b /b\nCMD x\n"
    first = built(text)
    (tmp_path / "a").touch()
    assert built(text) == first and from_cache(lines) == 3
    (tmp_path / "b").write_text("changed")
    second = built(text)
    assert from_cache(lines) == 2 and files(second.folder)["once"] == files(first.folder)["once"]
    (tmp_path / "a").write_text("changed")
    third = built(text)
    assert from_cache(lines) == 0 and files(third.folder)["once"] != files(first.folder)["once"]
    assert built(text, use_cache=False) != third


def test_the_same_files_make_the_same_image_in_another_store(built: Built, images: Images, tmp_path: Path) -> None:
    text = f"FROM {NAME}\nRUN mkdir /d && echo 1 > /d/a && touch /d/b\nWORKDIR /w\n"
    first = built(text)
    other = Images(tmp_path / "other/oci")
    add_small_base(other)
    request = BuildRequest(tmp_path, tmp_path / "Dockerfile", environ={})
    assert build(other, request, lambda line: None) == first.digest


def test_scratch_mounts_leave_nothing_in_the_image(built: Built) -> None:
    root = built(
        f"FROM {NAME}\nRUN --mount=type=cache,target=/scratch/kept echo x > /scratch/kept/x && ls /scratch/kept > /ls\n"
    )
    found = files(root.folder)
    assert {name: found[name] for name in ("ls", "scratch", "scratch/kept") if name in found} == {"ls": b"x\n"}


def test_files_are_lent_to_a_command_and_a_change_of_them_runs_it_again(
    built: Built, tmp_path: Path, lines: list[str]
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/f").write_text("1")
    (tmp_path / "folder/ignored").write_text("")
    (tmp_path / ".dockerignore").write_text("folder/ignored\n")
    text = (
        f"FROM {NAME} AS one\nRUN echo stage > /s\nFROM {NAME}\nWORKDIR /w\n"
        "RUN --mount=type=bind,source=folder/f,target=/lent/file --mount=source=folder,target=all "
        "--mount=type=bind,from=one,src=/s,dst=/tmp/s cat /lent/file /tmp/s > /got && ls all >> /got\n"
    )
    root = built(text)
    found = files(root.folder)
    assert found["got"] == b"1stage\nf\n" and not {"lent", "w/all", "tmp"} & set(found)
    assert built(text) == root and from_cache(lines) == 3
    (tmp_path / "folder/f").write_text("2")
    assert files(built(text).folder)["got"] == b"2stage\nf\n"


def test_links_of_an_image_lead_a_build_to_nothing_on_this_machine(
    built: Built, images: Images, tmp_path: Path
) -> None:
    host = tmp_path / "host"
    host.mkdir()
    (host / "secret").write_text("secret")
    host.chmod(0o755)
    before = files(host)
    names = ("dev", "proc", "etc", "cache", "w", "to")
    add_image(
        images, layer(*(link(name, str(host)) for name in names), link("file", f"{host}/secret")), name="evil:latest"
    )
    for source in ("/to/secret", "/file", "/to", "/t*/secret"):
        with pytest.raises(ImageError, match=r"is not in|not there"):
            built(f"FROM scratch\nCOPY --from=evil {source} /x/\n")
    built("FROM evil\nWORKDIR /w/inner\nCOPY Dockerfile /to/made\n")
    with pytest.raises(ImageError, match="line 2: RUN"):
        built("FROM evil\nRUN --mount=type=cache,target=/cache/made --mount=target=/to/lent,source=Dockerfile sh\n")
    assert files(host) == before and stat.S_IMODE(host.stat().st_mode) == 0o755


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has the ids of other users")
def test_users_and_owners_are_those_of_the_image(built: Built, images: Images, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    root = built(
        f"FROM {NAME}\nRUN mkdir -m 777 /w\nCOPY --chown=app:group a /w/a\nCOPY --chown=5 a /w/b\n"
        "USER app\nRUN id > /w/id\n"
    )
    assert files(root.folder)["w/id"].startswith(b"uid=7(app) gid=8")  # type: ignore[union-attr]
    owners = {}
    for blob in images.image(root.digest).manifest.layers:
        with tarfile.open(images.blobs.path(blob.digest)) as tar:
            owners |= {member.name: (member.uid, member.gid) for member in tar}
    assert {name: owners[name] for name in ("w/a", "w/b", "w/id")} == {"w/a": (7, 9), "w/b": (5, 5), "w/id": (7, 8)}
    owned = built(
        f"FROM {NAME}\nRUN mkdir -p /home/app/x && chown -R app:group /home/app\nUSER app\nWORKDIR /home/app\n"
        "RUN touch x/y && ls -ln /home && rm -r x\n"
    )
    assert "home/app" in files(owned.folder) and "home/app/x" not in files(owned.folder)
    with pytest.raises(ImageError, match="has no 'nobody'"):
        built(f"FROM {NAME}\nUSER nobody\nRUN id\n")


_BUILD = """
import os, sys
from pathlib import Path
from thawd.deploy.images.building import BuildRequest, build
from thawd.oci.image_store import Images
images = Images(Path(sys.argv[1]))
folder = Path(sys.argv[2])
print(build(images, BuildRequest(folder, folder / "Dockerfile"), print), flush=True)
"""


def test_an_unprivileged_user_builds_with_one_id() -> None:
    if os.geteuid() != 0:
        pytest.skip("the other tests run as an unprivileged user already")
    # pytest takes the rights of others from its own folders.
    with tempfile.TemporaryDirectory() as folder:
        _build_as_nobody(Path(folder))


def _build_as_nobody(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "Dockerfile").write_text(f"FROM {NAME}\nRUN id > /id && mkdir -m 700 /own && touch /own/f\n")
    store = Images(tmp_path / "oci")
    add_small_base(store)
    subprocess.run(["chown", "-R", "65534:65534", tmp_path / "oci"], check=True)
    command = [unprivileged_python(), "-c", _BUILD, tmp_path / "oci", tmp_path]
    done = subprocess.run(
        command, env={**os.environ, **MODULES}, user=65534, group=65534, extra_groups=[], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert files(images_root := store.root(done.stdout.split()[-1]).folder)["id"].startswith(b"uid=0(root)")  # type: ignore[union-attr]
    assert images_root.joinpath("own/f").exists()


def test_a_build_that_is_killed_leaves_no_process_and_the_next_one_goes_on(images: Images, tmp_path: Path) -> None:
    sleep = f"sleep {os.getpid()}"
    text = f"FROM {NAME}\nRUN echo {tmp_path.name} > /first\nRUN echo started && {sleep}\n"
    (tmp_path / "Dockerfile").write_text(text)
    process = subprocess.Popen(
        [sys.executable, "-c", _BUILD, images.folder, tmp_path], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            if line == "started\n":
                break
        [work] = (images.folder / "new").glob("run-*")
        process.send_signal(signal.SIGKILL)
    begun_s = time.monotonic()
    while _runs(sleep):
        pause(begun_s)
    (tmp_path / "Dockerfile").write_text(text.replace(f" && {sleep}", ""))
    seen: list[str] = []
    digest = build(images, BuildRequest(tmp_path, tmp_path / "Dockerfile"), seen.append)
    assert from_cache(seen) == 1
    images.set_name("went-on:latest", digest)
    images.collect(keep=[images.names()[NAME]])
    assert not work.exists()


def _runs(command: str) -> bool:
    """Whether a process with this command line runs."""
    wanted = command.replace(" ", "\0").encode() + b"\0"
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if process.name.isdecimal() and (process / "cmdline").read_bytes() == wanted:
                return True
    return False
