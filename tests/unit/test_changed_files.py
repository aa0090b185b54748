"""`thawd.runtime.changed_files`: it records which files init read, and restores `open` afterwards."""

from __future__ import annotations

import builtins
import io
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from thawd.runtime.changed_files import SourceFiles, changed

REAL = builtins.open


@pytest.fixture
def sources() -> Iterator[SourceFiles]:
    watching = SourceFiles()
    watching.watch()
    yield watching
    watching.stop()
    assert builtins.open is io.open is REAL


def stamped(sources: SourceFiles, *kept: str) -> set[str]:
    return {stamp[0] for stamps in sources.stamps(list(kept)) for stamp in stamps}


def test_files_opened_for_reading_are_seen_however_they_are_opened(sources: SourceFiles, tmp_path: Path) -> None:
    for name in "abcd":
        (tmp_path / name).write_bytes(b"x")
    seen_before = stamped(sources)
    with open(tmp_path / "a") as file:
        assert file.read() == "x"
    with open(os.fsencode(tmp_path / "b"), "rb") as file:
        file.read()
    (tmp_path / "c").read_text()
    with io.open(str(tmp_path / "d"), mode="r", encoding="utf-8") as file:  # noqa: UP020 - it is the alias that is tried
        file.read()
    assert stamped(sources) - seen_before >= {str(tmp_path / name) for name in "abcd"}


def test_what_is_written_is_not_a_source(sources: SourceFiles, tmp_path: Path) -> None:
    with open(tmp_path / "log", "a") as file:
        file.write("x")
    with open(tmp_path / "both", "w+") as file:
        file.write("x")
    assert not {path for path in stamped(sources) if path.startswith(str(tmp_path))}


def test_what_is_kept_devices_and_the_kernels_files_are_no_sources(sources: SourceFiles, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "temporary").mkdir()
    (tmp_path / "code" / "data").write_text("x")
    (tmp_path / "temporary" / "data").write_text("x")
    (tmp_path / "code too").write_text("x")
    kept = (tmp_path / "code" / "data", tmp_path / "temporary" / "data")
    for path in (*kept, tmp_path / "code too", Path("/proc/self/status"), Path(os.devnull)):
        with open(path) as file:
            file.read(1)
    seen = {
        path
        for path in stamped(sources, str(tmp_path / "code"), str(tmp_path / "temporary"))
        if not path.startswith(sys.prefix)
    }
    assert str(tmp_path / "code too") in seen
    assert not seen & set(map(str, kept))
    assert not {path for path in seen if path.startswith(("/proc", "/dev"))}


def test_modules_are_sources_and_none_is_waked_by_the_look(
    sources: SourceFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lazy(types.ModuleType):
        def __getattribute__(self, name: str) -> object:
            raise AssertionError(f"it was asked for {name}")

    lazy = Lazy("lazy")
    object.__getattribute__(lazy, "__dict__")["__file__"] = str(tmp_path / "lazy.py")
    (tmp_path / "lazy.py").touch()
    monkeypatch.setitem(sys.modules, "lazy", lazy)
    monkeypatch.setitem(sys.modules, "no module", 5)  # type: ignore[arg-type]
    seen = stamped(sources)
    assert str(tmp_path / "lazy.py") in seen
    assert pytest.__file__ in seen


def test_open_as_an_attribute_of_a_class_does_not_bind(sources: SourceFiles, tmp_path: Path) -> None:
    class Reader:
        opener = open

    (tmp_path / "a").write_text("x")
    with Reader().opener(tmp_path / "a") as file:
        assert file.read() == "x"
    assert open.__name__ == "open"


def test_a_descriptor_may_be_opened_and_errors_are_as_ever(sources: SourceFiles, tmp_path: Path) -> None:
    with open(os.open(os.devnull, os.O_RDONLY)) as file:
        assert file.read() == ""
    with pytest.raises(FileNotFoundError):
        open(tmp_path / "missing")  # noqa: SIM115
    with pytest.raises(TypeError):
        open(3.5)  # type: ignore[call-overload]  # noqa: SIM115


@pytest.mark.parametrize("change", ["contents", "size", "replaced", "gone", "time"])
def test_any_change_is_found(tmp_path: Path, change: str) -> None:
    path = tmp_path / "a"
    path.write_text("one")
    sources = SourceFiles()
    sources._opened.add(str(path))
    sources._begun_ns = path.stat().st_mtime_ns + 1
    stamps = sources.stamps(["/nowhere"])
    assert changed(stamps) is None
    if change == "contents":
        path.write_text("two")
        os.utime(path, ns=(1, 1))
    elif change == "size":
        path.write_text("longer")
    elif change == "replaced":
        (tmp_path / "b").write_text("one")
        os.utime(tmp_path / "b", ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
        (tmp_path / "b").replace(path)
    elif change == "gone":
        path.unlink()
    else:
        os.utime(path, ns=(1, 1))
    assert changed(stamps) == str(path)


def test_a_file_that_changes_while_init_runs_counts_as_changed(sources: SourceFiles, tmp_path: Path) -> None:
    """It is unknown whether init saw the old or the new contents."""
    path = tmp_path / "a"
    path.write_text("one")
    with open(path) as file:
        file.read()
    (stamps,) = sources.stamps(["/nowhere"])
    assert changed([[stamp for stamp in stamps if stamp[0] == str(path)]]) == str(path)


def test_what_a_base_has_loaded_keeps_the_stamp_of_the_base(sources: SourceFiles, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("one")
    with open(path) as file:
        file.read()
    of_base = (str(path), 1, 2, 3)
    first, own = sources.stamps(["/nowhere"], [[of_base]])
    assert first == [of_base]
    assert str(path) not in {stamp[0] for stamp in own}
    assert changed([first, own]) == str(path)
