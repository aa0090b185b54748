"""Builds do no harm: to files of this machine, to owners and modes of an image, and to the cache of later builds."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.small_base import NAME, add_small_base
from tests.privileges import MODULES, unprivileged_python
from tests.unit.oci_layers import add_image, entry, files, folder, layer, link
from thawd.deploy.images import step_records
from thawd.deploy.images.building import BuildRequest, build
from thawd.errors import ImageError
from thawd.oci.image_store import Images

Built = Callable[[str], str]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Images:
    store = Images(tmp_path_factory.mktemp("store") / "oci")
    add_small_base(store)
    return store


@pytest.fixture
def built(images: Images, tmp_path: Path) -> Built:
    """Builds a Dockerfile in `tmp_path`, and returns the image's digest."""

    def built(text: str) -> str:
        (tmp_path / "Dockerfile").write_text(text)
        return build(images, BuildRequest(tmp_path, tmp_path / "Dockerfile"), lambda line: None)

    return built


def layers_of(images: Images, digest: str) -> list[dict[str, tuple[int, int, int]]]:
    """Mode, user and group of the entries of each of an image's layers, by path."""
    found = []
    for blob in images.image(digest).manifest.layers:
        with tarfile.open(images.blobs.path(blob.digest)) as tar:
            found.append({member.name: (member.mode, member.uid, member.gid) for member in tar})
    return found


def test_a_command_changes_neither_files_nor_devices_nor_settings_of_the_machine(built: Built, images: Images) -> None:
    # Without the protection, these commands would set modes and settings to the values that they have.
    mode = stat.S_IMODE(Path("/dev/null").stat().st_mode)
    swappiness = Path("/proc/sys/vm/swappiness").read_text().strip()
    hosts = Path("/etc/hosts")
    before = hosts.read_bytes()
    try:
        digest = built(
            f"FROM {NAME}\n"
            "RUN echo mine >> /etc/hosts && cat /etc/hosts > /seen && echo > /dev/null; "
            f"chmod {mode:o} /dev/null && touch /device; "
            f"echo {swappiness} > /proc/sys/vm/swappiness && touch /setting; ls /\n"
            "RUN cat /etc/hosts > /later\n"
        )
        assert hosts.read_bytes() == before
    finally:
        if hosts.read_bytes() != before:
            hosts.write_bytes(before)
    found = files(images.root(digest).folder)
    assert found["seen"] == before + b"mine\n" and found["later"] == before
    assert not {"device", "setting", "etc/hosts", "etc/resolv.conf"} & set(found)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has the ids of other users")
def test_a_link_in_place_of_a_folder_leads_no_owner_to_the_machines_files(
    built: Built, images: Images, tmp_path: Path
) -> None:
    (tmp_path / "host").mkdir()
    (tmp_path / "host/key").write_text("key")
    add_image(
        images,
        layer(folder("d"), entry("d/key", b"", uid=1000)),
        layer(link("d", str(tmp_path / "host"))),
        name="owners:latest",
    )
    with pytest.raises(ImageError, match="RUN"):
        built("FROM owners\nRUN sh\n")
    assert (tmp_path / "host/key").stat().st_uid == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has the ids of other users")
def test_folders_that_an_image_has_keep_their_owners_and_modes_when_something_is_put_into_them(
    built: Built, images: Images, tmp_path: Path
) -> None:
    (tmp_path / "src").mkdir(mode=0o700)
    (tmp_path / "src/f").write_text("f")
    base = f"FROM {NAME}\nRUN mkdir -m 555 -p /home/app/sub && chmod 751 /home/app && chown -R app:group /home/app\n"
    sub, home = (0o555, 7, 9), (0o751, 7, 9)
    for text, place in (
        ("COPY src/f /home/app/sub/g", "home/app/sub/g"),
        ("COPY src /home/app/sub", "home/app/sub/f"),
        ("ADD src /home/app/sub/", "home/app/sub/f"),
        ("WORKDIR /home/app/sub/g", "home/app/sub/g"),
        ("RUN echo > /home/app/sub/g", "home/app/sub/g"),
    ):
        entries = layers_of(images, built(f"{base}{text}\n"))[-1]
        assert (entries["home/app"], entries["home/app/sub"]) == (home, sub), text
        assert place in entries


