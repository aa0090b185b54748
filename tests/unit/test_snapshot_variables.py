"""`thawd.snapshot.uniqueness`: the environment variables of a copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.interpreters_here import INTERPRETERS
from tests.unit.renewed_copies import told

ENVIRONMENT = """
    import subprocess
    given = {"SAME": "1", "CHANGED": "1", "GONE": "1", "GONE_BUT_CHANGED_BY_INIT": "1", "UNSET_BY_INIT": "1",
             "CHANGED_BY_INIT": "1", "CHANGED_BY_INIT_AND_GIVEN_ANEW": "1"}
    os.environ.update(given)
    # What init does:
    os.environ["SET_BY_INIT"] = os.environ["SET_BY_INIT_AND_GIVEN"] = "init"
    os.environ["CHANGED_BY_INIT"] = os.environ["CHANGED_BY_INIT_AND_GIVEN_ANEW"] = "init"
    os.environ["GONE_BUT_CHANGED_BY_INIT"] = "init"
    del os.environ["UNSET_BY_INIT"]
    new = {"SAME": "1", "CHANGED": "2", "CHANGED_BY_INIT": "1", "CHANGED_BY_INIT_AND_GIVEN_ANEW": "2",
           "UNSET_BY_INIT": "1", "SET_BY_INIT_AND_GIVEN": "2", "NEW": "2"}
    changed = uniqueness.environment(new, original=given)
    # A child sees what the C library has.
    seen = subprocess.run(["/usr/bin/env"], capture_output=True, text=True).stdout.splitlines()
    children = dict(line.split("=", 1) for line in seen)
    names = {*given, *new, "SET_BY_INIT"}
    tell([changed, {n: os.environ.get(n) for n in names}, {n: children.get(n) for n in names}])
"""


@pytest.mark.parametrize("python", INTERPRETERS)
def test_variables_are_those_of_a_process_started_with_the_new_ones_and_what_init_set(python: str) -> None:
    changed, python_sees, child_sees = told(ENVIRONMENT, python=python)
    assert python_sees == {
        "SAME": "1",
        "CHANGED": "2",
        "NEW": "2",
        "GONE": None,
        "GONE_BUT_CHANGED_BY_INIT": "init",
        "UNSET_BY_INIT": None,
        "SET_BY_INIT": "init",
        "SET_BY_INIT_AND_GIVEN": "2",
        "CHANGED_BY_INIT": "init",
        "CHANGED_BY_INIT_AND_GIVEN_ANEW": "2",
    }
    assert child_sees == python_sees
    assert changed == ["CHANGED", "CHANGED_BY_INIT_AND_GIVEN_ANEW", "GONE", "NEW", "SET_BY_INIT_AND_GIVEN"]


def test_variables_may_be_any_bytes_and_what_cannot_be_set_is_left_out() -> None:
    code = r"""
        new = {b"N\xff": b"v\xfe", b"": b"x", b"A=B": b"x", b"C": b"\0"}
        changed = uniqueness.environment(new, original={})
        again = uniqueness.environment(new, original={})
        tell([[os.fsencode(name).hex() for name in changed], again, os.environb[b"N\xff"].hex(), b"C" in os.environb])
    """
    assert told(code) == [["4eff"], [], "76fe", False]


def test_what_a_process_was_given_is_known_whatever_init_has_changed() -> None:
    code = """
        os.environ["GIVEN"] = "changed"
        os.environ["MADE"] = "1"
        given = uniqueness.started_with()
        tell([given[b"GIVEN"].decode(), b"MADE" in given])
    """
    assert told(code, GIVEN="a=b") == ["a=b", False]


@pytest.mark.parametrize("python", INTERPRETERS)
def test_local_time_follows_a_new_time_zone(python: str) -> None:
    code = """
        import time
        before = time.localtime(0).tm_gmtoff
        uniqueness.environment({"TZ": "ABC-5"}, original={"TZ": "UTC"})
        tell([before, time.localtime(0).tm_gmtoff, time.tzname[0]])
    """
    assert told(code, python=python, TZ="UTC") == [0, 5 * 3600, "ABC"]


@pytest.mark.parametrize(("chosen", "ends_in"), [(None, "new"), ("old", "new"), ("own", "own")])
def test_the_temporary_folder_follows_tmpdir_unless_the_function_chose_one(
    tmp_path: Path, chosen: str | None, ends_in: str
) -> None:
    for name in ("old", "new", "own"):
        (tmp_path / name).mkdir()
    code = f"""
        import tempfile
        tempfile.gettempdir()
        folder = {str(tmp_path)!r}
        if {chosen!r}:
            tempfile.tempdir = folder + "/" + {chosen!r}
        uniqueness.environment({{"TMPDIR": folder + "/new"}}, original={{"TMPDIR": folder + "/old"}})
        tell(tempfile.gettempdir())
    """
    assert told(code, TMPDIR=str(tmp_path / "old")) == str(tmp_path / ends_in)


def test_a_temporary_folder_of_the_system_gives_way_to_a_new_tmpdir(tmp_path: Path) -> None:
    code = f"""
        import tempfile
        assert tempfile.gettempdir() == "/tmp"
        uniqueness.environment({{"TMPDIR": {str(tmp_path)!r}}}, original={{}})
        tell(tempfile.gettempdir())
    """
    assert told(code) == str(tmp_path)
