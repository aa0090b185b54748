"""Virtual environments made by uv: the same packages and settings as with pip; pip is used if uv would differ."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.privileges import MODULES, unprivileged_python
from tests.unit.interpreters_here import INTERPRETERS
from tests.unit.made_up_programs import program
from tests.unit.tiny_package import requirements_file, wheel
from thawd.errors import EnvironmentBuildError
from thawd.publishing import uv as uv_module
from thawd.publishing.interpreters import Interpreter, find_interpreter, prepare_environment
from thawd.publishing.requirement_files import wants_hashes, why_pip
from thawd.publishing.uv import find_uv, uv_settings

ME = Interpreter(Path(sys.executable), sys.version_info[:3])
UV = find_uv()
needs_uv = pytest.mark.skipif(UV is None, reason="uv is not installed here")


@pytest.fixture(autouse=True)
def no_settings_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uv_module, "_OF_THE_MACHINE", tmp_path / "no-such-file")


def prepare(
    requirements: Path, *, environ: dict[str, str] | None = None, python: Interpreter = ME, uv: Path | None = UV
) -> tuple[Path, list[str]]:
    """Make a virtual environment. Return it with the printed lines. The machine's caches and settings are not used."""
    folder, lines = requirements.parent, list[str]()
    plain = {
        name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_", "XDG_", "SSL_CERT"))
    }
    plain |= {"HOME": str(folder), "XDG_CONFIG_DIRS": str(folder), "UV_CACHE_DIR": str(folder / "cache")}
    variables = {name: value for name, value in (plain | (environ or {})).items() if value}
    call = prepare_environment(
        requirements, python, folder / "environments", on_line=lines.append, environ=variables, uv=uv
    )
    return asyncio.run(call), lines


def version_in(python: Path) -> str:
    """Return the version of `tiny` in a virtual environment."""
    said = subprocess.run(
        [python, "-c", "import tiny; print(tiny.VERSION)"], capture_output=True, text=True, check=True
    )
    return said.stdout.strip()


def by_pip(lines: list[str]) -> bool:
    return any(line.startswith("Successfully installed") for line in lines)


@needs_uv
@pytest.mark.parametrize("python", INTERPRETERS, ids=lambda python: Path(python).name)
def test_uv_installs_for_each_interpreter_without_a_network(tmp_path: Path, python: str) -> None:
    wheel(tmp_path / "wheels")
    requirements = requirements_file(tmp_path, "--no-index\n--find-links wheels\ntiny == 1.0  # by hand\n")

    made, lines = prepare(requirements, python=find_interpreter(python))

    assert version_in(made) == "1.0"
    assert " + tiny==1.0" in lines
    assert not by_pip(lines)


@needs_uv
def test_a_function_that_changes_its_packages_changes_no_other_environment(tmp_path: Path) -> None:
    wheel(tmp_path / "wheels")
    text = "--no-index\n--find-links wheels\ntiny\n"
    first, _ = prepare(requirements_file(tmp_path, text))
    [module] = first.parents[1].glob("lib/*/site-packages/tiny.py")

    with module.open("w") as file:
        file.write("VERSION = 'changed'\n")
    second, lines = prepare(requirements_file(tmp_path, f"{text}# another environment\n"))

    assert (version_in(first), version_in(second)) == ("changed", "1.0")
    assert not by_pip(lines)


@needs_uv
def test_modules_are_compiled_before_the_environment_is_complete(tmp_path: Path) -> None:
    wheel(tmp_path / "wheels")

    made, _ = prepare(requirements_file(tmp_path, "--no-index\n--find-links wheels\ntiny\n"))

    assert list(made.parents[1].glob("lib/*/site-packages/__pycache__/tiny.*.pyc"))


