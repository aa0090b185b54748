"""Options of ``[functions.NAME]`` and ``[runtimes]``."""

from __future__ import annotations

import re

from thawd.config import kinds
from thawd.config.options.option import REQUIRED, Option
from thawd.grammar import destination_names
from thawd.resources import NODE_RUNTIMES, PROVIDED_RUNTIMES, PYTHON_RUNTIMES, RUNTIMES

FUNCTION_NAME = kinds.pattern("a name of 1 to 64 letters, digits, hyphens and underscores", r"[A-Za-z0-9_-]{1,64}")

VARIABLE_NAME = kinds.pattern(
    "a name of at least 2 letters, digits and underscores that begins with a letter", r"[A-Za-z][A-Za-z0-9_]+"
)

VARIABLE_VALUE = kinds.text("a text in quotes", secret=True)

LOG_GROUP = kinds.pattern(
    "a name of 1 to 200 letters, digits, dots, hyphens, underscores, slashes and #", r"[A-Za-z0-9._/#-]{1,200}"
)

RUNTIME_NAME = kinds.pattern(
    f'"{PYTHON_RUNTIMES[0]}" to "{PYTHON_RUNTIMES[-1]}", '
    + ", ".join(f'"{name}"' for name in (*NODE_RUNTIMES, *PROVIDED_RUNTIMES[:-1]))
    + f' or "{PROVIDED_RUNTIMES[-1]}"',
    "|".join(map(re.escape, RUNTIMES)),
)

_DESTINATION = kinds.text(destination_names.FORMS, lambda text: destination_names.parse(text) is not None)

_DEAD_LETTER = kinds.text(
    "the ARN of an SQS queue or an SNS topic", lambda text: destination_names.parse_dead_letter(text) is not None
)


def _is_path_or_paths(value: object) -> bool:
    paths = value if isinstance(value, list) else [value]
    return bool(paths) and all(isinstance(path, str) and path != "" and "\0" not in path for path in paths)


