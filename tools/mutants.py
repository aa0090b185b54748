"""Runs mutmut over the modules that make decisions, and prints the mutants that survive.

    make mutants                                            # every module of PAIRS
    make mutants MODULE=thawd.scheduling.pool               # one module
    make mutants MODULE=thawd.stores.events.event_queue SAMPLE=5  # every fifth mutant of each function

mutmut changes one operator, argument, constant or condition at a time and runs the tests that reach the changed
function. The changed code is a mutant; it survives if no test fails. A survivor points to a missing test, unless the
change makes no difference. This program mutates each module in a copy of the source tree under build/mutants, and runs
only the unit tests that PAIRS names.

Module constants, class bodies and text for people (raised errors, log lines) are not mutated. Mutants that mypy
--strict rejects are not tested, because `make check` would reject such a change. CONTRIBUTING.md says how to read the
output.

Source: https://mutmut.readthedocs.io/
"""

from __future__ import annotations

import ast
import difflib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import thawd

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "mutants"
SOURCE = ROOT / "src" / "thawd"

# The unit tests of each module: names of tests/unit/test_*.py. When a module is renamed, change its line here.
PAIRS: dict[str, str] = {
    "thawd.cluster.placement": "placement",
    "thawd.cluster.machine_index": "placement",
    "thawd.cluster.shares": "shares",
    "thawd.deploy.aws.naming": "aws_template",
    "thawd.deploy.aws.plan": "aws_plan",
    "thawd.deploy.aws.versions_and_aliases": "aws_template",
    "thawd.deploy.aws.buckets_and_tables": "aws_template",
    "thawd.deploy.aws.roles": "aws_template",
    "thawd.deploy.aws.used_stores": "aws_used_stores",
    "thawd.deploy.images.dockerfile.ignoring": "dockerfile",
    "thawd.deploy.images.dockerfile.parsing": "dockerfile",
    "thawd.deploy.images.dockerfile.planning": "dockerfile",
    "thawd.deploy.images.dockerfile.substitution": "dockerfile",
    "thawd.oci.merging": "oci_layers",
    "thawd.oci.image_paths": "oci_layers",
    "thawd.oci.references": "oci_references",
    "thawd.oci.unpacking": "oci_layers",
    "thawd.deploy.packages.planning": "package_planning",
    "thawd.deploy.packages.layering": "package_planning",
    "thawd.deploy.packages.removal": "package_removal",
    "thawd.deploy.packages.elf": "package_removal",
    "thawd.deploy.templates.conditions": "template_functions template_preparation",
    "thawd.deploy.templates.context_free_functions": "template_functions template_values",
    "thawd.deploy.templates.dynamic_references": "template_values template_preparation",
    "thawd.deploy.templates.intrinsic_functions": "template_functions template_values template_preparation",
    "thawd.deploy.templates.language_extensions": "template_functions template_preparation",
    "thawd.deploy.templates.parameters": "template_preparation",
    "thawd.deploy.templates.preparation": "template_preparation template_functions",
    "thawd.deploy.templates.references": "template_functions template_preparation",
    "thawd.gateway.aws.api_messages": "api_addresses",
    "thawd.server.emulator.api_gateway.path_templates": "api_paths",
    "thawd.server.emulator.api_gateway.authorizer_policies": "api_access",
    "thawd.server.emulator.api_gateway.authorizer_cache": "api_access",
    "thawd.server.emulator.api_gateway.usage_plans": "api_access",
    "thawd.server.emulator.api_gateway.json_web_tokens": "api_access",
    "thawd.server.emulator.api_gateway.rest.proxy_events": "api_proxy_events",
    "thawd.server.emulator.cloudformation.change_preview": "stack_engine",
    "thawd.server.emulator.cloudformation.engine": "stack_engine stack_interruptions",
    "thawd.server.emulator.cloudformation.graph_order": "stack_parts stack_engine",
    "thawd.server.emulator.cloudformation.resource_changes": "stack_engine stack_interruptions",
    "thawd.scheduling.pool_requests": "request_batches",
    "thawd.scheduling.batch_runs": "request_batches",
    "thawd.scheduling.pool": "pool pool_failed_starts pool_ends pool_counts pool_keep_alive",
    "thawd.scheduling.room": "room room_any_order room_turns room_reports dispatcher_requests",
    "thawd.scheduling.keep_alive": "keep_alive pool_keep_alive",
    "thawd.scheduling.dispatcher": "dispatcher dispatcher_requests dispatcher_waits publisher",
    "thawd.scheduling.provisioned": "provisioned",
    "thawd.publishing.publisher": "publisher",
    "thawd.stores.events.event_queue": "queue queue_reading queue_restarts queue_limit dead_letters outbox",
    "thawd.stores.events.leases": "queue queue_reading queue_restarts queue_limit dead_letters outbox",
    "thawd.stores.events.batches": "batches",
    "thawd.system.inline": "inline",
    "thawd.stores.events.running_marks": "queue queue_reading queue_restarts queue_limit dead_letters outbox",
    "thawd.queue.outcome_delivery": "outcome_delivery outcome_pace",
    "thawd.queue.lane": "lane",
    "thawd.sources.buckets.s3_event": "s3_event",
    "thawd.sources.buckets.notification_rules": "s3_event",
    "thawd.grammar.event_patterns": "event_patterns",
    "thawd.grammar.schedule_expressions": "schedule_expressions",
    "thawd.grammar.queue_names": "sqs_source sqs_records",
    "thawd.grammar.destination_names": "destination_names",
    "thawd.gateway.sigv4": "sigv4",
    "thawd.gateway.cors": "cors hosts",
    "thawd.gateway.hosts": "hosts",
    "thawd.gateway.http_server.limits": "connections connection_limits",
    "thawd.gateway.lambda_api.inputs": "lambda_inputs",
    "thawd.gateway.lambda_api.event_stream": "event_stream",
    "thawd.wire.frames": "wire",
    "thawd.wire.response_stream": "response_stream",
    "thawd.grammar.log_filters": "log_filter",
    "thawd.grammar.wildcards": "wildcards log_filter",
    "thawd.system.retry": "retry",
    "thawd.config.cross_checks": "config_references config config_functions config_destinations config_stores "
    "config_server config_http config_sources",
    "thawd.config.store_urls": "store_urls config_stores",
    "thawd.config.sections.functions": "config config_functions config_destinations config_runtimes",
    "thawd.config.sections.server": "config config_server",
    "thawd.config.sections.stores": "config config_stores store_urls",
    "thawd.config.sections.sources": "config_sources",
    "thawd.config.sections.http": "config_http",
    "thawd.cost.keep_warm": "keep_alive",
    "thawd.cost.bills": "cost tune",
    "thawd.snapshot.inspect.format_rules": "snapshot_inspect_rules snapshot_inspect_text",
}

