"""What a user declares: functions, buckets, tables, routes, destinations. Immutable.

Names and units are AWS Lambda's where AWS has them (``MemorySize`` in MB is ``memory_mb``). Values here are valid:
`thawd.config` has checked them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

ACCOUNT_ID = "000000000000"
REGION = "us-east-1"
LATEST = "$LATEST"
MEMORY_MB_PER_VCPU = 1769
PYTHON_RUNTIMES = tuple(f"python3.{minor}" for minor in range(9, 15))
NODE_RUNTIMES = ("nodejs18.x", "nodejs20.x", "nodejs22.x", "nodejs24.x")
PROVIDED_RUNTIMES = ("provided", "provided.al2", "provided.al2023")
RUNTIMES = (*PYTHON_RUNTIMES, *NODE_RUNTIMES, *PROVIDED_RUNTIMES)
"""Lambda's names of the runtimes there are."""
MAX_ENVIRONMENT_BYTES = 4096
"""Of a function's variables, names and values together. Source: "Lambda quotas"."""
_RESERVED_VARIABLES = frozenset(
    {
        "_HANDLER",
        "_X_AMZN_TRACE_ID",
        "AWS_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID",
        "AWS_DEFAULT_REGION",
        "AWS_EXECUTION_ENV",
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE",
        "AWS_LAMBDA_FUNCTION_NAME",
        "AWS_LAMBDA_FUNCTION_VERSION",
        "AWS_LAMBDA_INITIALIZATION_TYPE",
        "AWS_LAMBDA_LOG_GROUP_NAME",
        "AWS_LAMBDA_LOG_STREAM_NAME",
        "AWS_LAMBDA_RUNTIME_API",
        "AWS_REGION",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "LAMBDA_RUNTIME_DIR",
        "LAMBDA_TASK_ROOT",
    }
)
"""Source: developer guide, "Defined runtime environment variables"."""
_OWN_PREFIX = "THAWD_"


class Destination(msgspec.Struct, frozen=True):
    """Where the outcome of an asynchronous invocation goes.

    Attributes:
        kind: ``table``, ``bucket``, ``s3``, ``function``, ``http``, ``sqs``, ``sns`` or ``events``.
        name: which one: its name; of a function with ``:QUALIFIER`` where one was given; of ``http`` the address; of
            ``sqs``, ``sns`` and ``events`` the ARN. ``s3`` is a bucket named as AWS does, with AWS's keys of objects.
    """

    kind: str
    name: str

    def __str__(self) -> str:
        """As it may stand in a log: an address without what may be a secret, its path and what follows."""
        if self.kind == "http":
            scheme, _, rest = self.name.partition("://")
            authority = re.split(r"[/?#]", rest, maxsplit=1)[0].rpartition("@")[2]
            return f"{scheme}://{authority}" + ("/..." if len(rest) > len(authority) + 1 else "")
        if self.kind in ("sqs", "sns", "events"):
            return self.name
        return f"arn:aws:s3:::{self.name}" if self.kind == "s3" else f"{self.kind}:{self.name}"


