"""Claims about ``thawd completion``, with real shells, and about ``thawd man``, with a real man."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from thawd.cli.manual import page
from thawd.cli.program import main

BIN = Path(sys.executable).parent
CONFIG = '[functions.classify]\nhandler = "app.handler"\n[functions.clean]\nhandler = "app.handler"\n'
BASH = """
source "$HOME/.local/share/bash-completion/completions/thawd"
COMP_WORDS=(thawd "$@") COMP_CWORD=$#
_thawd_completion thawd
echo "${COMPREPLY[@]}"
"""
ZSH = """
fpath=("$HOME/.local/share/zsh/site-functions" $fpath)
autoload -Uz compinit; compinit -D -u
print $_comps[thawd]
autoload +X _thawd && whence -w _thawd
"""


def run(home: Path, *command: str) -> str:
    environ = {"HOME": str(home), "PATH": f"{BIN}:{os.environ['PATH']}", "LANG": "C.UTF-8"}
    done = subprocess.run(command, cwd=home, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed")


@needs("bash")
def test_bash_completes_commands_options_and_functions(tmp_path: Path) -> None:
    (tmp_path / "thawd.toml").write_text(CONFIG)
    assert "bash-completion/completions/thawd" in run(tmp_path, "thawd", "completion", "bash", "--install")
    assert run(tmp_path, "bash", "-c", BASH, "bash", "inv").split() == ["invoke"]
    assert run(tmp_path, "bash", "-c", BASH, "bash", "invoke", "cla").split() == ["classify"]
    assert run(tmp_path, "bash", "-c", BASH, "bash", "up", "--ready-").split() == ["--ready-file", "--ready-when"]


@needs("zsh")
def test_zsh_finds_the_installed_completion(tmp_path: Path) -> None:
    run(tmp_path, "thawd", "completion", "zsh", "--install")
    assert run(tmp_path, "zsh", "-f", "-c", ZSH).splitlines() == ["_thawd", "_thawd: function"]


@needs("fish")
def test_fish_completes_functions(tmp_path: Path) -> None:
    (tmp_path / "thawd.toml").write_text(CONFIG)
    run(tmp_path, "thawd", "completion", "fish", "--install")
    assert run(tmp_path, "fish", "-c", "complete -C 'thawd logs cl'").split() == ["classify", "clean"]


def test_an_unknown_shell_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "PATH": str(BIN), "SHELL": "/bin/tcsh"}
    done = subprocess.run([BIN / "thawd", "completion"], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "name bash, zsh or fish" in done.stderr


@needs("man")
def test_the_manual_page_has_no_mistake_and_describes_every_command(tmp_path: Path) -> None:
    source = tmp_path / "thawd.1"
    source.write_text(page(main))
    environ = {**os.environ, "LC_ALL": "C.UTF-8", "MANWIDTH": "80"}
    command = ["man", "--warnings", "-l", str(source)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    for name in main.commands:
        assert f"thawd {name}" in done.stdout
    assert "--ready-when" in done.stdout
    assert "thawd.toml" in done.stdout
