"""`thawd.publishing.interpreters`: which interpreter a setting selects, and the message if there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.unit.made_up_programs import program, python
from thawd.errors import EnvironmentBuildError
from thawd.publishing import interpreters
from thawd.publishing.interpreters import Interpreter, find_interpreter

ME = Interpreter(Path(sys.executable), sys.version_info[:3])


def failure(wanted: str, *, folder: Path, environ: Mapping[str, str]) -> str:
    with pytest.raises(EnvironmentBuildError) as refused:
        find_interpreter(wanted, folder=folder, environ=environ)
    return refused.value.message


def test_without_a_wish_it_is_the_interpreter_of_thawd() -> None:
    assert find_interpreter(None) == ME


def test_a_version_is_found_on_path(tmp_path: Path) -> None:
    found = python(tmp_path / "bin" / "python3.9", "3.9.18")

    assert find_interpreter("3.9", environ={"PATH": str(tmp_path / "bin")}) == Interpreter(found, (3, 9, 18))


def test_a_real_interpreter_is_found_and_asked(tmp_path: Path) -> None:
    minor = f"{sys.version_info[0]}.{sys.version_info[1]}"
    (tmp_path / f"python{minor}").symlink_to(sys.executable)

    found = find_interpreter(minor, environ={"PATH": str(tmp_path)})

    assert found.version == sys.version_info[:3]
    assert subprocess.run([found.path, "-c", "pass"], check=False).returncode == 0


def test_a_shim_that_leads_nowhere_is_passed_over(tmp_path: Path) -> None:
    program(tmp_path / "shims" / "python3.9", "echo 'pyenv: python3.9: command not found' >&2; exit 127")
    good = python(tmp_path / "bin" / "python3.9", "3.9.1")

    found = find_interpreter("3.9", environ={"PATH": f"{tmp_path}/shims:{tmp_path}/bin"})

    assert found.path == good


def test_of_a_shim_that_works_the_interpreter_behind_it_is_used(tmp_path: Path) -> None:
    behind = python(tmp_path / "versions" / "python3.9", "3.9.1")
    program(tmp_path / "shims" / "python3.9", f'exec {behind} "$@"')

    assert find_interpreter("3.9", environ={"PATH": str(tmp_path / "shims")}).path == behind


@pytest.mark.parametrize(
    ("place", "environ"),
    [
        (".pyenv/versions/3.9.18/bin", {}),
        ("elsewhere/versions/3.9.18/bin", {"PYENV_ROOT": "{}/elsewhere"}),
        (".local/share/uv/python/cpython-3.9.18-linux-x86_64-gnu/bin", {}),
        ("xdg/uv/python/cpython-3.9-linux/bin", {"XDG_DATA_HOME": "{}/xdg"}),
        ("pythons/cpython-3.9.18/bin", {"UV_PYTHON_INSTALL_DIR": "{}/pythons"}),
    ],
)
def test_a_version_is_found_among_those_of_version_managers(
    tmp_path: Path, place: str, environ: dict[str, str]
) -> None:
    found = python(tmp_path / place / "python3.9", "3.9.18")
    environ = {name: value.format(tmp_path) for name, value in environ.items()}

    assert find_interpreter("3.9", environ={"HOME": str(tmp_path), "PATH": "", **environ}).path == found


def test_the_newest_micro_version_comes_first_unless_one_is_asked_for(tmp_path: Path) -> None:
    for version in ("3.9.2", "3.9.18", "3.9.9"):
        python(tmp_path / ".pyenv" / "versions" / version / "bin" / "python3.9", version)
    environ = {"HOME": str(tmp_path), "PATH": ""}

    assert find_interpreter("3.9", environ=environ).version == (3, 9, 18)
    assert find_interpreter("3.9.9", environ=environ).version == (3, 9, 9)


def test_a_command_is_looked_for_on_path(tmp_path: Path) -> None:
    found = python(tmp_path / "bin" / "my-python", "3.12.1")

    assert find_interpreter("my-python", environ={"PATH": str(tmp_path / "bin")}).path == found


@pytest.mark.parametrize("wish", ["./venv/bin/python", "venv", "venv/", "{}/venv", "~/venv", "sub/../venv"])
def test_paths_of_interpreters_and_environments_begin_at_the_folder(tmp_path: Path, wish: str) -> None:
    found = python(tmp_path / "venv" / "bin" / "python", "3.10.1")

    assert find_interpreter(wish.format(tmp_path), folder=tmp_path, environ={"HOME": str(tmp_path)}).path == found


def test_a_path_stays_as_it_was_given_even_if_it_leads_elsewhere(tmp_path: Path) -> None:
    behind = python(tmp_path / "real" / "python3.9", "3.9.1")
    wrapper = program(tmp_path / "wrapper", f'exec {behind} "$@"')

    assert find_interpreter(str(wrapper)).path == wrapper


def test_packages_and_variables_of_the_user_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "sys.py").write_text("raise SystemExit(3)")
    (tmp_path / "sitecustomize.py").write_text("print('hello')")

    found = find_interpreter(sys.executable, folder=tmp_path, environ={"PYTHONPATH": str(tmp_path), "PYTHONHOME": "/"})

    assert found == ME


def test_a_version_that_is_not_there_is_told_with_what_was_tried_and_the_way_out(tmp_path: Path) -> None:
    shim = program(tmp_path / "python3.9", "echo 'pyenv: not found' >&2; exit 127")
    other = python(tmp_path / ".pyenv/versions/3.9.0/bin/python3.9", "3.9.0")

    message = failure("3.9.77", folder=tmp_path, environ={"PATH": str(tmp_path), "HOME": str(tmp_path)})

    assert f"{shim} (status 127: pyenv: not found)" in message
    assert f"{other} (it is Python 3.9.0)" in message
    assert "uv python install 3.9.77" in message
    assert 'python = "/path/to/python"' in message


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("printf 'thawd:\\ncpython\\n3.8.1\\n\\n'", "it is Python 3.8.1; 3.9 to 3.14 are supported"),
        ("printf 'thawd:\\ncpython\\n3.15.0\\n\\n'", "it is Python 3.15.0; 3.9 to 3.14 are supported"),
        ("printf 'thawd:\\npypy\\n3.10.0\\n\\n'", "it is pypy, not CPython"),
        ("echo hello", "status 0: hello"),
        ("exit 3", "status 3: it printed nothing"),
        ("kill -9 $$", "status -9: it printed nothing"),
    ],
)
def test_a_program_that_is_no_supported_interpreter_is_told(tmp_path: Path, text: str, told: str) -> None:
    path = program(tmp_path / "candidate", text)

    message = failure("./candidate", folder=tmp_path, environ={})

    assert message.startswith(f"The interpreter ./candidate cannot be used; tried: {path} ({told}).")


def test_programs_that_cannot_be_started_are_told(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no program")
    (tmp_path / "garbage").write_bytes(b"\x7fELF garbage")
    (tmp_path / "garbage").chmod(0o755)
    (tmp_path / "empty").mkdir()

    assert "text (Permission denied)" in failure("./text", folder=tmp_path, environ={})
    assert "garbage (Exec format error)" in failure("./garbage", folder=tmp_path, environ={})
    assert "nope (No such file or directory)" in failure("./nope", folder=tmp_path, environ={})
    assert "empty/bin/python (No such file" in failure("empty", folder=tmp_path, environ={})
    assert '"nope" is not on PATH' in failure("nope", folder=tmp_path, environ={"PATH": ""})


def test_a_program_that_never_answers_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "candidate", "exec sleep 60")
    monkeypatch.setattr(interpreters, "_ANSWER_WITHIN_S", 0.2)

    assert "(no answer within 0.2 s)" in failure("./candidate", folder=tmp_path, environ={"PATH": os.defpath})