def test_a_folder_is_not_copied_over_a_link_of_the_image(built: Built, images: Images, tmp_path: Path) -> None:
    (tmp_path / "tree/lib").mkdir(parents=True)
    (tmp_path / "tree/lib/f").write_text("f")
    base = f"FROM {NAME}\nRUN mkdir -p /in/real && ln -s real /in/lib && echo > /in/file\n"
    with pytest.raises(ImageError, match="line 3: a folder would be copied to /in/lib, where the image has a link"):
        built(f"{base}COPY tree /in\n")
    with pytest.raises(ImageError, match="line 3: a folder would be copied to /in/file, where the image has a file"):
        built(f"{base}COPY tree/lib /in/file\n")
    found = files(images.root(built(f"{base}COPY tree/lib /in/lib\n")).folder)
    assert found["in/lib"] == "real" and found["in/real/f"] == b"f"


def test_files_that_change_while_they_are_copied_are_not_taken_for_what_they_were(
    built: Built, images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_text("before")
    write = step_records.write_layer

    def late(*arguments: object) -> object:
        (tmp_path / "f").write_text("after!")
        return write(*arguments)  # type: ignore[arg-type]

    text = f"FROM {NAME}\nCOPY f /copied\n"
    with monkeypatch.context() as patched:
        patched.setattr(step_records, "write_layer", late)
        with pytest.raises(ImageError, match="line 2: files were changed while they were copied; build again"):
            built(text)
    for content in ("before", "after!"):
        (tmp_path / "f").write_text(content)
        assert files(images.root(built(text)).folder)["copied"] == content.encode()


def test_a_process_that_a_command_leaves_behind_ends_with_the_command(built: Built, images: Images) -> None:
    left = f"sleep {os.getpid()}.25"
    digest = built(f"FROM {NAME}\nRUN trap '' HUP TERM; {left} & echo $! > /left\n")
    assert int(files(images.root(digest).folder)["left"] or 0) > 0
    running = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            running.append(path.read_bytes())
    assert left.replace(" ", "\0").encode() + b"\0" not in running


def test_a_step_is_carried_out_again_if_and_only_if_something_that_it_sees_has_changed(
    images: Images, tmp_path: Path
) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/taken").write_text("1")
    (tmp_path / "src/left-out").write_text("1")
    (tmp_path / ".dockerignore").write_text("src/left-out\n")
    text = f"FROM {NAME}\nCOPY src /src\nARG WHO\nENV GREETING=hello\nRUN echo $WHO > /who\n"
    (tmp_path / "Dockerfile").write_text(text)

    def carried_out(**build_args: str) -> tuple[int, bytes | str | None]:
        lines: list[str] = []
        request = BuildRequest(tmp_path, tmp_path / "Dockerfile", build_args=build_args)
        found = files(images.root(build(images, request, lines.append)).folder)
        return 2 - sum("from an earlier build" in line for line in lines), found["who"]

    assert carried_out(WHO="me") == (2, b"me\n")
    (tmp_path / "src/left-out").write_text("2")
    assert carried_out(WHO="me") == (0, b"me\n")
    assert carried_out(WHO="you") == (1, b"you\n")
    (tmp_path / "Dockerfile").write_text(text.replace("hello", "bye"))
    assert carried_out(WHO="you")[0] == 1
    (tmp_path / ".dockerignore").write_text("")
    assert carried_out(WHO="you")[0] == 2
    (tmp_path / "src/taken").chmod(0o600)
    assert carried_out(WHO="you")[0] == 2


_BUILD = """
import sys
from pathlib import Path
from thawd.deploy.images.building import BuildRequest, build
from thawd.oci.image_store import Images
folder = Path(sys.argv[1])
print(build(Images(folder / "oci"), BuildRequest(folder, folder / "Dockerfile"), print), flush=True)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="an unprivileged user cannot become another one")
def test_an_unprivileged_build_keeps_what_its_owner_may_not_read() -> None:
    # pytest takes the rights of others from its own folders.
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o755)
        (place / "Dockerfile").write_text(
            f"FROM {NAME}\nRUN echo s > /shadow && mkdir /shut && echo i > /shut/in && chmod 0 /shadow /shut\n"
            "RUN echo > /more\n"
        )
        store = Images(place / "oci")
        add_small_base(store)
        subprocess.run(["chown", "-R", "65534:65534", place / "oci"], check=True)
        done = subprocess.run(
            [unprivileged_python(), "-c", _BUILD, place],
            env={**os.environ, **MODULES}, user=65534, group=65534, extra_groups=[], capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        digest = done.stdout.split()[-1]
        first = layers_of(store, digest)[1]
        assert first["shadow"] == (0, 0, 0) and first["shut"][0] == 0 and "shut/in" in first
        root = store.root(digest).folder
        assert files(root)["shadow"] == b"s\n" and stat.S_IMODE((root / "shut").stat().st_mode) == 0o500
