"""Damaged, foreign and untrusted images are refused before anything is done with them. The message names the reason."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.native.engine import SOURCES, Engine, Trial, cases_of, compile_c, require
from tests.native.processes import NOBODY, Outcome

PLUGIN = next(case for case in cases_of("tls") if case.name == "library_variables")
RICH = cases_of("generations")[0]
FUZZ_RUNS = int(os.environ.get("THAWD_FUZZ_RUNS", "20000"))
FORGED = {
    "layout": "layout version",
    "architecture": "another architecture",
    "file_bytes": "cut off or has grown",
    "data_offset": "data begins at an offset that is not valid",
    "anonymous_offset": "anonymous memory begins at an offset that is not valid",
    "flags": "unknown flags",
    "tables_checksum": "tables are damaged",
}

# The boot id is the same, so the rest of the machine is not compared; test_other_machines.py does that with another.
NOT_COMPARED = {"host.kernel_version", "host.boot_id", "host.cpu_vendor", "host.cpu_signature", "host.xsave_bytes"}
NOT_COMPARED |= {"host.kernel_release", "host.cpu_features", "host.xcr0", "host.xsave_places"}


def refused(outcome: Outcome, *words: str) -> None:
    """Check that the thaw was refused, with a message that contains `words`."""
    assert outcome.status == 120, outcome
    assert outcome.output == ""
    assert outcome.errors.startswith("thawd: cannot thaw here: ")
    assert outcome.errors.count("\n") == 1
    for word in words:
        assert word in outcome.errors, outcome.errors


@pytest.fixture
def frozen(trial: Callable[..., Trial]) -> Trial:
    """A frozen process with an instance of everything."""
    one = trial(RICH)
    assert one.freeze() is None
    return one


@pytest.fixture
def plugged(trial: Callable[..., Trial]) -> Trial:
    """A frozen process that has loaded a library from its own folder."""
    one = trial(PLUGIN)
    assert one.freeze() is None
    return one


@pytest.fixture(scope="session")
def forge(engine: Engine) -> Path:
    """The program that changes a header and corrects its checksum."""
    target = engine.folder / "forge_image"
    compile_c([SOURCES / "forge_image.c"], target)
    return target


def test_every_field_that_tells_machines_and_versions_apart_is_compared(frozen: Trial, forge: Path) -> None:
    listed = subprocess.run([forge], capture_output=True, text=True, check=True).stdout.split()
    assert set(listed) == set(FORGED) | NOT_COMPARED
    for name, word in FORGED.items():
        forged = frozen.folder / "forged"
        shutil.copy2(frozen.image, forged)
        subprocess.run([forge, forged, name], check=True)
        refused(frozen.thaw(image=forged), word)
    require(RICH, frozen.thaw())


def test_a_changed_byte_in_header_or_tables_is_found(frozen: Trial) -> None:
    whole = bytearray(frozen.image.read_bytes())
    end = int.from_bytes(whole[40:48], "little")  # data_offset; the tables end there or before
    used = len(bytes(whole[:end]).rstrip(b"\0"))
    places = [*range(0, 600, 7), *random.Random(3).sample(range(4096, used), 60)]
    damaged = frozen.folder / "damaged"
    shutil.copy2(frozen.image, damaged)
    with damaged.open("r+b", buffering=0) as file:
        for place in places:
            os.pwrite(file.fileno(), bytes([whole[place] ^ 0x55]), place)
            refused(frozen.thaw(image=damaged))
            os.pwrite(file.fileno(), bytes([whole[place]]), place)
    require(RICH, frozen.thaw(image=damaged))


def test_an_image_that_was_cut_off_is_found(frozen: Trial) -> None:
    size = frozen.image.stat().st_size
    cut = frozen.folder / "cut"
    for left in (0, 1, 100, 4095, 4096, 4097, 10_000, size // 2, size - 4096, size - 1):
        shutil.copy2(frozen.image, cut)
        os.truncate(cut, left)
        refused(frozen.thaw(image=cut), "too short" if left < 4096 else "the image")
    shutil.copy2(frozen.image, cut)
    with cut.open("ab") as file:
        file.write(b"x")
    refused(frozen.thaw(image=cut), "has grown")


def test_tables_of_another_image_are_found(frozen: Trial, plugged: Trial) -> None:
    mixed = frozen.folder / "mixed"
    shutil.copy2(frozen.image, mixed)
    with mixed.open("r+b") as file, plugged.image.open("rb") as other:
        other.seek(4096)
        file.seek(4096)
        file.write(other.read(20_000))
    refused(frozen.thaw(image=mixed), "damaged (checksum)")


def test_what_is_no_image_is_refused(frozen: Trial) -> None:
    text, pipe = frozen.folder / "text", frozen.folder / "pipe"
    text.write_text("not an image\n" * 1000)
    text.chmod(0o600)
    os.mkfifo(pipe, 0o600)
    refused(frozen.thaw(image=text), "not an image")
    refused(frozen.thaw(image=frozen.folder), "not a regular file", str(frozen.folder))
    refused(frozen.thaw(image=pipe), "not a regular file", str(pipe))
    refused(frozen.thaw(image=frozen.folder / "missing"), "no image", str(frozen.folder / "missing"))


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o660, 0o604, 0o602, 0o601])
def test_an_image_that_others_may_use_is_refused(frozen: Trial, mode: int) -> None:
    frozen.image.chmod(mode)
    refused(frozen.thaw(), "0600", str(frozen.image))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_an_image_of_another_user_is_refused(trial: Callable[..., Trial]) -> None:
    one = trial(RICH, identity=NOBODY)
    assert one.freeze() is None
    require(RICH, one.thaw())
    os.chown(one.image, 12345, 12345)
    refused(one.thaw(), "cannot be opened", str(one.image))
    as_root = Trial(one.engine, RICH, one.folder)
    refused(as_root.thaw(), "another user", str(one.image))


def test_a_library_that_changed_is_refused_and_named(plugged: Trial) -> None:
    library = plugged.folder / "plugin.so"
    about = library.stat()
    require(PLUGIN, plugged.thaw())
    os.utime(library, ns=(about.st_atime_ns, about.st_mtime_ns + 1))
    refused(plugged.thaw(), "changed", str(library))
    os.utime(library, ns=(about.st_atime_ns, about.st_mtime_ns))
    require(PLUGIN, plugged.thaw())
    with library.open("ab") as file:
        file.write(b"\0")
    os.utime(library, ns=(about.st_atime_ns, about.st_mtime_ns))
    refused(plugged.thaw(), "changed", str(library))
    os.truncate(library, about.st_size)
    os.utime(library, ns=(about.st_atime_ns, about.st_mtime_ns))
    require(PLUGIN, plugged.thaw())
    twin = plugged.folder / "twin"
    shutil.copy2(library, twin)
    twin.rename(library)
    assert library.stat().st_mtime_ns == about.st_mtime_ns
    refused(plugged.thaw(), "changed", str(library))
    library.unlink()
    refused(plugged.thaw(), "gone", str(library))


def test_a_working_folder_that_is_gone_is_refused_and_named(trial: Callable[..., Trial]) -> None:
    case = next(case for case in cases_of("processes") if case.name == "folder_and_umask")
    one = trial(case)
    assert one.freeze() is None
    (one.folder / "within").rmdir()
    refused(one.thaw(), "working folder", str(one.folder / "within"))


def test_the_parser_of_images_withstands_random_changes(engine: Engine, frozen: Trial) -> None:
    """THAWD_FUZZ_RUNS=1000000 makes a million runs. They use the address and undefined-behaviour sanitizers."""
    target = engine.folder / "fuzz_image"
    sanitizers = ("-O2", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    compile_c([SOURCES / "fuzz_image.c", SOURCES.parent / "check.c"], target, *sanitizers)
    seed = os.environ.get("THAWD_FUZZ_SEED", "1")
    done = subprocess.run(
        [target, frozen.image, str(FUZZ_RUNS), seed], capture_output=True, text=True, timeout=3000, check=False
    )
    assert done.returncode == 0, f"seed {seed}: {done.stdout}{done.stderr}"
    runs, accepted = (int(word) for word in done.stdout.split() if word.isdigit())
    assert runs == FUZZ_RUNS
    assert 0.02 < accepted / runs < 0.98, "both ways through the parser are taken"
