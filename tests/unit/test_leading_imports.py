"""Which imports at the beginning of a handler's module a base may do in advance."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from thawd.environments.starts.leading_imports import leading_imports

from .execution_fakes import version_of


def found(folder: Path, code: str | bytes, *, handler: str = "app.handler", name: str = "app.py") -> list[str]:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(code if isinstance(code, bytes) else code.encode())
    version = version_of()
    function = msgspec.structs.replace(version.function, handler=handler)
    return list(leading_imports(replace(version, function=function, code=str(folder))))


@pytest.mark.parametrize(
    ("code", "statements"),
    [
        ("import torch\n", ["import torch"]),
        (
            "import os, torch as t, json\nfrom numpy import array as a, ones\n",
            ["import torch", "from numpy import array, ones"],
        ),
        ('"""Doc."""\nfrom __future__ import annotations\nimport torch.nn\n', ["import torch.nn"]),
        ("import torch\nX = 1\nimport numpy\n", ["import torch"]),
        ("X = 1\nimport torch\n", []),
        ("import os\nos.environ['A'] = '1'\nimport torch\n", []),
        ("try:\n    import torch\nexcept ImportError:\n    pass\n", []),
        ("if True:\n    import torch\n", []),
        ("import numpy\nimport helpers\nimport torch\n", ["import numpy"]),
        ("import numpy\nfrom . import sibling\nimport torch\n", ["import numpy"]),
        ("import numpy, helpers\nimport torch\n", []),
        ("import setuptools\nimport torch\n", []),
        ("import distutils.core\nimport torch\n", []),
        ("from thawd import models\nimport torch\n", ["import torch"]),
        ("from torch import *\n", ["from torch import *"]),
        ("import torch; import numpy\n", ["import torch", "import numpy"]),
        ("# -*- coding: latin-1 -*-\nimport torch  # \xe9\n".encode("latin-1"), ["import torch"]),
        ("import torch\ndef broken(:\n", []),
        (b"import torch\n\0", []),
        ("", []),
    ],
)
def test_the_imports_before_any_other_statement(tmp_path: Path, code: str | bytes, statements: list[str]) -> None:
    (tmp_path / "helpers.py").touch()
    assert found(tmp_path, code) == statements


@pytest.mark.parametrize("handler", ["src/app.handler", "src.app.handler"])
def test_a_module_in_a_folder(tmp_path: Path, handler: str) -> None:
    assert found(tmp_path, "import torch", handler=handler, name="src/app.py") == ["import torch"]
    (tmp_path / "src" / "__init__.py").touch()
    assert found(tmp_path, "import torch", handler=handler, name="src/app.py") == []  # the package's code runs first


@pytest.mark.parametrize("other", ["app/__init__.py", "app.cpython-311-x86_64-linux-gnu.so", "app.pyc"])
def test_a_module_that_might_be_loaded_from_elsewhere_has_none(tmp_path: Path, other: str) -> None:
    (tmp_path / other).parent.mkdir(exist_ok=True)
    (tmp_path / other).touch()
    assert found(tmp_path, "import torch") == []


@pytest.mark.parametrize("handler", ["other.handler", "handler", "", "../app.handler", "a..b.c"])
def test_a_handler_without_a_module_has_none(tmp_path: Path, handler: str) -> None:
    assert found(tmp_path, "import torch", handler=handler) == []


@pytest.fixture
def switching() -> Iterator[None]:
    """Have Python's threads take turns in the middle of calls, as garbage collection does when it runs Python code."""

    def take_turns(phase: str, facts: dict[str, int]) -> None:
        time.sleep(0)

    before = gc.get_threshold()
    gc.callbacks.append(take_turns)
    gc.set_threshold(50)
    yield
    gc.set_threshold(*before)
    gc.callbacks.remove(take_turns)


def test_modules_are_read_at_the_same_time(tmp_path: Path, switching: None) -> None:
    code = "import numpy\nx = " + "[" * 60 + "]" * 60 + "\n" + "y = (1 + 2) * 3\n" * 200
    with ThreadPoolExecutor(8) as threads:
        read = threads.map(lambda number: found(tmp_path / str(number), code), range(16))
        assert list(read) == [["import numpy"]] * 16
