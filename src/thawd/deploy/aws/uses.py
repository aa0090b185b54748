"""Finds out which buckets and tables a function's code uses, by reading the code, so that its role allows these only.

Starts at the handler's module and follows the imports of modules in the code folder. Nothing is executed. Where the
code leaves open which bucket or table it uses, or what for, everything that is possible is assumed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import msgspec

BUCKET_OPERATIONS = ("read", "write")
TABLE_OPERATIONS = ("delete", "get", "put", "scan")
_OPERATIONS = {"bucket": BUCKET_OPERATIONS, "table": TABLE_OPERATIONS}
ANY = "*"
"""Stands for the name of a store that the code computes."""
_DYNAMIC = ("__import__", "import_module", "exec", "eval", "run_module", "run_path")


class Uses(msgspec.Struct, frozen=True, kw_only=True):
    """What a function's code uses.

    Attributes:
        buckets: operations of `BUCKET_OPERATIONS`, by name of the bucket, or `ANY`.
        tables: operations of `TABLE_OPERATIONS`, by name of the table, or `ANY`.
        other_names: what the code uses of ``thawd`` besides ``bucket`` and ``table``, such as ``models``.
        has_boto3: whether the code imports boto3 or botocore.
        is_coroutine: whether the handler is ``async def``.
        has_generator: whether the handler is a generator: its answer is streamed.
    """

    buckets: dict[str, tuple[str, ...]] = {}
    tables: dict[str, tuple[str, ...]] = {}
    other_names: tuple[str, ...] = ()
    has_boto3: bool = False
    is_coroutine: bool = False
    has_generator: bool = False

    @property
    def has_stores(self) -> bool:
        """Whether the code uses ``thawd.bucket`` or ``thawd.table``."""
        return bool(self.buckets or self.tables)


def read_uses(code: Path, handler: str) -> Uses:
    """Return what the code of a Python function uses.

    Args:
        code: the code folder.
        handler: ``module.function``; slashes may separate the parts of the module's name.
    """
    module, _, function = handler.replace("/", ".").rpartition(".")
    trees = _trees(code, module)
    found = _Found()
    for tree in trees.values():
        _Module(tree, found).read()
    handlers = [node for node in _functions(trees.get(module)) if node.name == function]
    return Uses(
        buckets={name: tuple(sorted(operations)) for name, operations in sorted(found.stores["bucket"].items())},
        tables={name: tuple(sorted(operations)) for name, operations in sorted(found.stores["table"].items())},
        other_names=tuple(sorted(found.other_names)),
        has_boto3=found.has_boto3,
        is_coroutine=any(isinstance(node, ast.AsyncFunctionDef) for node in handlers),
        has_generator=any(_has_yield(node) for node in handlers),
    )


def _functions(tree: ast.Module | None) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    body = [] if tree is None else tree.body
    return [node for node in body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def _has_yield(function: ast.AST) -> bool:
    """Whether a function's own body, without functions inside it, has a ``yield``."""
    for node in ast.iter_child_nodes(function):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            continue
        if isinstance(node, (ast.Yield, ast.YieldFrom)) or _has_yield(node):
            return True
    return False


def _trees(code: Path, module: str) -> dict[str, ast.Module]:
    """Return the syntax trees of the handler's module and of those that it imports from the folder, by name."""
    trees: dict[str, ast.Module] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in trees or (tree := _parsed(code, name)) is None:
            continue
        trees[name] = tree
        if any(_is_dynamic(node) for node in ast.walk(tree)):
            files = (file.relative_to(code).with_suffix("").parts for file in sorted(code.rglob("*.py")))
            waiting += [".".join(parts) for parts in files if not any(part.startswith(".") for part in parts)]
        waiting += _imported(tree, name, is_package=(code / Path(*name.split(".")) / "__init__.py").is_file())
    return trees


def _parsed(code: Path, name: str) -> ast.Module | None:
    path = code.joinpath(*name.split("."))
    for file in (path.with_name(path.name + ".py"), path / "__init__.py"):
        try:
            return ast.parse(file.read_bytes(), filename=str(file))
        except (OSError, SyntaxError, ValueError):
            continue
    return None