@needs_uv
def test_settings_of_pip_hold_for_uv(tmp_path: Path) -> None:
    for version in ("1.0", "2.0", "3.0"):
        wheel(tmp_path / "wheels", version)
    (tmp_path / "limits.txt").write_text("tiny<3\n")
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "pip.conf").write_text("[global]\nno-index = yes\n[install]\nfind-links =\n    nowhere\n")
    environ = {"PIP_FIND_LINKS": str(tmp_path / "wheels"), "PIP_CONSTRAINT": str(tmp_path / "limits.txt")}

    made, lines = prepare(requirements_file(tmp_path, "tiny\n"), environ=environ)

    assert version_in(made) == "2.0"
    assert not by_pip(lines)


@needs_uv
def test_the_best_version_of_all_indexes_counts_as_with_pip(tmp_path: Path) -> None:
    for name, version in (("main", "1.0"), ("extra", "2.0")):
        folder = tmp_path / name / "tiny"
        folder.mkdir(parents=True)
        path = wheel(folder, version)
        (folder / "index.html").write_text(f'<!DOCTYPE html><a href="{path.name}">{path.name}</a>')
    environ = {
        "PIP_INDEX_URL": (tmp_path / "main").as_uri(),
        "PIP_EXTRA_INDEX_URL": (tmp_path / "extra").as_uri(),
    }

    made, lines = prepare(requirements_file(tmp_path, "tiny\n"), environ=environ)

    assert version_in(made) == "2.0"
    assert not by_pip(lines)


@needs_uv
def test_a_hash_is_checked_and_demands_hashes_of_all_as_with_pip(tmp_path: Path) -> None:
    digest = hashlib.sha256(wheel(tmp_path / "wheels").read_bytes()).hexdigest()
    head = "--no-index\n--find-links wheels\n"

    made, lines = prepare(requirements_file(tmp_path, f"{head}tiny==1.0 \\\n    --hash=sha256:{digest}\n"))
    assert (version_in(made), by_pip(lines)) == ("1.0", False)

    other = "0" * 64
    # The message is pip's, which tries again after uv has refused
    with pytest.raises(EnvironmentBuildError, match="DO NOT MATCH THE HASHES"):
        prepare(requirements_file(tmp_path, f"{head}tiny==1.0 --hash=sha256:{other}\n"))
    assert wants_hashes(requirements_file(tmp_path, f"tiny==1.0 --hash=sha256:{digest}\nother\n"))
    assert not wants_hashes(requirements_file(tmp_path, "tiny==1.0\n"))
    assert len([path for path in (tmp_path / "environments").iterdir() if path.suffix != ".lock"]) == 1


def made_up_python(folder: Path) -> Interpreter:
    """Return an interpreter whose virtual environments are copies of itself, and whose pip prints a line."""
    text = 'case "$*" in *"-m venv"*) mkdir -p "$4/bin" && cp "$0" "$4/bin/python" ;; *) echo "pip was run" ;; esac'
    return Interpreter(program(folder / "python", text), (3, 12, 0))


def test_pip_tries_what_uv_fails_at_in_a_new_environment(tmp_path: Path) -> None:
    # "--python FOLDER/bin/python" is among the arguments
    half = "while [ $1 != --python ]; do shift; done; touch ${2%/bin/python}/half; echo oh no; exit 2"
    broken = program(tmp_path / "uv", half)

    made, lines = prepare(requirements_file(tmp_path, "tiny\n"), python=made_up_python(tmp_path), uv=broken)

    assert lines[1] == "oh no"
    assert lines[2].startswith("uv could not install")
    assert lines[3:] == ["pip was run"]
    assert {path.name for path in made.parents[1].iterdir()} == {"bin", ".thawd-complete"}