# Folders besides the sources that unit tests read.
ALSO_READ = ("tests", "native")

# Lines with text that no test should check exactly: raised errors, log lines, strings of several words.
TEXT_FOR_PEOPLE = [r"^\s*(raise\b|logger\.|log\.)", r'^\s*f?"[^"]* [^"]*"']

# mutmut records one exit code for each mutant: the status with which pytest ended, or a code of mutmut's own.
KILLED, SURVIVED, REFUSED_BY_MYPY = {1, 3}, {0}, {37}
NO_TEST, TIMED_OUT = {5, 33}, {-24, 24, 36, 152, 255}


@dataclass(frozen=True)
class Survivor:
    """A mutant that no test noticed.

    Attributes:
        name: mutmut's name of the mutant, for `mutmut show`.
        why: empty if tests reached the mutant and passed; otherwise says that no test reached it, or that the
            interpreter crashed.
        change: the lines of the difference, with their ``-`` and ``+``.
    """

    name: str
    why: str
    change: tuple[str, ...]


@dataclass(frozen=True)
class Verdicts:
    """The results of one module's mutants. Mutants that ran out of time count as killed."""

    module: str
    killed: int
    timed_out: int
    refused_by_mypy: int
    survivors: list[Survivor]
    text_only: int

    def __str__(self) -> str:
        """Return one line of figures."""
        return (
            f"{self.module}: {self.killed + len(self.survivors)} mutants, {self.killed} killed "
            f"({self.timed_out} by timeout), "
            f"{len(self.survivors)} survived ({self.refused_by_mypy} more refused by mypy, "
            f"{self.text_only} survivors change only text)"
        )


