"""Steps of builds: which layers of earlier builds are taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from thawd.deploy.images.step_records import StepRecords
from thawd.oci.image_store import Images
from thawd.oci.layer_writing import NewEntry


@pytest.fixture
def records(tmp_path: Path) -> StepRecords:
    return StepRecords(Images(tmp_path / "oci"), use_cache=True, on_line=lambda line: None)


def making(made: list[int], *files: Path) -> Callable[[], Mapping[str, NewEntry]]:
    def make() -> Mapping[str, NewEntry]:
        made.append(1)
        return {path.name: NewEntry(0o644, path) for path in files}

    return make


def test_a_layer_of_this_machines_files_is_made_again_when_one_of_them_has_changed_or_is_gone(
    records: StepRecords, tmp_path: Path
) -> None:
    library, other = tmp_path / "lib.so", tmp_path / "other.so"
    library.write_text("1")
    other.write_text("2")
    made: list[int] = []
    first = records.layer("key", making(made, library, other), of_machine=True)
    assert records.layer("key", making(made, library, other), of_machine=True) == first and len(made) == 1
    library.write_text("one")
    second = records.layer("key", making(made, library, other), of_machine=True)
    assert second != first and len(made) == 2
    other.unlink()
    assert records.layer("key", making(made, library), of_machine=True) not in (first, second) and len(made) == 3


def test_a_layer_of_files_that_the_key_names_is_taken_without_them(records: StepRecords, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("f")
    made: list[int] = []
    first = records.layer("key", making(made, tmp_path / "f"))
    (tmp_path / "f").unlink()
    assert records.layer("key", making(made)) == first and len(made) == 1
