"""The command ``thawd init``: write the files of a first function, or a configuration for code that is there.

The templates are folders beside this module. A file ``X.txt`` in them becomes the file ``X``; ``next.txt`` has the
commands to type next. ``launch.json`` beside this module is for debugging any of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from thawd.cli.exits import fail
from thawd.cli.options import examples

if TYPE_CHECKING:
    from thawd.recognition.kinds import Kind

TEMPLATES = Path(__file__).parent / "templates"
_LAUNCH = Path(".vscode", "launch.json")


class Script(NamedTuple):
    """A script of a template that makes the model which the template's function serves.

    Attributes:
        name: file name of the script.
        model: file name of the model.
        packages: packages that the script needs: name of each module, and of its package.
    """

    name: str
    model: str
    packages: Mapping[str, str]


class Template(NamedTuple):
    """A template.

    Attributes:
        packages: packages of the function: name of each module, and of its package.
        script: makes the function's model; None: the template has no such script.
    """

    packages: Mapping[str, str] = {}
    script: Script | None = None


KINDS: dict[str, Template] = {
    "http": Template(),
    "bucket": Template(),
    "fastapi": Template({"fastapi": "fastapi"}),
    "stream": Template(),
    "huggingface": Template({"transformers": "transformers", "torch": "torch"}),
    "sklearn": Template({"sklearn": "scikit-learn"}, Script("train.py", "model.joblib", {"sklearn": "scikit-learn"})),
    "onnx": Template(
        {"onnxruntime": "onnxruntime", "numpy": "numpy"}, Script("make_model.py", "model.onnx", {"onnx": "onnx"})
    ),
}
_NEXT = "next.txt"
_USUAL = ("handler", "lambda_handler", "app", "application", "main", "__init__", "asgi", "wsgi")
_NO_CODE = ("tests", "test", "node_modules", "site-packages", "__pycache__")
# A name of a function has at most 64 characters; a number may follow.
_MOST_LETTERS = 60


@click.command(
    epilog=examples(
        "thawd init                  # for the Python files in this folder; in an empty folder like `thawd init http`",
        "thawd init fastapi",
        "thawd init sklearn flowers  # in the folder flowers",
    )
)
@click.argument("kind", type=click.Choice(list(KINDS)), required=False)
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=".")
def init(kind: str | None, folder: Path) -> None:
    """Write the files of a first function, and print what to type next.

    \b
    http         a typed function behind HTTP
    bucket       a function that runs for each file in a folder
    fastapi      a FastAPI application
    stream       a function that streams its answer
    huggingface  a model from the Hugging Face Hub
    sklearn      a model of scikit-learn
    onnx         a model of ONNX

    Without a kind, the command writes a thawd.toml for the applications, typed functions and handlers in the folder's
    Python files, and for the applications and typed functions in those of its subfolders. It overwrites no file. If
    this interpreter lacks a package of the function, the command also writes a requirements.txt, and thawd installs the
    packages for the function when it serves it. A script that makes the function's model runs without thawd and needs
    its packages before that. If the model is in the folder already, the command writes no such script.
    """
    if (folder / "thawd.toml").exists():
        fail(f"{folder / 'thawd.toml'} exists already; `thawd check` examines it, `thawd up` serves it")
    if kind is None and (any(folder.glob("*.py")) or any(_inner_files(folder, "*/*.py", "*/*/*.py"))):
        _for_code(folder)
        return
    kind = kind or "http"
    script = KINDS[kind].script
    has_model = script is not None and (folder / script.model).exists()
    files = _files(kind)
    if script is not None and has_model:
        del files[script.name]
    existing = [name for name in files if (folder / name).exists()]
    if existing:
        fail(
            f"{', '.join(existing)} {'exists' if len(existing) == 1 else 'exist'} already in {folder.absolute()}; name "
            f"another folder: thawd init {kind} FOLDER"
        )
    _write(folder, files)
    commands = (TEMPLATES / kind / _NEXT).read_text().splitlines()
    if script is not None and has_model:
        click.echo(f"app.py serves {folder / script.model}, which is there already")
    elif script is not None:
        commands = [*_script_commands(script), *commands]
    _print_next(folder, commands)


def _script_commands(script: Script) -> list[str]:
    """The commands that make the model. thawd installs packages only for functions, so the script's come first."""
    from thawd.recognition.imports import has

    lacking = [package for module, package in script.packages.items() if not has(module)]
    install = f"python -m pip install {' '.join(lacking)}  # for {script.name}; thawd installs only what functions need"
    return [*([install] if lacking else []), f"python {script.name}"]


def _files(kind: str) -> dict[str, str]:
    """The template's files by name."""
    from thawd.recognition.imports import has

    packages = KINDS[kind].packages
    lacking = not all(map(has, packages))
    files = {}
    for template in sorted((TEMPLATES / kind).iterdir()):
        if template.name != _NEXT:
            text = template.read_text()
            option = 'requirements = "requirements.txt"\n' if lacking else ""
            files[template.name.removesuffix(".txt")] = text.replace("{requirements}\n", option + "\n", 1)
    if lacking:
        files["requirements.txt"] = "".join(f"{package}\n" for package in packages.values())
    return files