class Function(msgspec.Struct, frozen=True, kw_only=True):
    """A function as declared.

    Attributes:
        name: 1-64 letters, digits, hyphens, underscores.
        handler: ``module.function``; the module may be dotted, or have slashes as on Lambda.
        code: folder with the code, absolute.
        runtime: Lambda's name of what runs it, one of `RUNTIMES`; None: thawd's own Python runtime in `python`.
        python: path of, or version number for, the interpreter; None: the one that runs thawd.
        requirements: requirements file from which an environment is made, absolute; None: none is made.
        memory_mb: memory limit of an environment, MiB, 128-10,240.
        timeout_s: longest run of one invocation, seconds, 1-900.
        init_timeout_s: longest init phase, seconds.
        environment: environment variables given to the handler.
        reserved_concurrency: most environments at once, set aside for this function; None: shared; 0: always throttled.
        provisioned_concurrency: environments kept initialised.
        snapshot: start environments from the initialised function instead of initialising each.
        snapshot_connections: ``drop``: a thawed environment finds connections that init opened ended; ``refuse``: a
            function that opens some is not frozen.
        snapshot_listeners: ``refuse``: a function whose init listens on a port of its choice is not frozen; ``close``:
            nobody reaches that socket in a thawed environment.
        prime: event to run before the function is frozen, so that what its first run loads is in the snapshot; JSON
            text in UTF-8; None: none.
        idle_timeout_s: an environment idle for so long is ended; seconds.
        keep_alive: ``fixed``: that holds; ``histogram``: times learnt from arrivals, and that until they are known.
        maximum_retry_attempts: retries of a failed asynchronous event, 0-2.
        maximum_event_age_s: an asynchronous event older than this is not tried again, seconds, 60-21,600.
        on_success: destination of asynchronous results, or None.
        on_failure: destination of events given up, or None.
        dead_letter: queue or topic that gets the payloads of events given up, or None.
        ephemeral_storage_mb: what an environment's temporary folder may hold, MiB, 512-10,240.
        freeze_idle: stop an environment's processes between invocations, as Lambda does.
        log_format: ``Text`` or ``JSON``: the form of the platform's lines and of ``logging`` records.
        application_log_level: with JSON, the least level of ``logging`` records: ``TRACE``, ``DEBUG``, ``INFO``,
            ``WARN``, ``ERROR`` or ``FATAL``; None: ``INFO``.
        system_log_level: with JSON, the least level of the platform's lines: ``DEBUG``, ``INFO`` or ``WARN``; None:
            ``INFO``.
        log_group: name of the log group, which functions may share; None: ``/aws/lambda/NAME``.
    """

    name: str
    handler: str
    code: Path
    runtime: str | None = None
    python: str | None = None
    requirements: Path | None = None
    memory_mb: int = 512
    timeout_s: int = 30
    init_timeout_s: int = 130
    environment: dict[str, str] = {}
    reserved_concurrency: int | None = None
    provisioned_concurrency: int = 0
    snapshot: bool = True
    snapshot_connections: str = "drop"
    snapshot_listeners: str = "refuse"
    prime: bytes | None = None
    idle_timeout_s: float = 300.0
    keep_alive: str = "fixed"
    maximum_retry_attempts: int = 2
    maximum_event_age_s: int = 21_600
    on_success: Destination | None = None
    on_failure: Destination | None = None
    dead_letter: Destination | None = None
    ephemeral_storage_mb: int = 512
    freeze_idle: bool = True
    log_format: str = "Text"
    application_log_level: str | None = None
    system_log_level: str | None = None
    log_group: str | None = None

    @property
    def log_group_name(self) -> str:
        """Name of the log group."""
        return self.log_group or f"/aws/lambda/{self.name}"

    @property
    def arn(self) -> str:
        """Unqualified Amazon Resource Name."""
        return f"arn:aws:lambda:{REGION}:{ACCOUNT_ID}:function:{self.name}"


class Notification(msgspec.Struct, frozen=True, kw_only=True):
    """Which object events of a bucket invoke which function.

    Attributes:
        function: name of the function; its ARN where the S3 API names it.
        events: S3 event types, for example ``s3:ObjectCreated:*``.
        prefix: only keys that begin so.
        suffix: only keys that end so.
    """

    function: str
    events: tuple[str, ...] = ("s3:ObjectCreated:*",)
    prefix: str = ""
    suffix: str = ""

    def wants(self, event_name: str, key: bytes) -> bool:
        """Whether it asks for an event of the name, for example ``ObjectCreated:Put``, of an object.

        Prefix and suffix are compared with the key as it is, not URL-encoded.
        """
        return (
            any(_covers(pattern.removeprefix("s3:"), event_name) for pattern in self.events)
            and key.startswith(self.prefix.encode())
            and key.endswith(self.suffix.encode())
        )


