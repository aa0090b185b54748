"""Generates documentation from the code: options, command line, metrics, errors, layers, and the list of decisions.

``python -m tools.reference`` writes the pages. Some pages are generated completely. Others have generated parts, each
between ``<!-- made: ... -->`` and ``<!-- end -->``. ``tests/architecture/test_reference.py`` fails if a page differs
from what this program generates.
"""

from __future__ import annotations

import ast
import enum
import inspect
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import click

from thawd import config, errors
from thawd.cli import program
from thawd.telemetry import exposition, metrics

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "reference"
DECISIONS = ROOT / "docs" / "decisions"
_MADE = "<!-- This page is made by `python -m tools.reference`; change the code instead. -->\n\n"
_PART = re.compile(r"(<!-- made: (?P<what>\w+) ?(?P<section>[\w.\[\]]*) -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> None:
    """Write all pages."""
    for path, text in pages().items():
        path.write_text(text)


def pages() -> dict[Path, str]:
    """Return the generated text of every page, by its path."""
    return {
        **{
            page: _with_parts(page.read_text())
            for page in (FOLDER / "configuration.md", ROOT / "CONTRIBUTING.md", DECISIONS / "index.md")
        },
        FOLDER / "command-line.md": _MADE + _command_line(),
        FOLDER / "metrics.md": _MADE + _metrics(),
        FOLDER / "errors.md": _MADE + _errors(),
    }


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads), *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)


def _with_parts(page: str) -> str:
    return _PART.sub(lambda part: f"{part[1]}\n{_part(part['what'], part['section'])}\n\n{part[4]}", page)


def _part(what: str, section: str) -> str:
    if what == "layers":
        return _layers()
    if what == "decisions":
        return _decisions()
    if what == "variables":
        rows = ((f"`{name}`", f"`{option}`") for name, option in config.ENVIRONMENT_VARIABLES.items())
        return _table(("variable", "overrides"), rows)
    return _options(section)


def _options(section: str) -> str:
    """Return the options of one section of ``thawd.toml``."""
    found = [option for option in config.describe_options() if option.key.rpartition(".")[0] == section]
    if not found:
        raise LookupError(f"docs/reference/configuration.md asks for the options of {section}, and there are none")
    rows = ((f"`{_name(option)}`", _cell(option.allowed), _default(option), _cell(option.meaning)) for option in found)
    return _table(("option", "allowed", "default", "meaning"), rows)


def _layers() -> str:
    """Return the layers of ``src/thawd``, the highest first, from the contract that `make check` checks."""
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    rows = [
        (str(number), f"`{name}`", _cell(_purpose(name)))
        for number, layer in enumerate(contract["layers"], 1)
        for name in layer.split(" | ")
    ]
    return _table(("layer", "package or module", "what it is for"), rows)


def _decisions() -> str:
    """Return the pages of decisions, by number."""
    titles = (
        (page, page.read_text().partition("\n")[0].removeprefix("# ")) for page in sorted(DECISIONS.glob("0*.md"))
    )
    rows = ((number, f"[{title}]({page.name})") for page, text in titles for number, _, title in [text.partition(". ")])
    return _table(("number", "decision"), rows)


def _purpose(name: str) -> str:
    """Return the first sentence of a module's docstring."""
    module = ROOT / "src" / "thawd" / f"{name}.py"
    source = module if module.exists() else module.with_suffix("") / "__init__.py"
    docstring = ast.get_docstring(ast.parse(source.read_text())) or ""
    return re.split(r"(?<=\.)\s", docstring.split("\n\n")[0].replace("``", "`"))[0]


def _name(option: config.OptionDescription) -> str:
    return option.key.rpartition(".")[2]


def _default(option: config.OptionDescription) -> str:
    """Return the default as code if it is TOML, and unchanged if it is a description in words."""
    is_toml = re.fullmatch(r'-?[\d.]+|true|false|".*"|\[.*\]|\{.*\}', option.default)
    return f"`{option.default}`" if is_toml else _cell(option.default)


def _cell(text: str) -> str:
    """Return text as a cell of a table, with Markdown's special characters escaped."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    escaped = (part if part.startswith("`") else re.sub(r"([*<])", r"\\\1", part) for part in parts)
    # A bar ends a cell even within code. Source: GitHub Flavored Markdown, 4.10, example 200.
    return "".join(escaped).replace("|", r"\|")


def _command_line() -> str:
    verbs = "\n".join(f"| [`thawd {name}`](#thawd-{name}) | {_first(command)} |" for name, command in _verbs())
    sections = "\n\n".join(section for name, command in _verbs() for section in _command(f"thawd {name}", command))
    return f"# Command line\n\n{_paragraphs(program.main)}\n\n| command | does |\n|---|---|\n{verbs}\n\n{sections}\n"


def _verbs() -> list[tuple[str, click.Command]]:
    return sorted(program.main.commands.items())


def _first(command: click.Command) -> str:
    """Return the first sentence of a command's help."""
    return _cell(re.split(r"(?<=[.;:])\s", " ".join(inspect.cleandoc(command.help or "").split()))[0].rstrip(";:"))


def _paragraphs(command: click.Command) -> str:
    text = inspect.cleandoc(command.help or "")
    return "\n\n".join(_cell(part) for part in text.split("\n\n"))


