"""The table of all options of ``thawd.toml``: name, what is allowed, default, meaning.

Reading, error messages and the documentation are all made from it; an option that it lacks does not exist.
Defaults come from the structs that hold the values, so that they too stand in one place.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec

from thawd.config import kinds
from thawd.config.kinds import Kind
from thawd.config.settings import ServerSettings
from thawd.grammar import destination_names
from thawd.resources import (
    NODE_RUNTIMES,
    PROVIDED_RUNTIMES,
    PYTHON_RUNTIMES,
    RUNTIMES,
    Bucket,
    Cors,
    Function,
    FunctionUrl,
    HttpApi,
    Notification,
    ProvisionedSchedule,
    RemoteBucket,
    Route,
    Schedule,
    SqsSource,
    Table,
)

EVENT_TYPES = (
    "s3:ObjectCreated:*",
    "s3:ObjectCreated:Put",
    "s3:ObjectCreated:Post",
    "s3:ObjectCreated:Copy",
    "s3:ObjectCreated:CompleteMultipartUpload",
    "s3:ObjectRemoved:*",
    "s3:ObjectRemoved:Delete",
)
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "ANY")

FUNCTION_NAME = kinds.pattern("a name of 1 to 64 letters, digits, hyphens and underscores", r"[A-Za-z0-9_-]{1,64}")
TABLE_NAME = kinds.pattern(
    "a name of 1 to 255 letters, digits, dots, hyphens and underscores", r"[A-Za-z0-9_.-]{1,255}"
)
BUCKET_NAME = kinds.pattern(
    "a name of 3 to 63 lower-case letters, digits, hyphens and single dots, "
    "with a letter or digit at both ends, and not an IP address",
    r"(?!\d+\.\d+\.\d+\.\d+$)(?!.*\.\.)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]",
)
ROUTE_KEY = (
    f'"$default", or one of {", ".join(METHODS)}, a space, and a path such as /items, /items/{{id}} or /files/{{path+}}'
)
VARIABLE_NAME = kinds.pattern(
    "a name of at least 2 letters, digits and underscores that begins with a letter", r"[A-Za-z][A-Za-z0-9_]+"
)
LOG_GROUP = kinds.pattern(
    "a name of 1 to 200 letters, digits, dots, hyphens, underscores, slashes and #", r"[A-Za-z0-9._/#-]{1,200}"
)
VARIABLE_VALUE = kinds.text("a text in quotes", secret=True)

RUNTIME_NAME = kinds.pattern(
    f'"{PYTHON_RUNTIMES[0]}" to "{PYTHON_RUNTIMES[-1]}", '
    + ", ".join(f'"{name}"' for name in (*NODE_RUNTIMES, *PROVIDED_RUNTIMES[:-1]))
    + f' or "{PROVIDED_RUNTIMES[-1]}"',
    "|".join(map(re.escape, RUNTIMES)),
)

_REQUIRED = "required"
_DESTINATION = kinds.text(destination_names.FORMS, lambda text: destination_names.parse(text) is not None)
_DEAD_LETTER = kinds.text(
    "the ARN of an SQS queue or an SNS topic", lambda text: destination_names.parse_dead_letter(text) is not None
)
_FOLDER = kinds.text("a path of a folder", len)
_FILE = kinds.text("a path of a file", len)
_NO_LEADING_SLASH = kinds.text("a text; keys do not begin with a slash", lambda value: not value.startswith("/"))


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Attributes:
        name: its key.
        kind: what is allowed.
        meaning: one sentence or two for the user, with the unit.
        default: the default in words, where the struct's own would not tell; empty: taken from the struct.
    """

    name: str
    kind: Kind
    meaning: str
    default: str = ""

    @property
    def required(self) -> bool:
        """Whether the option must be given."""
        return self.default == _REQUIRED