def _covers(pattern: str, event_name: str) -> bool:
    """Whether a name of S3's events, which may end with a star and has none elsewhere, stands for an event."""
    return event_name.startswith(pattern[:-1]) if pattern.endswith("*") else event_name == pattern


class Bucket(msgspec.Struct, frozen=True, kw_only=True):
    """A bucket: a folder whose files are objects.

    Attributes:
        name: 3-63 lower-case letters, digits, dots, hyphens.
        path: the folder, absolute; made when missing.
        notify: its notifications.
    """

    name: str
    path: Path
    notify: tuple[Notification, ...] = ()


class StoreUrl(msgspec.Struct, frozen=True, kw_only=True):
    """Where a store is. What is printed of it holds no secret.

    Attributes:
        text: the URL, complete; it may hold a password.
        shown: the same for people: passwords are left out, environment variables stand by name.
        secrets: what may appear nowhere.
    """

    text: str
    shown: str
    secrets: tuple[str, ...] = ()

    @property
    def scheme(self) -> str:
        """What stands before ``://``, in lower case."""
        return self.text.partition("://")[0].lower()

    def conceal(self, said: str) -> str:
        """`said`, which others have worded, without the secrets."""
        for secret in self.secrets:
            said = said.replace(secret, "***")
        return said

    def __str__(self) -> str:
        return self.shown

    def __repr__(self) -> str:
        return f"StoreUrl({self.shown!r})"