FUNCTION = (
    Option(
        "handler",
        kinds.handler(),
        "Function in the code that is called for each event.",
        "required, except with `image`",
    ),
    Option(
        "image",
        kinds.text("the reference of a container image", lambda text: text.strip() == text != ""),
        "Container image that is the function's code: the name of an image in the store (`thawd image ls`), a folder "
        "with an OCI layout, a file made by `docker save`, or an image in a registry. Functions run with the image's "
        "files as their root.",
        "none: the code is a folder",
    ),
    Option(
        "image_config",
        kinds.table('a table such as { command = ["app.handler"] }'),
        "What replaces parts of the image's own configuration.",
        "none",
    ),
    Option("code", kinds.folder(), "Folder with the function's code; it must exist.", '"."'),
    Option(
        "runtime",
        RUNTIME_NAME,
        "Lambda's runtime identifier: Python, Node or `provided`. With `provided`, the code contains a program named "
        "`bootstrap`.",
        "thawd's Python runtime",
    ),
    Option(
        "python",
        kinds.interpreter(),
        "Interpreter that runs the function.",
        "the interpreter that runs thawd",
    ),
    Option(
        "requirements",
        kinds.file(),
        "Requirements file. Its packages are installed once, in a virtual environment that the function uses.",
        "none",
    ),
    Option("memory_mb", kinds.whole(128, 10_240), "Memory limit of one execution environment, in MiB."),
    Option(
        "timeout_s",
        kinds.whole(1, 900),
        "Time limit of one invocation, in seconds. At the limit, the invocation's environment is killed.",
    ),
    Option("init_timeout_s", kinds.whole(1, 900), "Time limit of the init phase (importing the module), in seconds."),
    Option(
        "environment",
        kinds.table("a table of texts, at most 4096 bytes in all, without names that Lambda reserves"),
        "Environment variables of the handler.",
        "{}",
    ),
    Option(
        "environment_file",
        kinds.Kind("a path of a file, or a list of such paths", _is_path_or_paths, textual=True),
        "`.env` files with environment variables of the handler. Later files override earlier ones, and `environment` "
        "overrides all. See [Variables from a file](#variables-from-a-file).",
        "none",
    ),
    Option(
        "reserved_concurrency",
        kinds.whole(0, 10_000),
        "Largest number of environments of this function at the same time. Other functions cannot use these. 0 "
        "throttles every request.",
        "none: shared with other functions",
    ),
    Option(
        "provisioned_concurrency",
        kinds.whole(0, 10_000),
        "Number of environments to keep initialised; at most `reserved_concurrency`, if that is set.",
    ),
    Option(
        "snapshot",
        kinds.flag(),
        "Whether environments are thawed from a snapshot of the initialised function instead of running init each "
        "time.",
    ),
    Option(
        "snapshot_connections",
        kinds.choice("drop", "refuse"),
        'What to do with connections that the init phase opened. "drop": they are closed in a thawed environment, so '
        'the function must connect again; "refuse": no snapshot is taken of such a function.',
    ),
    Option(
        "snapshot_listeners",
        kinds.choice("refuse", "close"),
        'What to do if the init phase listens on a port that the function chose. "refuse": no snapshot is taken of '
        'such a function; "close": a snapshot is taken, but that socket accepts no connections in a thawed '
        "environment.",
    ),
    Option(
        "snapshot_clocks",
        kinds.choice("go_on", "may_go_back"),
        "The clocks that count from the machine's start, if a snapshot is older than that start. They go on from the "
        'snapshot, which takes a time namespace. Where the machine allows none: "go_on": the snapshot is made again; '
        '"may_go_back": it is used nevertheless, and waits and time-outs that init has begun may last longer.',
    ),
    Option(
        "prime",
        kinds.event(),
        "Priming event: the function is run on it twice before it is frozen, so that the snapshot contains everything "
        "that the first invocation loads. A thawed copy must then answer it without an error; if the function always "
        "gives the same answer, the copy must give that one.",
        "none",
    ),
    Option(
        "idle_timeout_s",
        kinds.number(0, 86_400),
        "Idle time after which an environment is stopped, in seconds; see also `keep_alive`.",
    ),
    Option(
        "keep_alive",
        kinds.choice("fixed", "histogram"),
        'How long idle environments are kept. "fixed": for `idle_timeout_s`; "histogram": thawd learns from the '
        "function's earlier idle times when the next request is likely. It stops the environments until then, prewarms "
        "one (starts it before that request), and keeps it while the request is likely.",
    ),
    Option(
        "batch",
        kinds.table("a table such as { size = 16, window_ms = 2 }"),
        "How requests that wait at the same time are run together. The handler takes a list of events and returns a "
        "list of answers.",
        "none: the handler takes one event",
    ),
    Option(
        "concurrency",
        kinds.whole(1, 1000),
        "Most invocations that one environment runs at the same time. Above 1, the handler must be `async def`, or an "
        "ASGI application: its invocations share one event loop.",
    ),
    Option("maximum_retry_attempts", kinds.whole(0, 2), "Most retries of a failed asynchronous event."),
    Option(
        "maximum_event_age_s",
        kinds.whole(60, 21_600),
        "Age above which an asynchronous event is not tried again, in seconds.",
    ),
    Option("on_success", _DESTINATION, "Destination of the outcomes of asynchronous events that succeeded.", "none"),
    Option("on_failure", _DESTINATION, "Destination of the outcomes of events that became dead letters.", "none"),
    Option("dead_letter", _DEAD_LETTER, "Queue or topic that gets the payloads of dead letters.", "none"),
    Option(
        "ephemeral_storage_mb",
        kinds.whole(512, 10_240),
        "Capacity of an environment's `/tmp`, in MiB. An environment that stores more in it is killed.",
    ),
    Option(
        "freeze_idle", kinds.flag(), "Whether an environment's processes are paused between invocations, as on Lambda."
    ),
    Option("log_format", kinds.choice("Text", "JSON"), "Format of the platform's log lines and of `logging` records."),
    Option(
        "application_log_level",
        kinds.choice("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL"),
        "Lowest level of `logging` records that are kept; only with `log_format` JSON.",
        '"INFO" with the format JSON',
    ),
    Option(
        "system_log_level",
        kinds.choice("DEBUG", "INFO", "WARN"),
        "Lowest level of the platform's log lines that are kept; only with `log_format` JSON.",
        '"INFO" with the format JSON',
    ),
    Option("log_group", LOG_GROUP, "Name of the log group; functions may share one.", "/aws/lambda/NAME"),
    Option(
        "tracing",
        kinds.choice("PassThrough", "Active"),
        '"Active": traces invocations, so that their pages show what the handler called; see '
        "[Traces](../how-to/traces.md#calls-on-the-page-of-an-invocation). With `server.traces`, all functions are "
        "traced.",
    ),
    Option(
        "tenants",
        kinds.flag(),
        "Whether each invocation names a tenant (header `X-Amz-Tenant-Id`), and each tenant has environments of its "
        "own. See [Tenants](../how-to/separate-tenants.md).",
    ),
    Option("url", kinds.table("a table, `[functions.NAME.url]`"), "Function URL: its own HTTP endpoint.", "none"),
    Option(
        "provisioned_schedule",
        kinds.list_of("a list of tables, each as `[[functions.NAME.provisioned_schedule]]`"),
        "Times at which `provisioned_concurrency` changes.",
        "none",
    ),
    Option(
        "sources",
        kinds.list_of("a list of tables, each as `[[functions.NAME.sources]]`"),
        "SQS queues whose messages invoke the function.",
        "none",
    ),
)

BATCH = (
    Option("size", kinds.whole(1, 256), "Most requests that one environment runs together.", REQUIRED),
    Option(
        "window_ms",
        kinds.number(0, 1000),
        "While fewer than `size` requests wait and all environments of the function are busy or starting, the start of "
        "a further environment is delayed by this time, in milliseconds. It never delays a request for which an "
        "environment is available.",
    ),
)

ARGUMENT = kinds.text("a text")

_ARGUMENTS = kinds.list_of('a list of texts such as ["app.handler"]')

IMAGE_CONFIG = (
    Option("entry_point", _ARGUMENTS, "Program and its first arguments, instead of ENTRYPOINT.", "the image's"),
    Option("command", _ARGUMENTS, "Further arguments, instead of CMD.", "the image's"),
    Option(
        "working_directory",
        kinds.text("an absolute path in the image", lambda text: text.startswith("/")),
        "Working folder, instead of WORKDIR.",
        "the image's",
    ),
)

RUNTIME = Option(
    '"RUNTIME"',
    kinds.text("a path of an interpreter, or a command on PATH", len),
    "Interpreter (Python or Node) for functions of this runtime. Runtimes whose name begins with `provided` need none: "
    "the function's own program runs.",
    "thawd searches for one",
)