def main() -> None:
    """Runs mutmut on the named modules, or on all, and prints each module's survivors as diffs."""
    modules = sys.argv[1:] or list(PAIRS)
    if unknown := [module for module in modules if module not in PAIRS]:
        sys.exit(f"no tests are paired with {', '.join(unknown)}; tools/mutants.py pairs: {', '.join(PAIRS)}")
    lines = []
    for module in modules:
        folder = prepare(module)
        if not run(folder):
            lines.append(f"{module}: mutmut failed; see {folder / 'mutmut.log'}")
            continue
        verdicts = read(module, folder)
        report(verdicts)
        lines.append(str(verdicts))
    print("\n".join(["", *lines]))
    sys.exit(any("mutmut failed" in line for line in lines))


def prepare(module: str) -> Path:
    """Makes the folder in which mutmut works, and returns it: copies of sources and tests, and a pyproject.toml."""
    folder = FOLDER / module
    shutil.rmtree(folder, ignore_errors=True)
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(SOURCE, folder / "src" / "thawd", ignore=ignore)
    for name in ALSO_READ:
        shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    # CMake's build output is beside the installed package, not in the source tree.
    for installed in {Path(path) for path in thawd.__path__} - {SOURCE}:
        for built in (path for path in installed.iterdir() if path.is_file()):
            shutil.copy2(built, folder / "src" / "thawd" / built.name)
    path = folder / source(module)
    path.write_text(undecorated(path.read_text()))
    # An editable install's import hook comes before sys.path, and would import the unchanged source.
    (folder / "conftest.py").write_text(
        'import sys\n\nsys.meta_path[:] = [f for f in sys.meta_path if "ScikitBuild" not in type(f).__name__]\n'
    )
    (folder / "pyproject.toml").write_text(configuration(module))
    return folder


def source(module: str) -> Path:
    """Returns the path of a module's source below the root."""
    return Path("src", *module.split(".")).with_suffix(".py")


def undecorated(text: str) -> str:
    """Returns source in which assignments after the functions replace `@property` and `@contextlib.contextmanager`.

    mutmut does not mutate decorated functions. It does mutate a function `name_undecorated` that is followed by the
    assignment `name = property(name_undecorated)`. Functions with several decorators stay as they are.
    """
    lines = text.split("\n")
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    for node in sorted(functions, key=lambda node: node.lineno, reverse=True):
        if len(node.decorator_list) != 1 or node.end_lineno is None:
            continue
        decorator = ast.unparse(node.decorator_list[0])
        if decorator not in ("property", "contextlib.contextmanager"):
            continue
        indent = " " * node.col_offset
        lines.insert(node.end_lineno, f"{indent}{node.name} = {decorator}({node.name}_undecorated)")
        lines[node.lineno - 1] = lines[node.lineno - 1].replace(f"def {node.name}(", f"def {node.name}_undecorated(", 1)
        del lines[node.decorator_list[0].lineno - 1]
    return "\n".join(lines)