@pytest.mark.parametrize("environ", [{}, {"PIP_PROXY": "http://a.example"}], ids=["file", "setting"])
def test_uv_is_not_started_for_what_it_would_install_otherwise(tmp_path: Path, environ: dict[str, str]) -> None:
    text = "tiny\n" if environ else "./a-folder\n"
    uv = program(tmp_path / "uv", "echo never")

    _, lines = prepare(requirements_file(tmp_path, text), python=made_up_python(tmp_path), uv=uv, environ=environ)

    assert lines[1].startswith(f"pip installs {tmp_path / 'requirements.txt'}: ")
    assert lines[2:] == ["pip was run"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("--pre\ntiny\n", "it has the option --pre"),
        ("--prefer-binary", "it has the option --prefer-binary"),
        ("--trusted-host=here", "it has the option --trusted-host"),
        ("tiny --config-settings=a=b", "it has the option --config-settings"),
        ("-e ./tiny", "it has the option -e"),
        ("-r more.txt", "it has the option --pre"),
        ("./tiny", "./tiny is a folder"),
        (".", ". is a folder"),
        ("tiny @ file:///tiny ; python_version > '3'", "file:///tiny is a folder"),
        ("${HOME}/tiny[extra]", "${HOME}/tiny[extra] is a folder"),
        ("tiny", None),
        ("tiny[extra] >= 1, < 2 ; python_version > '3'  # a --pre that is a comment", None),
        ("-r other.txt", None),
        ("-rother.txt", None),
        ("-i https://a.example\n--extra-index-url=https://b.example\n--no-binary :all:\n", None),
        ("./tiny-1.0-py3-none-any.whl", None),
        ("tiny @ https://user:secret@a.example:80/tiny", None),
        ("https://user@a.example/tiny.zip", None),
        ("git+ssh://git@a.example/tiny@main", None),
    ],
)
def test_pip_installs_what_uv_would_read_otherwise(tmp_path: Path, text: str, reason: str | None) -> None:
    (tmp_path / "more.txt").write_text("--pre\n")
    (tmp_path / "other.txt").write_text("other\n")

    assert why_pip(requirements_file(tmp_path, text)) == reason


def settings_of(folder: Path, environ: dict[str, str]) -> tuple[list[str], dict[str, str], str | None]:
    told = uv_settings({"HOME": str(folder), "XDG_CONFIG_DIRS": str(folder / "xdg"), **environ})
    return told.arguments, told.variables, told.why_pip


def test_variables_of_pip_in_the_words_of_uv(tmp_path: Path) -> None:
    nothing = {"PIP_CONFIG_FILE": os.devnull}
    assert settings_of(tmp_path, nothing) == ([], {}, None)

    arguments, variables, reason = settings_of(
        tmp_path,
        nothing
        | {
            "PIP_INDEX_URL": "https://me:secret%20@a.example/simple",
            "PIP_EXTRA_INDEX_URL": "https://b.example\nhttps://c.example",
            "PIP_FIND_LINKS": "/wheels https://d.example",
            "PIP_TRUSTED_HOST": "a.example b.example:8080",
            "PIP_CERT": "/ca.pem",
            "PIP_DEFAULT_TIMEOUT": "2.5",
            "PIP_NO_INDEX": "0",
            "PIP_PRE": "on",
            "PIP_NO_BINARY": "tiny,other",
            "PIP_CONSTRAINT": "a.txt b.txt",
            "PIP_NO_COLOR": "1",
            "PIP_PROXY": "",
        },
    )

    assert reason is None
    assert arguments == [
        *("--prerelease=allow", "--no-binary=tiny", "--no-binary=other"),
        *("--constraints=a.txt", "--constraints=b.txt"),
    ]
    assert variables == {
        "UV_DEFAULT_INDEX": "https://me:secret%20@a.example/simple",
        "UV_INDEX": "https://b.example https://c.example",
        "UV_FIND_LINKS": "/wheels,https://d.example",
        "UV_INSECURE_HOST": "a.example b.example:8080",
        "SSL_CERT_FILE": "/ca.pem",
        "UV_HTTP_TIMEOUT": "2",
    }


def test_a_password_in_the_url_of_constraints_is_not_put_on_a_command_line(tmp_path: Path) -> None:
    url = {"PIP_CONFIG_FILE": os.devnull, "PIP_CONSTRAINT": "https://me:secret@a.example/constraints.txt"}
    reason = settings_of(tmp_path, url)[2]
    assert reason is not None
    assert "secret" not in reason
    assert "constraint is a URL" in reason