def _is_dynamic(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    return (called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")) in _DYNAMIC


def _imported(tree: ast.Module, name: str, *, is_package: bool) -> Iterator[str]:
    """Yield the names of all modules that a module may import, with their packages."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _with_packages(alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = name.split(".") if is_package else name.split(".")[:-1]
                parts = parts[: len(parts) - (node.level - 1)]
                base = ".".join([*parts, *([base] if base else [])])
            yield from _with_packages(base)
            for alias in node.names:
                yield f"{base}.{alias.name}" if base else alias.name


def _with_packages(name: str) -> Iterator[str]:
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        yield ".".join(parts[:count])


class _Found:
    """What has been found in the modules that were read."""

    def __init__(self) -> None:
        self.stores: dict[str, dict[str, set[str]]] = {"bucket": {}, "table": {}}
        self.other_names: set[str] = set()
        self.has_boto3 = False

    def add(self, kind: str, name: str, operations: tuple[str, ...]) -> None:
        self.stores[kind].setdefault(name, set()).update(operations)


class _Module:
    """Reads one module."""

    def __init__(self, tree: ast.Module, found: _Found) -> None:
        self._tree = tree
        self._found = found
        self._thawd: set[str] = set()
        self._kinds: dict[str, str] = {}
        self._texts = _constant_texts(tree)
        self._parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}

    def read(self) -> None:
        """Add what the module uses."""
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Import):
                self._read_import(node)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                self._read_import_from(node)
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                self._read_name(node)

    def _read_import(self, node: ast.Import) -> None:
        for alias in node.names:
            package, _, below = alias.name.partition(".")
            self._found.has_boto3 |= package in ("boto3", "botocore")
            if package == "thawd":
                if below:
                    self._found.other_names.add(below.partition(".")[0])
                if not below or alias.asname is None:
                    self._thawd.add(alias.asname or "thawd")

    def _read_import_from(self, node: ast.ImportFrom) -> None:
        package, _, below = (node.module or "").partition(".")
        self._found.has_boto3 |= package in ("boto3", "botocore")
        if package != "thawd":
            return
        if below:
            self._found.other_names.add(below.partition(".")[0])
            return
        for alias in node.names:
            if alias.name in _OPERATIONS:
                self._kinds[alias.asname or alias.name] = alias.name
            elif alias.name != "__version__":
                self._found.other_names.add(alias.name)

    def _read_name(self, node: ast.Name) -> None:
        if node.id in self._kinds:
            self._read_store(node, self._kinds[node.id])
        elif node.id in self._thawd:
            parent = self._parents[node]
            if not isinstance(parent, ast.Attribute):  # passed on: it may be used for anything
                for kind, operations in _OPERATIONS.items():
                    self._found.add(kind, ANY, operations)
            elif parent.attr in _OPERATIONS:
                self._read_store(parent, parent.attr)
            elif parent.attr != "__version__":
                self._found.other_names.add(parent.attr)

    def _read_store(self, function: ast.expr, kind: str) -> None:
        """Add the store that a mention of ``thawd.bucket`` or ``thawd.table`` leads to."""
        call = self._parents[function]
        if not (isinstance(call, ast.Call) and call.func is function):
            self._found.add(kind, ANY, _OPERATIONS[kind])
            return
        argument = call.args[0] if call.args else next((word.value for word in call.keywords), None)
        name = ANY
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            name = argument.value
        elif isinstance(argument, ast.Name):
            name = self._texts.get(argument.id, ANY)
        parent = self._parents[call]
        method = parent.attr if isinstance(parent, ast.Attribute) else ""
        self._found.add(kind, name, (method,) if method in _OPERATIONS[kind] else _OPERATIONS[kind])


def _constant_texts(tree: ast.Module) -> dict[str, str]:
    """Return the texts of those names that are assigned one text in the module, and nothing else anywhere in it."""
    texts = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            value = node.value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                texts[node.targets[0].id] = value.value
    stored = [n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    stored += [argument.arg for argument in ast.walk(tree) if isinstance(argument, ast.arg)]
    return {name: text for name, text in texts.items() if stored.count(name) == 1}