def configuration(module: str) -> str:
    """Returns the pyproject.toml of the copy: the project's pytest options, and mutmut's."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pytest = {key: value for key, value in project["tool"]["pytest"]["ini_options"].items() if key != "testpaths"}
    # Each mutant runs in a separate process already, so pytest needs no workers.
    pytest["addopts"] = "-q --strict-markers -p no:cacheprovider"
    mypy = {"strict": True, "mypy_path": "src", "python_version": "3.11", "follow_imports": "silent"}
    mutmut = {
        "source_paths": ["src"],
        "only_mutate": [str(source(module))],
        "also_copy": ["conftest.py", *ALSO_READ],
        "do_not_mutate_patterns": TEXT_FOR_PEOPLE,
        "pytest_add_cli_args_test_selection": [f"tests/unit/test_{name}.py" for name in PAIRS[module].split()],
        "type_check_command": [sys.executable, "-m", "mypy", "--output=json", str(source(module))],
        # A mutant that hangs is killed after (duration of the tests + a constant) * this multiplier, in seconds.
        "timeout_multiplier": 6.0,
    }
    # mutmut stops if mypy reports errors in unchanged code. Two warnings would be such errors, so they are off:
    # mutmut adds `type: ignore` comments, and mypy does not know the types of properties that `undecorated` rewrote.
    mypy |= {"warn_unused_ignores": False, "warn_return_any": False}
    tables = {"pytest.ini_options": pytest, "mypy": mypy, "mutmut": mutmut}
    return "\n".join(
        f"[tool.{name}]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in table.items()) + "\n"
        for name, table in tables.items()
    )


def run(folder: Path) -> bool:
    """Runs mutmut in `folder` and writes its output to mutmut.log there.

    Returns False if mutmut failed, for example because a test fails without any mutation.
    """
    sample = int(os.environ.get("SAMPLE") or 1)
    # mutmut numbers the mutants of a function from 1.
    names = [f"*__mutmut_{number}" for number in range(1, 1000, sample)] if sample > 1 else []
    command = [str(Path(sys.executable).with_name("mutmut")), "run", "--max-children", os.environ.get("JOBS") or "2"]
    with (folder / "mutmut.log").open("w") as log:
        return subprocess.run([*command, *names], cwd=folder, stdout=log, stderr=log, check=False).returncode == 0


def read(module: str, folder: Path) -> Verdicts:
    """Returns the results of a module's mutants, from the file that mutmut wrote beside the mutated module."""
    recorded = json.loads((folder / "mutants" / f"{source(module)}.meta").read_text())
    codes: dict[str, int] = {name: code for name, code in recorded["exit_code_by_key"].items() if code is not None}
    bodies = functions(folder / "mutants" / source(module))
    survivors = []
    for name, code in codes.items():
        if code not in KILLED | TIMED_OUT | REFUSED_BY_MYPY:
            why = "" if code in SURVIVED else "no test reaches it" if code in NO_TEST else f"crashed: {code}"
            survivors.append(Survivor(name, why, change(name.rpartition(".")[2], bodies)))
    return Verdicts(
        module,
        killed=sum(code in KILLED | TIMED_OUT for code in codes.values()),
        timed_out=sum(code in TIMED_OUT for code in codes.values()),
        refused_by_mypy=sum(code in REFUSED_BY_MYPY for code in codes.values()),
        survivors=[survivor for survivor in survivors if not is_text(survivor.change)],
        text_only=sum(is_text(survivor.change) for survivor in survivors),
    )


def functions(path: Path) -> dict[str, list[str]]:
    """Returns the lines of each function in a mutated module. mutmut writes the original and all mutants into one file.

    The function's name in these lines is that of the original, so that the lines of two mutants can be compared.
    """
    text = path.read_text()
    lines = text.split("\n")
    found = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            plain = re.sub(r"^x(_|ǁ.*ǁ)|__mutmut_\w+$", "", node.name)
            found[node.name] = [line.replace(node.name, plain) for line in lines[node.lineno - 1 : node.end_lineno]]
    return found


def change(name: str, bodies: dict[str, list[str]]) -> tuple[str, ...]:
    """Returns the changed lines of a mutant, with their ``-`` and ``+``."""
    original = re.sub(r"__mutmut_\d+$", "__mutmut_orig", name)
    return tuple(line for line in difflib.ndiff(bodies[original], bodies[name]) if line[0] in "-+")


def is_text(lines: tuple[str, ...]) -> bool:
    """Returns whether a mutant changes only strings of several words, or only upper and lower case.

    Upper and lower case is the same in SQL keywords, for example.
    """
    sides = {
        tuple(re.sub(r'"[^"]* [^"]*"', '""', line[1:]).casefold() for line in lines if line[0] == sign) for sign in "-+"
    }
    return len(sides) == 1


def report(verdicts: Verdicts) -> None:
    """Prints each survivor: its function, the line, and what the line became."""
    print(f"\n== {verdicts}")
    for survivor in verdicts.survivors:
        print("", f"{survivor.name.rpartition('.')[2]} {survivor.why}".rstrip(), *survivor.change, sep="\n", flush=True)


if __name__ == "__main__":
    main()