def _command(path: str, command: click.Command) -> Iterator[str]:
    """Yield the section of one command, then those of its subcommands."""
    context = click.Context(command, info_name=path)
    usage = command.get_usage(context).removeprefix("Usage: ")
    parts = [f"#{'#' * path.count(' ')} `{path}`"]
    parts += ["```text\n" + " ".join(usage.split()) + "\n```", _paragraphs(command)]
    records = [
        parameter.get_help_record(context) for parameter in command.params if isinstance(parameter, click.Option)
    ]
    rows = [(_cell(f"`{record[0]}`"), _cell(record[1])) for record in records if record is not None]
    if rows:
        parts.append(_table(("option", "meaning"), rows))
    lines = [line.removeprefix("  ") for line in (command.epilog or "").splitlines() if line.startswith("  ")]
    if lines:
        parts.append("```sh\n" + "\n".join(lines) + "\n```")
    yield "\n\n".join(parts)
    if isinstance(command, click.Group):
        for name, below in sorted(command.commands.items()):
            yield from _command(f"{path} {name}", below)


_METRICS: tuple[tuple[str, str, Callable[[str], str], dict[str, str]], ...] = (
    ("Invocations and starts", "function, kind", lambda name: f"thawd_{name}_seconds", dict(metrics.DISTRIBUTIONS)),
    ("", "function", lambda name: f"thawd_{name}_total", dict(metrics.COUNTERS)),
    ("", "function, kind, outcome", lambda name: f"thawd_{name}_total", {"deliveries": metrics.DELIVERIES}),
    ("", "function, reason", lambda name: f"thawd_{name}_total", {"fallbacks": metrics.FALLBACKS}),
    ("Environments", "function, state", lambda name: f"thawd_{name}", {"environments": metrics.GAUGES["environments"]}),
    ("", "function", lambda name: f"thawd_{name}", {"waiting": metrics.GAUGES["waiting"]}),
    ("Asynchronous events", "function", lambda name: f"thawd_{name}", dict(metrics.EVENT_GAUGES)),
    ("", "function", lambda name: f"thawd_{name}_total", dict(metrics.EVENT_COUNTERS)),
    ("Sources", "source, function", lambda name: f"thawd_{name}_total", dict(metrics.SOURCE_COUNTERS)),
    ("", "source, function", lambda name: f"thawd_{name}", dict(metrics.SOURCE_GAUGES)),
)


def _metrics() -> str:
    """Return every metric that ``GET /metrics`` shows, by group."""
    text = (
        "# Metrics\n\n`GET /metrics` answers in Prometheus' text format, in OpenMetrics or in Prometheus' protobuf "
        "format, as the client's `Accept` header says. Distributions are histograms. The bounds of their buckets are "
        "powers of two, in seconds, and all counts are exact; before its first duration, a series has only the bucket "
        "`+Inf`. In OpenMetrics and protobuf, buckets have exemplars with the trace id of an invocation. In protobuf, "
        "they are also native histograms, whose buckets are 1.1 % wide.\n\n"
        f"`thawd_build_info` has the labels version and python: {exposition.BUILD_INFO[0].lower()}"
        f"{exposition.BUILD_INFO[1:]} The metrics `process_*` are about the server's process, without its "
        "environments.\n"
    )
    for title, labels, name_of, helps in _METRICS:
        if title:
            text += f"\n## {title}\n\n| metric | labels | meaning |\n|---|---|---|\n"
        text += "".join(f"| `{name_of(name)}` | {labels} | {_cell(meaning)} |\n" for name, meaning in helps.items())
    rows = [(f"`{reason.value}`", _cell(meaning)) for reason, meaning in _documented(metrics.Fallback)]
    text += (
        "\n## Reasons of slower starts\n\nValues of the label `reason` of `thawd_fallbacks_total`: what was in the way "
        f"of the fastest start.\n\n{_table(('reason', 'meaning'), rows)}\n"
    )
    rows = [(f"`{outcome.value}`", _cell(meaning)) for outcome, meaning in _documented(metrics.DeliveryOutcome)]
    return text + (
        "\n## Outcomes of deliveries\n\nValues of the label `outcome` of `thawd_deliveries_total`.\n\n"
        f"{_table(('outcome', 'meaning'), rows)}\n"
    )


def _documented(kind: type[enum.StrEnum]) -> list[tuple[enum.StrEnum, str]]:
    """Return the members of an enum with the docstring below each, which Python does not keep."""
    source = inspect.getsource(kind)
    texts = dict(re.findall(r'^    (\w+) = [^\n]*\n    """(.*?)"""', source, re.MULTILINE | re.DOTALL))
    return [(member, texts[member.name]) for member in kind]


def _errors() -> str:
    """Return the errors that the API answers with, by their HTTP status."""
    found = [
        error
        for error in vars(errors).values()
        if isinstance(error, type) and issubclass(error, errors.ThawdError) and error is not errors.ThawdError
    ]
    rows = [
        (str(error.status), f"`{error.type}`", "yes" if error.retryable else "no", _cell(_meaning(error)))
        for error in sorted(found, key=lambda error: (error.status, error.type, error.__name__))
    ]
    return (
        "# Errors\n\nErrors that thawd itself answers with. The type is AWS's error code and stands in the header "
        "`x-amzn-ErrorType`, so that boto3 raises the exception of that name. *Retry* says whether the "
        "same request may succeed later. Errors of functions are not among them: those come with status 200 and "
        f"`X-Amz-Function-Error`, as on Lambda.\n\n{_table(('status', 'type', 'retry', 'meaning'), rows)}\n"
    )


def _meaning(error: type[errors.ThawdError]) -> str:
    """Return the first sentence of an error's docstring, without its status."""
    first = inspect.cleandoc(error.__doc__ or "").split("\n\n")[0]
    return re.sub(r" \(HTTP \d+\)", "", " ".join(first.split()))


if __name__ == "__main__":
    main()
