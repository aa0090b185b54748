"""Finds out which buckets and tables a function's code uses, so that its role allows only these.

It parses the handler's module and the modules of the code folder that it imports. Nothing is executed. If the code does
not show which bucket or table it uses, or with which operation, all possible ones are assumed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

BUCKET_OPERATIONS = ("path", "read", "write")
TABLE_OPERATIONS = ("delete", "get", "put", "scan")
_OPERATIONS = {"bucket": BUCKET_OPERATIONS, "table": TABLE_OPERATIONS}
ANY = "*"
"""Stands for the name of a store that the code computes."""
NOTIFYING = "@"
"""Stands for the name of the bucket in an event of S3: one of those that notify the function."""
# Statements that give their attribute ``name`` a value.
_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)
_DYNAMIC = ("__import__", "import_module", "exec", "eval", "run_module", "run_path", "addsitedir")


class Uses(msgspec.Struct, frozen=True, kw_only=True):
    """The buckets, tables and modules that a function's code uses.

    Attributes:
        buckets: operations of `BUCKET_OPERATIONS`, by name of the bucket, or `ANY` or `NOTIFYING`.
        tables: operations of `TABLE_OPERATIONS`, by name of the table, or `ANY`.
        other_names: names of ``thawd`` that the code uses besides ``bucket`` and ``table``, such as ``models``.
        has_boto3: whether the code imports boto3 or botocore.
        is_coroutine: whether the handler is ``async def``.
        has_generator: whether the handler is a generator, which streams its answer.
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
    """Return the buckets, tables and modules that the code of a Python function uses.

    Args:
        code: the code folder.
        handler: ``module.function``; slashes may separate the parts of the module's name.
    """
    module, _, function = handler.replace("/", ".").rpartition(".")
    trees = _trees(code, module)
    found = _Found()
    for tree in trees.values():
        _Module(tree, found).read()
    handlers = _handlers(trees, module, function)
    return Uses(
        buckets={name: tuple(sorted(operations)) for name, operations in sorted(found.stores["bucket"].items())},
        tables={name: tuple(sorted(operations)) for name, operations in sorted(found.stores["table"].items())},
        other_names=tuple(sorted(found.other_names)),
        has_boto3=found.has_boto3,
        is_coroutine=any(isinstance(node, ast.AsyncFunctionDef) for node in handlers),
        has_generator=any(_has_yield(node) for node in handlers),
    )