@dataclass(frozen=True, slots=True)
class OptionDescription:
    """One option as documentation shows it.

    Attributes:
        key: its key path, for example ``functions.NAME.memory_mb``.
        allowed: what may stand there, in words.
        default: the default as it would stand in TOML, or in words; ``required`` where there is none.
        meaning: what it does, with the unit.
    """

    key: str
    allowed: str
    default: str
    meaning: str


SERVER = (
    Option("host", kinds.host(), "Address to listen on. One that other machines can reach needs a `key`."),
    Option("port", kinds.whole(0, 65535), "TCP port to listen on; 0 takes any free one."),
    Option(
        "key",
        kinds.text(
            "a text of 8 to 256 printable ASCII characters without spaces",
            re.compile(r"[!-~]{8,256}").fullmatch,
            secret=True,
        ),
        "What callers must present. Better kept out of the file, in `THAWD_KEY`.",
        "none",
    ),
    Option(
        "names",
        kinds.list_of('a list of host names, such as "build-box.example"'),
        "Host names by which requests are served while there is no `key`, besides those of this machine: a proxy's, "
        "a tunnel's. Requests that say others are refused.",
        "[]",
    ),
    Option("data", _FOLDER, "Folder for everything thawd stores; made when missing.", '".thawd"'),
    Option("grace_s", kinds.number(0, 3600), "How long invocations in flight may go on at a stop, in seconds."),
    Option(
        "max_environments",
        kinds.whole(1, 10_000),
        "Most execution environments at once, all functions together.",
        "from the machine",
    ),
    Option(
        "memory_mb",
        kinds.whole(128, 16_777_216),
        "Memory budget of all execution environments together, in MiB.",
        "from the machine",
    ),
    Option(
        "max_waiting",
        kinds.whole(1, 100_000),
        "Most requests of one function that wait for an environment; more are answered 429.",
    ),
    Option(
        "queue_timeout_s",
        kinds.number(0, 900),
        "How long a synchronous request may wait for an environment, in seconds; then it is answered 429.",
    ),
    Option(
        "retry_wait_s",
        kinds.number(0, 3600),
        "Wait before the first retry of an asynchronous event, in seconds; the second waits twice that.",
    ),
    Option(
        "max_queued",
        kinds.whole(1, 1_000_000_000),
        "With so many asynchronous events waiting, no more are accepted: 429, and objects in buckets wait.",
    ),
    Option(
        "dead_letter_retention_s",
        kinds.number(60, 315_360_000),
        "How long an event that was given up is kept, in seconds.",
    ),
    Option(
        "private_tmp",
        kinds.flag(),
        "Whether each environment has a `/tmp` of its own, and finds its code read-only, where the kernel allows that.",
    ),
    Option(
        "capabilities",
        kinds.flag(),
        "Whether functions keep the capabilities that thawd has, as those of root; else they have none.",
    ),
    Option(
        "user",
        kinds.text("the name of a user", re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}").fullmatch),
        "Whom a server that root starts becomes, and its functions with it; `thawd up --user`.",
        "none",
    ),
    Option(
        "cpu_limits",
        kinds.flag(),
        "Hold each environment to the CPU share that goes with its memory: 1,769 MB are one CPU. Needs a cgroup.",
    ),
    Option("log_max_mb", kinds.whole(1, 1024), "Size at which a log file is rotated, in MiB."),
    Option(
        "snapshots",
        kinds.choice("auto", "off"),
        'Whether functions are frozen once and thawed; "off": environments are forked or start cold.',
    ),
    Option(
        "snapshots_max_mb",
        kinds.whole(0, 16_777_216),
        "Disk space for snapshots, in MiB; those in use stay even beyond it.",
    ),
    Option(
        "access_keys",
        kinds.table('a table of access key ids and secrets, such as { AKIALOCAL = "a-long-secret" }', secret=True),
        "Keys for signed requests. Where there are any, Lambda's API takes no others, but for those with `key`. "
        "Better kept out of the file, in `THAWD_ACCESS_KEYS`.",
        "{}",
    ),
    Option(
        "webhook_secret",
        kinds.text(
            "a text of 8 to 256 printable ASCII characters without spaces",
            re.compile(r"[!-~]{8,256}").fullmatch,
            secret=True,
        ),
        "What records for destinations at an address are signed with. Better kept out of the file, in "
        "`THAWD_WEBHOOK_SECRET`.",
        "none",
    ),
    Option(
        "webhooks_plain_http",
        kinds.flag(),
        "Whether destinations at another machine may have an address that begins with http://, which anybody between "
        "can read.",
    ),
    Option("snapshots_max_age_s", kinds.number(0, 31_536_000), "A snapshot unused for so long is removed, in seconds."),
)