class RemoteBucket(msgspec.Struct, frozen=True, kw_only=True):
    """A bucket in an object store elsewhere.

    Attributes:
        name: what it is called here, as `Bucket.name`.
        url: where it is.
        bucket: what it is called there; a container, in Azure.
        prefix: keys of its objects begin so; empty, or with a slash at its end.
        region: the region that its events name.
        parameters: what the URL says besides.
        notify: its notifications.
        poll_s: seconds between two listings.
        existing: ``notify``: what the first listing finds gives events; ``skip``: what is newer than that alone.
        notifications: URL or ARN of an SQS queue that gets the bucket's own notifications; None: it is listed.
    """

    name: str
    url: StoreUrl
    bucket: str
    prefix: str = ""
    region: str = REGION
    parameters: dict[str, str] = {}
    notify: tuple[Notification, ...] = ()
    poll_s: float = 60.0
    existing: str = "notify"
    notifications: str | None = None

    @property
    def identity(self) -> str:
        """Tells it from every other bucket, here and elsewhere; what is recorded of it goes by this name."""
        place = f"{self.url.scheme}://{self.parameters.get('account', '')}{self.parameters.get('endpoint', '')}"
        return f"{self.name}={place}/{self.bucket}/{self.prefix}"


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table: items (JSON objects) by key.

    Attributes:
        name: 1-255 letters, digits, dots, hyphens, underscores.
        path: the SQLite file behind it, absolute; None: it is elsewhere.
        url: where it is, when it is no SQLite file.
    """

    name: str
    path: Path | None = None
    url: StoreUrl | None = None

    @property
    def place(self) -> str:
        """Where it is, for people."""
        return str(self.path if self.url is None else self.url)


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """An HTTP route in API Gateway's terms.

    Attributes:
        key: the route key, ``METHOD /path/{parameter}/{rest+}``, ``ANY /path`` or ``$default``.
        function: name of the function that answers.
        payload_format: of the event and the answer, ``1.0`` or ``2.0``.
        asynchronous: whether requests are stored and answered with 202 at once, to be run later.
    """

    key: str
    function: str
    payload_format: str = "2.0"
    asynchronous: bool = False


class Cors(msgspec.Struct, frozen=True, kw_only=True):
    """Which pages of other origins may call, and what browsers are told of it.

    Attributes:
        allow_origins: origins; ``*`` for all, ``https://*`` or ``http://*`` for all of a scheme.
        allow_methods: methods; ``*`` for all.
        allow_headers: headers that a request may carry; ``*`` for all.
        expose_headers: headers of an answer that the page may read; ``*`` for all.
        max_age_s: how long a browser may remember the answer to a preflight request, seconds; 0: it is not told.
        allow_credentials: whether cookies and authorization may be sent.
    """

    allow_origins: tuple[str, ...] = ()
    allow_methods: tuple[str, ...] = ()
    allow_headers: tuple[str, ...] = ()
    expose_headers: tuple[str, ...] = ()
    max_age_s: int = 0
    allow_credentials: bool = False


class HttpApi(msgspec.Struct, frozen=True, kw_only=True):
    """What all routes have in common: an HTTP API and its one stage, in API Gateway's terms.

    Attributes:
        stage_variables: given to handlers with each event.
        cors: answered and enforced by the platform; None: handlers see to it.
    """

    stage_variables: dict[str, str] = {}
    cors: Cors | None = None


class FunctionUrl(msgspec.Struct, frozen=True, kw_only=True):
    """A function's own HTTP address.

    Attributes:
        auth_type: ``NONE``: anybody may call; ``AWS_IAM``: requests are signed (Signature Version 4).
        invoke_mode: ``BUFFERED``: the answer is sent when it is whole; ``RESPONSE_STREAM``: as it comes.
        cors: answered and enforced by the platform; None: the handler sees to it.
    """

    auth_type: str
    invoke_mode: str = "BUFFERED"
    cors: Cors | None = None


class SqsSource(msgspec.Struct, frozen=True, kw_only=True):
    """An SQS queue whose messages invoke a function, in batches: an event source mapping.

    Attributes:
        sqs: ARN or URL of the queue.
        batch_size: most messages of one invocation, 1-10,000, of a FIFO queue 1-10; over 10 only with a window.
        window_s: how long a batch may gather messages, seconds, 0-300; 0: it goes as soon as there are any.
        maximum_concurrency: most batches at once, 2-1,000; None: as many environments as the function may have.
        filters: event patterns, JSON texts; messages that match none of them are deleted; empty: all are wanted.
        report_batch_item_failures: whether the handler's answer names the messages that failed.
        enabled: whether it is read.
    """

    sqs: str
    batch_size: int = 10
    window_s: int = 0
    maximum_concurrency: int | None = None
    filters: tuple[str, ...] = ()
    report_batch_item_failures: bool = False
    enabled: bool = True


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """Times at which a function is invoked.

    Attributes:
        name: 1-64 letters, digits, dots, hyphens, underscores.
        function: name of the function.
        schedule: ``rate(…)``, ``cron(…)`` or ``at(…)``.
        timezone: IANA name of the time zone that ``cron`` and ``at`` are of.
        input: the event, JSON text; None: EventBridge's "Scheduled Event".
        enabled: whether it runs.
        missed: what becomes of runs that came due while no server ran: ``skip``, ``once`` (the last of them), ``all``.
    """

    name: str
    function: str
    schedule: str
    timezone: str = "UTC"
    input: bytes | None = None
    enabled: bool = True
    missed: str = "once"


class ProvisionedSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """Times from which a function has another number of environments kept initialised.

    Attributes:
        schedule: ``cron(…)`` or ``at(…)``.
        count: environments kept initialised from then on.
        timezone: IANA name of the time zone that `schedule` is of.
    """

    schedule: str
    count: int
    timezone: str = "UTC"


def reserved_variables(names: Iterable[str]) -> list[str]:
    """Those of `names` that a function's own variables may not have, in order: Lambda's fixed list, and ``THAWD_*``.

    Any other name is the function's to set, also one that begins with ``AWS_LAMBDA_``, as ``AWS_LAMBDA_EXEC_WRAPPER``.
    """
    return sorted(name for name in names if name in _RESERVED_VARIABLES or name.startswith(_OWN_PREFIX))