def _handlers(
    trees: Mapping[str, ast.Module], module: str, name: str, seen: frozenset[tuple[str, str]] = frozenset()
) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return the functions that a module's name may be: defined in it, assigned, or imported from the code folder."""
    tree = trees.get(module)
    if tree is None or (module, name) in seen:
        return []
    found: list[ast.FunctionDef | ast.AsyncFunctionDef] = []
    seen |= {(module, name)}
    for node in _statements(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
            found.append(node)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            if any(isinstance(target, ast.Name) and target.id == name for target in node.targets):
                found += _handlers(trees, module, node.value.id, seen)
        elif isinstance(node, ast.ImportFrom) and node.level <= 1:
            for alias in node.names:
                if name == (alias.asname or alias.name):
                    package = module.rpartition(".")[0] if node.level == 1 else ""
                    origin = ".".join(filter(None, (package, node.module)))
                    found += _handlers(trees, origin, alias.name, seen)
    return found


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements of a module, with those in its ``if`` and ``try`` blocks, without those of functions."""
    for inner in ast.iter_child_nodes(node):
        yield inner
        if not isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            yield from _statements(inner)


def _has_yield(function: ast.AST) -> bool:
    """Return whether a function's own body, without functions inside it, has a ``yield``."""
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
    """Return whether a piece of code may import modules that its import statements do not show."""
    if isinstance(node, ast.Attribute):
        return node.attr == "path" and isinstance(node.value, ast.Name) and node.value.id == "sys"
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
    """The stores and names found so far."""

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
        self._values = _values_of_names(tree)
        self._texts = _constant_texts(self._values)
        self._loads: dict[str, list[ast.expr]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                self._loads.setdefault(node.id, []).append(node)
        self._exported = set(_exported(tree))
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
        """Add the store that an expression with ``thawd.bucket`` or ``thawd.table`` names."""
        call = self._parents[function]
        if not (isinstance(call, ast.Call) and call.func is function):
            self._found.add(kind, ANY, _OPERATIONS[kind])
            return
        argument = call.args[0] if call.args else next((word.value for word in call.keywords), None)
        name = ANY
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            name = argument.value
        elif isinstance(argument, ast.Name):
            name = self._name_of(argument.id)
        elif argument is not None and _is_bucket_of_event(argument):
            name = NOTIFYING
        self._found.add(kind, name, self._operations(call, kind))

    def _name_of(self, variable: str) -> str:
        """Return the only text that a variable can have; `NOTIFYING` if its value always comes from an event of S3."""
        if variable in self._texts:
            return self._texts[variable]
        values = self._values.get(variable, [])
        is_notifying = bool(values) and all(value is not None and _is_bucket_of_event(value) for value in values)
        return NOTIFYING if is_notifying else ANY

    def _operations(self, call: ast.Call, kind: str) -> tuple[str, ...]:
        """Return the operations on the store that a call returns: methods of the result, or of its variable."""
        holder: ast.expr = call
        parent = self._parents[call]
        loads: list[ast.expr] = [call]
        if isinstance(parent, (ast.Assign, ast.AnnAssign)) and parent.value is holder:
            targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
            if not (len(targets) == 1 and isinstance(targets[0], ast.Name) and self._values[targets[0].id] == [call]):
                return _OPERATIONS[kind]
            loads = self._loads.get(targets[0].id, [])
            if targets[0].id in self._exported:
                return _OPERATIONS[kind]
        methods = set()
        for load in loads:
            use = self._parents[load]
            if not (isinstance(use, ast.Attribute) and use.attr in _OPERATIONS[kind]):
                return _OPERATIONS[kind]
            methods.add(use.attr)
        return tuple(sorted(methods))


def _is_bucket_of_event(value: ast.expr) -> bool:
    """Return whether an expression ends with ``["s3"]["bucket"]["name"]``."""
    for key in ("name", "bucket", "s3"):
        if not (
            isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Constant) and value.slice.value == key
        ):
            return False
        value = value.value
    return True


def _exported(scope: ast.AST) -> Iterator[str]:
    """Yield the names that code outside the module may use: those of the module and of its classes, and global ones."""
    for node in ast.walk(scope):
        if isinstance(node, ast.Global):
            yield from node.names
    waiting = [scope]
    while waiting:
        for node in ast.iter_child_nodes(waiting.pop()):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                waiting.append(node)


def _values_of_names(tree: ast.Module) -> dict[str, list[ast.expr | None]]:
    """Return the values that each name gets anywhere in a module; None for a value that is not an expression."""
    values: dict[str, list[ast.expr | None]] = {}
    known: set[ast.Name] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) or (isinstance(node, ast.AnnAssign) and node.value is not None):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                for name, value in _pairs(target, node.value):
                    values.setdefault(name.id, []).append(value)
                    known.add(name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node not in known:
            values.setdefault(node.id, []).append(None)
        elif isinstance(node, ast.arg):
            values.setdefault(node.arg, []).append(None)
        for bound in _bound_otherwise(node):
            values.setdefault(bound, []).append(None)
    if any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in ast.walk(tree)):
        for given in values.values():  # any of the names may come from the other module
            given.append(None)
    return values


def _bound_otherwise(node: ast.AST) -> Iterator[str]:
    """Yield the names to which a statement gives values that are no expressions."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, _NAMED):
        if node.name is not None:
            yield node.name
    elif isinstance(node, ast.MatchMapping) and node.rest is not None:
        yield node.rest


def _pairs(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[ast.Name, ast.expr]]:
    if isinstance(target, ast.Name) and value is not None:
        yield target, value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for inner, part in zip(target.elts, value.elts, strict=True):
            yield from _pairs(inner, part)


def _constant_texts(values: dict[str, list[ast.expr | None]]) -> dict[str, str]:
    """Return the texts of the names to which the module assigns one text and no other value."""
    texts = {}
    for name, given in values.items():
        only = given[0] if len(given) == 1 else None
        if isinstance(only, ast.Constant) and isinstance(only.value, str):
            texts[name] = only.value
    return texts