FUNCTION = (
    Option("handler", kinds.handler(), "The function to call, as on Lambda.", _REQUIRED),
    Option("code", _FOLDER, "Folder with the code; it must exist.", '"."'),
    Option(
        "runtime",
        RUNTIME_NAME,
        "Lambda's name of what runs the function: Python, Node, or a program of its own named `bootstrap`.",
        "thawd's Python runtime",
    ),
    Option(
        "python",
        kinds.interpreter(),
        "Interpreter that runs the function.",
        "the one that runs thawd",
    ),
    Option(
        "requirements",
        _FILE,
        "Requirements file; an environment with these packages is made once and kept.",
        "none",
    ),
    Option("memory_mb", kinds.whole(128, 10_240), "Memory limit of one execution environment, in MiB."),
    Option("timeout_s", kinds.whole(1, 900), "Longest run of one invocation, in seconds; then it is killed."),
    Option("init_timeout_s", kinds.whole(1, 900), "Longest init phase (loading the module), in seconds."),
    Option(
        "environment",
        kinds.table("a table of texts, at most 4096 bytes in all, without the names that Lambda reserves"),
        "Environment variables of the handler.",
        "{}",
    ),
    Option(
        "reserved_concurrency",
        kinds.whole(0, 10_000),
        "Most environments of this function at once, kept free for it; 0 throttles every request.",
        "none: shared",
    ),
    Option(
        "provisioned_concurrency",
        kinds.whole(0, 10_000),
        "Environments kept initialised; at most `reserved_concurrency` where that is set.",
    ),
    Option("snapshot", kinds.flag(), "Start environments from the initialised function, not each from nothing."),
    Option(
        "snapshot_connections",
        kinds.choice("drop", "refuse"),
        "Connections that init opened: a thawed environment finds them ended and connects anew, or there is no "
        "snapshot.",
    ),
    Option(
        "snapshot_listeners",
        kinds.choice("refuse", "close"),
        "Sockets on which init listens, on a port of its choice: no snapshot, or nobody reaches them in a thawed "
        "environment.",
    ),
    Option(
        "prime",
        kinds.event(),
        "An event to run, twice, before the function is frozen: what its first run loads is then in the snapshot.",
        "none",
    ),
    Option("idle_timeout_s", kinds.number(0, 86_400), "An environment idle for so long is ended, in seconds."),
    Option(
        "keep_alive",
        kinds.choice("fixed", "histogram"),
        '"fixed": idle environments are kept for `idle_timeout_s`; "histogram": for times learnt from arrivals, and '
        "one is started ahead of the next.",
    ),
    Option("maximum_retry_attempts", kinds.whole(0, 2), "Retries of a failed asynchronous event."),
    Option(
        "maximum_event_age_s",
        kinds.whole(60, 21_600),
        "An asynchronous event older than this is not tried again, in seconds.",
    ),
    Option("on_success", _DESTINATION, "Where results of asynchronous events go.", "none"),
    Option("on_failure", _DESTINATION, "Where the records of asynchronous events go that are given up.", "none"),
    Option("dead_letter", _DEAD_LETTER, "Where the payloads of asynchronous events go that are given up.", "none"),
    Option(
        "ephemeral_storage_mb",
        kinds.whole(512, 10_240),
        "What an environment's `/tmp` may hold, in MiB; with more it is ended.",
    ),
    Option("freeze_idle", kinds.flag(), "Stop an environment's processes between invocations, as Lambda does."),
    Option("log_format", kinds.choice("Text", "JSON"), "Form of the platform's lines and of `logging` records."),
    Option(
        "application_log_level",
        kinds.choice("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL"),
        "Least level of `logging` records; only with the format JSON.",
        '"INFO" with the format JSON',
    ),
    Option(
        "system_log_level",
        kinds.choice("DEBUG", "INFO", "WARN"),
        "Least level of the platform's lines; only with the format JSON.",
        '"INFO" with the format JSON',
    ),
    Option("log_group", LOG_GROUP, "The log group; functions may share one.", "/aws/lambda/NAME"),
    Option("url", kinds.table("a table, `[functions.NAME.url]`"), "An HTTP address of the function's own.", "none"),
    Option(
        "provisioned_schedule",
        kinds.list_of("a list of tables, each as `[[functions.NAME.provisioned_schedule]]`"),
        "Times at which `provisioned_concurrency` becomes another number.",
        "none",
    ),
    Option(
        "sources",
        kinds.list_of("a list of tables, each as `[[functions.NAME.sources]]`"),
        "SQS queues whose messages invoke the function.",
        "none",
    ),
)

