"""Bases that hold the packages with which handlers' modules begin: what is shared, and what no base must hold."""

from __future__ import annotations

import signal
import venv
from pathlib import Path
from typing import Any

import pytest

from thawd.snapshot.engine import unavailable

from .conftest import Project, Running, eventually

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))

REAL = 'paths = "real"\n'  # so that each environment has a TMPDIR of its own, on which a base must not depend
SERVER = 'bases = "auto"\n' + REAL
# `pack` records each time that it is imported. `multiprocessing.process` keeps the name of the current folder.
PACK = """
import inspect, os, multiprocessing.process
try:
    import optional
except ImportError:
    optional = None
with open({count!r}, "a") as file:
    file.write("imported\\n")
inspect.getmodule(inspect.currentframe())
VALUES = [{marks!r}] * 1000
OWN = os.environ.get("OWN")
PREFIXED = {{name: value for name, value in os.environ.items() if name.startswith("OWN_")}}
"""
HANDLER = """
import os, sys
import pack
from pack import VALUES as NUMBERS

def handler(event, context):
    return {
        "version": 1, "function": context.function_name, "own": pack.OWN, "prefixed": pack.PREFIXED,
        "modules": {name: str(getattr(module, "__file__", None)) for name, module in sys.modules.items()},
        "path": sys.path, "variables": dict(os.environ), "optional": str(pack.optional),
        "folder": os.path.samefile(pack.multiprocessing.process.ORIGINAL_DIR, os.environ["LAMBDA_TASK_ROOT"]),
    }
"""


@pytest.fixture
def packages(project: Project) -> Path:
    """The folder of packages of a virtual environment, with the package `pack`."""
    folder = project.root / "venv"
    venv.create(folder, symlinks=True)
    (found,) = folder.glob("lib/python*/site-packages")
    (found / "pack.py").write_text(PACK.format(count=str(project.root / "count"), marks="first"))
    return found


def imports(project: Project) -> int:
    """How often `pack` was imported so far."""
    path = project.root / "count"
    return len(path.read_text().splitlines()) if path.exists() else 0


def functions(project: Project, *names: str, server: str = SERVER, options: str = "") -> None:
    tables = (
        f'[functions.{name}]\nhandler = "app.handler"\ncode = "{name}"\npython = "venv"\n{options}' for name in names
    )
    project.config(server + "".join(tables))


def snapshot(running: Running, name: str) -> dict[str, Any]:
    found: dict[str, Any] = running.function(name)["snapshot"]
    assert found["OptimizationStatus"] == "On", found
    return found


def ask(running: Running, name: str) -> Any:
    answer, error = running.invoke(name, {})
    assert error is None, answer
    return answer


def test_functions_that_begin_with_the_same_imports_share_them(project: Project, packages: Path) -> None:
    for name in ("one", "other"):
        project.code(HANDLER, name=f"{name}/app.py")
    functions(project, "one", "other")
    with project.up() as running:
        found = [snapshot(running, name) for name in ("one", "other")]
        assert [one["base_refused"] for one in found] == [None, None]
        assert found[0]["base"] == found[1]["base"]
        assert [ask(running, name)["function"] for name in ("one", "other")] == ["one", "other"]
    made = imports(project)
    assert made == 4  # by the process that looks on, by that of the base, and once by each function, to compare
    project.code(HANDLER.replace('"version": 1', '"version": 2'), name="one/app.py")
    with project.up() as running:
        assert ask(running, "one")["version"] == 2
        assert snapshot(running, "one")["base"] == found[0]["base"]
    assert imports(project) == made  # a changed handler imports no package again


def test_init_sees_the_same_with_the_packages_in_a_base_as_without(project: Project, packages: Path) -> None:
    project.code(HANDLER, name="one/app.py")
    answers = []
    for server in (SERVER, REAL):
        functions(project, "one", server=server, options='environment = { OWN = "secret", OWN_2 = "too" }\n')
        with project.up() as running:
            answers.append(ask(running, "one"))
            assert snapshot(running, "one")["base_refused"] is None
            assert (snapshot(running, "one")["base"] is not None) is (server == SERVER)
    over, without = answers
    for own in ("base_process", "package_base", "rehearsal"):
        assert over["modules"].pop(f"thawd.runtime.{own}")
    for answer in answers:
        for name in ("_X_AMZN_TRACE_ID", "AWS_LAMBDA_LOG_STREAM_NAME", "THAWD_ENVIRONMENT", "TMPDIR"):
            assert answer["variables"].pop(name)
        answer["variables"].pop("LC_CTYPE", None)  # set by the interpreter itself, if at all
    assert over == without
    assert (over["own"], over["prefixed"], over["folder"]) == ("secret", {"OWN_2": "too"}, True)


def test_functions_with_other_variables_do_not_share_a_base(project: Project, packages: Path) -> None:
    for name in ("one", "other"):
        project.code(HANDLER, name=f"{name}/app.py")
    functions(project, "one", "other", options="environment = { OWN = 'secret' }\n")
    text = (project.root / "thawd.toml").read_text()
    (project.root / "thawd.toml").write_text(text.replace("'secret'", "'other secret'", 1))
    with project.up() as running:
        assert snapshot(running, "one")["base"] != snapshot(running, "other")["base"]
        assert [ask(running, name)["own"] for name in ("one", "other")] == ["other secret", "secret"]