@needs_uv
def test_uv_goes_without_a_cache_where_none_can_be_made(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    nowhere = {"PIP_CONFIG_FILE": os.devnull, "HOME": str(file / "home")}
    assert settings_of(tmp_path, nowhere) == (["--no-cache"], {}, None)
    assert settings_of(tmp_path, nowhere | {"PIP_NO_CACHE_DIR": "1"})[0] == ["--no-cache"]
    assert settings_of(tmp_path, nowhere | {"XDG_CACHE_HOME": str(tmp_path / "made" / "later")})[0] == []
    assert settings_of(tmp_path, nowhere | {"UV_CACHE_DIR": "/dev/null/x"})[0] == []

    wheel(tmp_path, "1.0")
    made, lines = prepare(
        requirements_file(tmp_path, f"--no-index\n--find-links {tmp_path}\ntiny\n"),
        environ={"HOME": str(file / "home"), "UV_CACHE_DIR": ""},
    )
    assert version_in(made) == "1.0"
    assert not by_pip(lines)


def test_files_of_pip_in_its_order(tmp_path: Path) -> None:
    def conf(place: str, text: str) -> None:
        file = tmp_path / place / "pip.conf"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    conf("xdg/pip", "[global]\nindex-url = https://machine.example\ntimeout = 7\nretries = 1\n")
    conf(".pip", "[global]\nindex-url = https://old.example\n[list]\nproxy = not for installing\n")
    conf(".config/pip", "[global]\ntimeout = 8\n[install]\nindex_url = https://user.example/%40\n")
    conf("own", "[global]\nindex-url = https://own.example\n")

    assert settings_of(tmp_path, {})[1] == {
        "UV_DEFAULT_INDEX": "https://user.example/%40",
        "UV_HTTP_TIMEOUT": "8",
        "UV_HTTP_RETRIES": "1",
    }
    # The file that this variable names replaces the user's
    own = {"PIP_CONFIG_FILE": str(tmp_path / "own" / "pip.conf")}
    assert settings_of(tmp_path, own)[1]["UV_DEFAULT_INDEX"] == "https://own.example"
    assert settings_of(tmp_path, own | {"PIP_INDEX_URL": "https://v.example"})[1]["UV_DEFAULT_INDEX"] == (
        "https://v.example"
    )
    assert settings_of(tmp_path, {"PIP_CONFIG_FILE": os.devnull})[1] == {}


@pytest.mark.parametrize("name", ["PROXY", "CLIENT_CERT", "TARGET", "KEYRING_PROVIDER", "USE_FEATURE"])
def test_settings_that_uv_has_no_word_for_leave_the_work_to_pip(tmp_path: Path, name: str) -> None:
    environ = {"PIP_CONFIG_FILE": os.devnull, f"PIP_{name}": "x"}

    assert settings_of(tmp_path, environ)[2] == f"uv has no setting for pip's setting {name.lower().replace('_', '-')}"


def test_a_configuration_file_that_is_none_leaves_the_work_to_pip(tmp_path: Path) -> None:
    (tmp_path / "pip.conf").write_text("index-url = before any section\n")

    reason = settings_of(tmp_path, {"PIP_CONFIG_FILE": str(tmp_path / "pip.conf")})[2]

    assert reason is not None
    assert reason.startswith("pip's configuration cannot be read: File contains no section headers")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user that the machine does not know")
def test_pips_settings_are_found_for_a_user_without_an_entry_and_a_home_folder() -> None:
    script = "from thawd.publishing.uv import uv_settings; print(uv_settings({'PIP_CERT': '~nobodyx/cert'}))"
    command = [unprivileged_python(), "-c", script]
    done = subprocess.run(command, env=MODULES, cwd="/", user=54321, group=54321, capture_output=True, text=True)
    assert "'SSL_CERT_FILE': '~nobodyx/cert'" in done.stdout, done.stderr