URL = (
    Option(
        "auth_type",
        kinds.choice("NONE", "AWS_IAM"),
        '"NONE": anybody who reaches the port may call; "AWS_IAM": requests are signed with one of `access_keys`.',
        _REQUIRED,
    ),
    Option(
        "invoke_mode",
        kinds.choice("BUFFERED", "RESPONSE_STREAM"),
        "Whether answers are sent when they are whole, or as they come.",
    ),
    Option(
        "cors", kinds.table("a table of the options of `[http.cors]`"), "Which pages of other origins may call.", "none"
    ),
)
HOST = kinds.host()
ACCESS_KEY_ID = kinds.pattern("a name of 3 to 128 letters, digits and underscores", r"[A-Za-z0-9_]{3,128}")
SECRET_ACCESS_KEY = kinds.text(
    "a text of 4 to 256 printable ASCII characters without spaces", re.compile(r"[!-~]{4,256}").fullmatch, secret=True
)

BUCKET = (
    Option(
        "path",
        _FOLDER,
        "The folder that is the bucket; made when missing. No bucket lies in another's folder.",
        "the bucket's name",
    ),
    Option(
        "notify",
        kinds.list_of('a list of tables such as { function = "classify", suffix = ".png" }'),
        "Functions to invoke when objects appear or go.",
        "[]",
    ),
)

REMOTE_BUCKET = (
    Option(
        "url",
        kinds.text(
            'a URL such as "s3://bucket/prefix", "gs://bucket" or "az://container?account=NAME"', len, secret=True
        ),
        "Where the bucket is instead: S3 or what speaks it, Google Cloud Storage, Azure.",
        "none: a folder",
    ),
    Option(
        "poll_s", kinds.number(1, 86_400), "With a URL: time between two listings that look for changes, in seconds."
    ),
    Option(
        "existing",
        kinds.choice("notify", "skip"),
        'With a URL: whether objects from before the first listing give events; "skip": they do not.',
    ),
    Option(
        "notifications",
        kinds.queue(),
        "With a URL of S3: the SQS queue that gets the bucket's own notifications; it is then not listed.",
        "none: it is listed",
    ),
)

NOTIFICATION = (
    Option("function", kinds.text("the name of a function of this file"), "Function to invoke.", _REQUIRED),
    Option(
        "events",
        kinds.list_of(
            f"a list of one or more of {', '.join(EVENT_TYPES)}",
            least=1,
        ),
        "S3 event types that invoke it.",
        '["s3:ObjectCreated:*"]',
    ),
    Option("prefix", _NO_LEADING_SLASH, "Only keys that begin so.", '""'),
    Option("suffix", kinds.text("a text"), "Only keys that end so.", '""'),
)