def _write(folder: Path, files: Mapping[str, str]) -> None:
    """Write files into the folder, and one with which VS Code attaches to `thawd up --debug`, unless it has one."""
    if not (folder / _LAUNCH).exists():
        files = {**files, str(_LAUNCH): Path(__file__).with_name("launch.json").read_text()}
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        with (folder / name).open("x") as file:
            file.write(text)
    click.echo(f"wrote {', '.join(str(folder / name) for name in files)}")


def _print_next(folder: Path, commands: list[str]) -> None:
    if folder.resolve() != Path.cwd():
        commands = [f"cd {folder}", *commands]
    click.echo("next:")
    for command in commands:
        click.echo(f"  {command}")


def _for_code(folder: Path) -> None:
    """Write a configuration for the folder's Python files."""
    from thawd.recognition.kinds import Kind
    from thawd.recognition.served_files import NothingToServeError, find

    functions: dict[str, tuple[str, Kind]] = {}
    problems = []
    for file in sorted(folder.glob("*.py")):
        if not file.stem.isidentifier() or file.stem.startswith(("test_", "conftest")) or file.stem == "setup":
            continue
        try:
            served = find(file, None)
        except NothingToServeError as error:
            problems.append(str(error))
            continue
        for name, what in served.handlers.items():
            # An object that only the import can tell may be anything. A file without anything else may be a script.
            if what.kind is not Kind.OTHER:
                known = name in _USUAL
                function = unused_name((file.stem if known else name).replace("_", "-"), functions)
                functions[function] = (f"{file.stem}.{name}", what.kind)
    codes = _find_inner(folder, functions)
    if not functions:
        problems.append(
            f"there is no application, typed function or handler in the Python files of {folder.absolute()} and of its "
            "subfolders, so there is nothing to write a configuration for; name it in a thawd.toml yourself (handler = "
            '"package.module.name"), or begin with an example elsewhere: thawd init http FOLDER'
        )
        fail("\n".join(problems))
    _write(
        folder,
        {"thawd.toml": _configuration(functions, codes, has_requirements=(folder / "requirements.txt").is_file())},
    )
    _print_next(folder, ["thawd check", "thawd up --watch"])


def _inner_files(folder: Path, *patterns: str) -> Iterator[Path]:
    """Python files in subfolders; hidden folders, tests, and packages that were installed are left out."""
    for file in (file for pattern in patterns for file in sorted(folder.glob(pattern))):
        places = [folder.joinpath(*file.relative_to(folder).parts[:depth]) for depth in range(1, 3)]
        if not any(
            place.name.startswith(".") or place.name in _NO_CODE or (place / "pyvenv.cfg").exists() for place in places
        ):
            yield file


def _find_inner(folder: Path, functions: dict[str, tuple[str, Kind]]) -> dict[str, str]:
    """Add the applications and typed functions in the files of subfolders. Return the code folders of some, by name."""
    from thawd.recognition.served_files import NothingToServeError, find, place_of

    codes = {}
    for file in _inner_files(folder, "*/*.py"):
        root, module = place_of(file)
        try:
            served = find(file, None, root)
        except NothingToServeError:
            continue
        for name, what in served.handlers.items():
            if what.kind.serves_http and all(part.isidentifier() for part in module.split(".")):
                named = [each for each in (name, file.stem, file.parent.name) if each not in _USUAL][:1]
                function = unused_name((named or [file.parent.name])[0].replace("_", "-"), functions)
                functions[function] = (f"{module}.{name}", what.kind)
                if root != folder:
                    codes[function] = os.path.relpath(root, folder)
    return codes


def unused_name(name: str, taken: Container[str]) -> str:
    """A name for the function that a name in Python stands for; letters that functions' names cannot have become -."""
    first = re.sub(r"[^A-Za-z0-9_-]", "-", name)[:_MOST_LETTERS].strip("-") or "function"
    made, number = first, 2
    while made in taken:
        made, number = f"{first}-{number}", number + 1
    return made


def _configuration(functions: dict[str, tuple[str, Kind]], codes: dict[str, str], *, has_requirements: bool) -> str:
    from thawd.recognition.kinds import Kind

    lines, routes = [], ["[routes]"]
    applications = [name for name, (_, kind) in functions.items() if kind in (Kind.ASGI, Kind.WSGI)]
    for name, (handler, kind) in functions.items():
        lines += [f"[functions.{name}]", f'handler = "{handler}"']
        if name in codes:
            lines.append(f'code = "{codes[name]}"')
        if has_requirements:
            lines.append('requirements = "requirements.txt"')
        lines.append("")
        if name in applications[:1]:
            routes.append(f'"$default" = "{name}"')
        elif kind.serves_http:
            routes += [f'"ANY /{name}" = "{name}"', f'"ANY /{name}/{{path+}}" = "{name}"']
        else:
            routes.append(f'"ANY /{name}" = "{name}"')
    return "\n".join([*lines, *routes, ""])