# What a package does when it is imported, and the reason why no base may hold it.
REFUSED = {
    "variable": (
        "import os\nNAME = os.environ['AWS_LAMBDA_FUNCTION_NAME']",
        "they look at the variable AWS_LAMBDA_FUNCTION_NAME",
    ),
    "get": ("import os\nNAME = os.getenv('_HANDLER')", "they look at the variable _HANDLER"),
    "kept": (
        "import os\nALL = {k: v for k, v in os.environ.items() if k.startswith('AWS_LAMBDA_FUNCTION_N')}",
        "they keep the value of the variable AWS_LAMBDA_FUNCTION_NAME",
    ),
    "folder": ("import os\nHERE = os.getcwd()", "they look at the current folder"),
    "path": ("import pathlib\nFOUND = pathlib.Path('setup.cfg').exists()", "they look at the current folder"),
    "opened": ("try:\n    open('setup.cfg')\nexcept OSError:\n    pass", "they look at the current folder"),
    "arguments": ("import sys\nNAME = sys.argv[0]", "they look at sys.argv"),
    "temporary": ("import tempfile\nAT = tempfile.gettempdir()", "the variable TMPDIR ("),
    "prints": ("print('hello')", "they print when they are imported: hello"),
    "prints_natively": ("import os\nos.write(2, b'hello')", "they print when they are imported: hello"),
    "changes_folder": ("import os\nos.chdir('/tmp')", "they look at the current folder"),
    "threads": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=[1e6], daemon=True).start()",
        "they start threads when they are imported",
    ),
    "program": ("import subprocess\nsubprocess.run(['true'])", "they look at the output or the end of a program"),
    "forgets": (
        "import os\ndel os.environ['AWS_LAMBDA_FUNCTION_NAME']\nALL = os.environ.items()",
        "differs in variables",
    ),
    "searches": ("import pkg_resources", "they load pkg_resources, which searches the function's folder"),
    "search_path": ("import sys\nsys.path.insert(0, '/nowhere')", "after init, "),
    "fails_once": (
        "import os\nif not os.environ['AWS_LAMBDA_FUNCTION_MEMORY_SIZE'].isdigit():\n    raise ValueError('no size')",
        "`import package_fails_once` failed: ValueError: no size",
    ),
}


def test_packages_that_look_at_the_function_are_in_no_base(project: Project, packages: Path) -> None:
    (packages / "pkg_resources.py").write_text("")
    for name, (code, _) in REFUSED.items():
        (packages / f"package_{name}.py").write_text(code)
        project.code(
            f"import package_{name}\ndef handler(event, context):\n    return 'right'\n", name=f"{name}/app.py"
        )
    functions(project, *REFUSED)
    with project.up() as running:
        for name, (_, reason) in REFUSED.items():
            found = snapshot(running, name)
            assert (found["base_refused"] or "").startswith("its base holds no packages: "), name
            assert reason in found["base_refused"], (name, found["base_refused"])
            assert found["base"] is not None
            assert ask(running, name) == "right"


def test_a_file_of_the_functions_own_that_a_package_would_import_is_imported(project: Project, packages: Path) -> None:
    for name in ("one", "other", "third"):
        project.code(HANDLER, name=f"{name}/app.py")
    project.code("", name="other/optional.py")
    project.code("", name="third/own-1.0.dist-info/METADATA")
    functions(project, "one", "other", "third")
    with project.up() as running:
        assert snapshot(running, "one")["base_refused"] is None
        assert snapshot(running, "other")["base_refused"] == (
            "its base holds no packages: the function's folder contains optional.py, which the packages may import"
        )
        assert "installed packages (own-1.0.dist-info)" in snapshot(running, "third")["base_refused"]
        found = [ask(running, name)["optional"] for name in ("one", "other")]
        assert found[0] == "None"
        assert "optional.py" in found[1]
        (project.root / "other" / "optional.py").rename(project.root / "other" / "renamed.py")
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: snapshot(running, "other")["base_refused"] is None, what="a base with packages")


def test_a_base_whose_packages_have_changed_is_made_again(project: Project, packages: Path) -> None:
    project.code(HANDLER + "\ndef value(event, context):\n    return NUMBERS[0]\n", name="one/app.py")
    functions(project, "one")
    (project.root / "thawd.toml").write_text(
        (project.root / "thawd.toml").read_text().replace("app.handler", "app.value")
    )
    with project.up() as running:
        assert ask(running, "one") == "first"
        before = snapshot(running, "one")["base"]
    (packages / "pack.py").write_text(PACK.format(count=str(project.root / "count"), marks="second"))
    with project.up() as running:
        assert ask(running, "one") == "second"
        assert snapshot(running, "one")["base"] != before
        assert snapshot(running, "one")["base_refused"] is None


def test_statements_before_an_import_run_before_it(project: Project, packages: Path) -> None:
    """A package that is imported after another statement is not in a base: that statement may change what it does."""
    code = "import os\nos.environ['OWN'] = 'set before'\n" + HANDLER.removeprefix("\nimport os, sys")
    project.code("import sys\n" + code, name="one/app.py")
    functions(project, "one")
    with project.up() as running:
        assert ask(running, "one")["own"] == "set before"
        assert snapshot(running, "one")["base_refused"] is None
    assert imports(project) == 1