TABLE = (
    Option("path", _FILE, "The SQLite file that is the table; made when missing.", "tables/NAME.db in `data`"),
    Option(
        "url",
        kinds.text(
            'a URL such as "postgresql://user@host/db" or "dynamodb://TABLE?region=eu-west-1"', len, secret=True
        ),
        "Where the table is instead: PostgreSQL or DynamoDB. `${NAME}` stands for an environment variable.",
        "none: a SQLite file",
    ),
)

ROUTE = Option(
    '"METHOD /path"',
    kinds.route(),
    f"Function that answers such requests. The key is {ROUTE_KEY}.",
    "none",
)

ROUTE_TABLE = (
    Option("function", kinds.text("the name of a function of this file"), "Function that answers.", _REQUIRED),
    Option("payload_format", kinds.choice("1.0", "2.0"), "Format of the event and of the answer."),
    Option("asynchronous", kinds.flag(), "Store requests durably and answer 202 at once; they are run afterwards."),
)

SOURCE = (
    Option("sqs", kinds.queue(), "The queue.", _REQUIRED),
    Option(
        "batch_size",
        kinds.whole(1, 10_000),
        "Most messages of one invocation; over 10 needs a `window_s`, a FIFO queue takes at most 10.",
    ),
    Option("window_s", kinds.whole(0, 300), "How long a batch gathers messages, in seconds; 0: it does not wait."),
    Option(
        "maximum_concurrency",
        kinds.whole(2, 1000),
        "Most batches at once.",
        "as many as the function has environments",
    ),
    Option(
        "filters",
        kinds.list_of("a list of 1 to 5 event patterns, as tables or as JSON texts", least=1),
        "Messages that match none of them are deleted.",
        "none: all messages are wanted",
    ),
    Option(
        "report_batch_item_failures",
        kinds.flag(),
        "Whether the handler's answer names the messages that failed, in `batchItemFailures`.",
    ),
    Option("enabled", kinds.flag(), "Whether it is read."),
)

PROVISIONED_SCHEDULE = (
    Option(
        "schedule",
        kinds.text('"cron(…)" or "at(…)"'),
        "When, as in `[schedules]`; a rate has no time of its own.",
        _REQUIRED,
    ),
    Option(
        "count",
        kinds.whole(0, 10_000),
        "Environments kept initialised from then on, until the next time of any entry.",
        _REQUIRED,
    ),
    Option("timezone", kinds.time_zone(), "Time zone that `schedule` is of."),
)

SCHEDULE_NAME = kinds.pattern(
    "a name of 1 to 64 letters, digits, dots, hyphens and underscores", r"[A-Za-z0-9_.-]{1,64}"
)
SCHEDULE = (
    Option("function", kinds.text("the name of a function of this file"), "Function to invoke.", _REQUIRED),
    Option(
        "schedule",
        kinds.text('"rate(…)", "cron(…)" or "at(…)"'),
        "When, in EventBridge's terms, such as `rate(5 minutes)`, `cron(0 12 * * ? *)`, `at(2026-12-01T09:00:00)`.",
        _REQUIRED,
    ),
    Option("timezone", kinds.time_zone(), "Time zone that `cron` and `at` are of."),
    Option("input", kinds.event(), "The event.", 'EventBridge\'s "Scheduled Event"'),
    Option("enabled", kinds.flag(), "Whether it runs."),
    Option(
        "missed",
        kinds.choice("skip", "once", "all"),
        "Runs that came due while thawd was down: none is made up for, the last of them, or all.",
    ),
)

HTTP = (
    Option(
        "stage_variables",
        kinds.table("a table of texts"),
        "Variables of the stage, which events carry as `stageVariables`.",
        "{}",
    ),
    Option("cors", kinds.table("a table of the options below"), "Which pages of other origins may call.", "none"),
)

CORS = (
    Option(
        "allow_origins",
        kinds.list_of('a list of origins such as "https://example.com", or "https://*", "http://*", "*"'),
        "Pages of these origins may call.",
        "[]",
    ),
    Option("allow_methods", kinds.list_of('a list of methods, or "*"'), "Methods that they may use.", "[]"),
    Option(
        "allow_headers",
        kinds.list_of('a list of names of headers, or "*"'),
        "Headers that their requests may carry.",
        "[]",
    ),
    Option(
        "expose_headers",
        kinds.list_of('a list of names of headers, or "*"'),
        "Headers of answers that they may read.",
        "[]",
    ),
    Option(
        "max_age_s",
        kinds.whole(0, 86_400),
        "How long a browser may remember what is allowed, in seconds; 0: it is not told.",
    ),
    Option("allow_credentials", kinds.flag(), "Whether cookies and authorization may be sent along."),
)
STAGE_VARIABLE_NAME = kinds.pattern("a name of letters, digits and underscores", r"[A-Za-z0-9_]+")
STAGE_VARIABLE_VALUE = kinds.pattern("a text of letters, digits and -._~:/?#&=,", r"[A-Za-z0-9._~:/?#&=,-]{1,512}")

RUNTIME = Option(
    '"RUNTIME"',
    kinds.text("a path of an interpreter, or a command on PATH", len),
    "What executes functions of that runtime, a Python or a Node; `provided` ones bring their own.",
    "looked for",
)

SECTIONS = ("server", "functions", "buckets", "http", "routes", "schedules", "tables", "runtimes")

ENVIRONMENT_VARIABLES = {
    "THAWD_HOST": "host",
    "THAWD_PORT": "port",
    "THAWD_KEY": "key",
    "THAWD_DATA": "data",
    "THAWD_USER": "user",
    "THAWD_SNAPSHOTS": "snapshots",
    "THAWD_ACCESS_KEYS": "access_keys",
    "THAWD_WEBHOOK_SECRET": "webhook_secret",
}
"""Environment variables that override an option of ``[server]``; an empty one counts as unset."""


def describe_options() -> tuple[OptionDescription, ...]:
    """Every option there is, section by section, for the documentation and its test."""
    sections: tuple[tuple[str, type[msgspec.Struct], tuple[Option, ...]], ...] = (
        ("server", ServerSettings, SERVER),
        ("functions.NAME", Function, FUNCTION),
        ("buckets.NAME", Bucket, BUCKET),
        ("buckets.NAME", RemoteBucket, REMOTE_BUCKET),
        ("buckets.NAME.notify[]", Notification, NOTIFICATION),
        ("functions.NAME.url", FunctionUrl, URL),
        ("tables.NAME", Table, TABLE),
        ("http", HttpApi, HTTP),
        ("http.cors", Cors, CORS),
        ("routes[]", Route, ROUTE_TABLE),
        ("functions.NAME.sources[]", SqsSource, SOURCE),
        ("functions.NAME.provisioned_schedule[]", ProvisionedSchedule, PROVISIONED_SCHEDULE),
        ("schedules.NAME", Schedule, SCHEDULE),
    )
    described = [
        OptionDescription(f"{section}.{option.name}", option.kind.allowed, _default(struct, option), option.meaning)
        for section, struct, options in sections
        for option in options
    ]
    described.append(OptionDescription(f"routes.{ROUTE.name}", ROUTE.kind.allowed, ROUTE.default, ROUTE.meaning))
    described.append(
        OptionDescription(f"runtimes.{RUNTIME.name}", RUNTIME.kind.allowed, RUNTIME.default, RUNTIME.meaning)
    )
    return tuple(described)


def _default(struct: type[msgspec.Struct], option: Option) -> str:
    return option.default or kinds.spell(_field_default(struct, option))


def _field_default(struct: type[msgspec.Struct], option: Option) -> object:
    return next(field.default for field in msgspec.structs.fields(struct) if field.name == option.name)
