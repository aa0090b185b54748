"""The resources that users declare: functions, their sources and destinations, buckets, tables, routes.

All structs are immutable.

Names and units are AWS Lambda's where AWS has them (``MemorySize`` in MB is ``memory_mb``). These structs do not
validate their values: `thawd.config` validates values from the configuration file, `thawd.control` values from the
Lambda API.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

ACCOUNT_ID = "000000000000"
REGION = "us-east-1"
LATEST = "$LATEST"
PASS_THROUGH, ACTIVE = "PassThrough", "Active"
"""Lambda's tracing modes: a function only passes a trace header on, or is traced."""
MEMORY_MB_PER_VCPU = 1769
PYTHON_RUNTIMES = tuple(f"python3.{minor}" for minor in range(9, 15))
NODE_RUNTIMES = ("nodejs16.x", "nodejs18.x", "nodejs20.x", "nodejs22.x", "nodejs24.x")
PROVIDED_RUNTIMES = ("provided", "provided.al2", "provided.al2023")
RUNTIMES = (*PYTHON_RUNTIMES, *NODE_RUNTIMES, *PROVIDED_RUNTIMES)
"""Lambda's identifiers of all runtimes that thawd supports."""
MAX_ENVIRONMENT_BYTES = 4096
"""Limit on a function's environment variables, names and values together. Source: "Lambda quotas"."""
_RESERVED_VARIABLES = frozenset(
    (  # noqa: SIM905 - a list of quoted words reads worse
        "_HANDLER _X_AMZN_TRACE_ID AWS_ACCESS_KEY AWS_ACCESS_KEY_ID AWS_DEFAULT_REGION AWS_EXECUTION_ENV "
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE AWS_LAMBDA_FUNCTION_NAME AWS_LAMBDA_FUNCTION_VERSION "
        "AWS_LAMBDA_INITIALIZATION_TYPE AWS_LAMBDA_LOG_GROUP_NAME AWS_LAMBDA_LOG_STREAM_NAME AWS_LAMBDA_RUNTIME_API "
        "AWS_REGION AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN LAMBDA_RUNTIME_DIR LAMBDA_TASK_ROOT"
    ).split()
)
"""Source: developer guide, "Defined runtime environment variables"."""
_OWN_PREFIX = "THAWD_"


class Destination(msgspec.Struct, frozen=True):
    """Where the outcome of an asynchronous invocation goes.

    Attributes:
        kind: ``table``, ``bucket``, ``s3``, ``function``, ``http``, ``sqs``, ``sns`` or ``events``.
        name: name of the table, bucket or function (with ``:QUALIFIER`` if one was declared); the URL for ``http``;
            the ARN for ``sqs``, ``sns`` and ``events``. For ``s3``, the name of a bucket that was declared by its
            ARN; thawd stores an outcome in it under the key that AWS would use.
    """

    kind: str
    name: str

    def __str__(self) -> str:
        """The destination for logs. Only scheme and host of a URL are shown: path and query may contain secrets."""
        if self.kind == "http":
            scheme, _, rest = self.name.partition("://")
            authority = re.split(r"[/?#]", rest, maxsplit=1)[0].rpartition("@")[2]
            return f"{scheme}://{authority}" + ("/..." if len(rest) > len(authority) + 1 else "")
        if self.kind in ("sqs", "sns", "events"):
            return self.name
        return f"arn:aws:s3:::{self.name}" if self.kind == "s3" else f"{self.kind}:{self.name}"


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """How requests to a function whose handler takes a list of events are joined.

    Attributes:
        size: most requests that one environment runs together, 1-256.
        window_ms: while fewer than `size` requests wait, and all environments of the function are busy or starting, the
            start of a further environment is delayed by this time, milliseconds, 0-1,000.
    """

    size: int
    window_ms: float = 0


class ImageConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What replaces parts of a container image's own configuration. None: the image's own value.

    Attributes:
        entry_point: program and first arguments, instead of ENTRYPOINT.
        command: further arguments, instead of CMD.
        working_directory: absolute path in the image, instead of WORKDIR.
    """

    entry_point: tuple[str, ...] | None = None
    command: tuple[str, ...] | None = None
    working_directory: str | None = None


class Function(msgspec.Struct, frozen=True, kw_only=True):
    """A function as declared.

    Attributes:
        name: 1-64 letters, digits, hyphens, underscores.
        handler: ``module.function``; dots or, as on Lambda, slashes separate the parts of the module's name.
        code: folder with the code, absolute.
        runtime: Lambda's runtime identifier, one of `RUNTIMES`; None: thawd's own Python runtime, run by `python`.
        python: path, command or version number of the interpreter; None: the interpreter that runs thawd.
        requirements: requirements file whose packages are installed for the function, absolute; None: no packages.
        memory_mb: memory limit of an environment, MiB, 128-10,240.
        timeout_s: longest run of one invocation, seconds, 1-900.
        init_timeout_s: longest init phase, seconds.
        environment: environment variables of the handler.
        reserved_concurrency: number of environments set aside for the function, and its limit; None: the function
            shares the unreserved environments with other functions; 0: every request is throttled.
        provisioned_concurrency: number of environments kept initialised.
        snapshot: whether environments start from a snapshot of the initialised function instead of running init.
        snapshot_connections: ``drop``: connections that init opened are closed in a thawed environment; ``refuse``: a
            function that opens connections in init is not frozen.
        snapshot_listeners: ``refuse``: a function that listens on a fixed port in init is not frozen; ``close``: it is
            frozen, and that socket accepts no connections in a thawed environment.
        snapshot_clocks: ``go_on``: an environment's monotonic clocks are never behind those of the freeze;
            ``may_go_back``: they may be, after a restart of a machine that allows no time namespaces.
        prime: priming event, run before the function is frozen, so that the snapshot contains everything that the
            first invocation loads; JSON text in UTF-8; None: the function is frozen after init.
        idle_timeout_s: an environment that has been idle for this long is ended; seconds.
        keep_alive: ``fixed``: idle environments are ended after `idle_timeout_s`; ``histogram``: after a time learnt
            from the arrivals of requests, and after `idle_timeout_s` while the recorded arrivals show no pattern.
        batch: how requests are joined; the handler takes a list of events and returns a list of answers. None: the
            handler takes one event.
        concurrency: most invocations that one environment runs at the same time; above 1 only for a handler that is
            ``async def``, or an ASGI application.
        maximum_retry_attempts: retries of a failed asynchronous event, 0-2.
        maximum_event_age_s: an asynchronous event older than this is not tried again, seconds, 60-21,600.
        on_success: destination of the outcomes of asynchronous events that succeeded, or None.
        on_failure: destination of the outcomes of asynchronous events that became dead letters, or None.
        dead_letter: SQS queue or SNS topic that gets the payloads of dead letters, or None.
        ephemeral_storage_mb: capacity of an environment's temporary folder, MiB, 512-10,240.
        freeze_idle: whether an environment's processes are paused between invocations, as on Lambda.
        log_format: ``Text`` or ``JSON``: the format of the platform's lines and of ``logging`` records.
        application_log_level: with JSON, the lowest level of ``logging`` records kept: ``TRACE``, ``DEBUG``, ``INFO``,
            ``WARN``, ``ERROR`` or ``FATAL``; None: ``INFO``.
        system_log_level: with JSON, the lowest level of the platform's lines kept: ``DEBUG``, ``INFO`` or ``WARN``;
            None: ``INFO``.
        log_group: name of the log group, which functions may share; None: ``/aws/lambda/NAME``.
        tracing: `ACTIVE`: invocations are traced, so that records show what the handler called; `PASS_THROUGH`: they
            are traced only if the server traces all functions.
        tenants: whether each invocation names a tenant, and each tenant has environments of its own.
        image: reference of the container image that is the function's code; `handler` is then empty. None: the code is
            the folder `code`.
        image_config: what replaces parts of the image's configuration.
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
    snapshot_clocks: str = "go_on"
    prime: bytes | None = None
    idle_timeout_s: float = 300.0
    keep_alive: str = "fixed"
    batch: Batch | None = None
    concurrency: int = 1
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
    tracing: str = PASS_THROUGH
    tenants: bool = False
    image: str | None = None
    image_config: ImageConfig = ImageConfig()

    @property
    def most_in_environment(self) -> int:
        """Most requests that one environment has at the same time, whether as a batch or beside each other."""
        return self.concurrency if self.batch is None else self.batch.size

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
        function: name of the function; its ARN in notifications that were set through the S3 API.
        events: S3 event types, for example ``s3:ObjectCreated:*``.
        prefix: only objects whose key begins with this text are covered.
        suffix: only objects whose key ends with this text are covered.
    """

    function: str
    events: tuple[str, ...] = ("s3:ObjectCreated:*",)
    prefix: str = ""
    suffix: str = ""


class Bucket(msgspec.Struct, frozen=True, kw_only=True):
    """A bucket: a folder whose files are objects.

    Attributes:
        name: 3-63 lower-case letters, digits, dots, hyphens.
        path: the folder, absolute; created when missing.
        notify: notifications of the bucket.
    """

    name: str
    path: Path
    notify: tuple[Notification, ...] = ()


class StoreUrl(msgspec.Struct, frozen=True, kw_only=True):
    """URL of a store. Its `str` and `repr` contain no secret.

    Attributes:
        text: the complete URL; it may contain a password.
        shown: the URL for messages: without passwords, and with the names of environment variables, not their values.
        secrets: texts that must not appear in any message.
    """

    text: str
    shown: str
    secrets: tuple[str, ...] = ()

    @property
    def scheme(self) -> str:
        """Scheme of the URL, the part before ``://``, in lower case."""
        return self.text.partition("://")[0].lower()

    def conceal(self, message: str) -> str:
        """`message`, such as a library's error text, with ``***`` in place of each secret."""
        for secret in self.secrets:
            message = message.replace(secret, "***")
        return message

    def __str__(self) -> str:
        return self.shown

    def __repr__(self) -> str:
        return f"StoreUrl({self.shown!r})"


class RemoteBucket(msgspec.Struct, frozen=True, kw_only=True):
    """A bucket of a remote object store: S3, Google Cloud Storage or Azure.

    Attributes:
        name: name of the bucket in thawd, like `Bucket.name`.
        url: URL as declared.
        bucket: name of the bucket in its store; on Azure, name of the container.
        prefix: text that the keys of its objects begin with; empty, or a text that ends with a slash.
        region: region that its events name.
        parameters: query parameters of the URL.
        notify: notifications of the bucket.
        poll_s: seconds between two listings.
        existing: ``notify``: objects in the first listing cause events; ``skip``: only objects that appear later do.
        notifications: URL or ARN of the SQS queue to which S3 sends the bucket's notifications; None: thawd lists the
            bucket instead.
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
        """Key under which the state of this bucket is stored. No other bucket, local or remote, has the same key."""
        place = f"{self.url.scheme}://{self.parameters.get('account', '')}{self.parameters.get('endpoint', '')}"
        return f"{self.name}={place}/{self.bucket}/{self.prefix}"


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table: items (JSON objects) by key.

    Attributes:
        name: 1-255 letters, digits, dots, hyphens, underscores.
        path: SQLite file that holds the table, absolute; None: the table is at `url`.
        url: URL of the PostgreSQL database or DynamoDB table; None: the table is the file at `path`.
    """

    name: str
    path: Path | None = None
    url: StoreUrl | None = None

    @property
    def place(self) -> str:
        """File or URL of the table, without secrets, for messages."""
        return str(self.path if self.url is None else self.url)


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """An HTTP route in API Gateway's terms.

    Attributes:
        key: the route key, ``METHOD /path/{parameter}/{rest+}``, ``ANY /path`` or ``$default``.
        function: name of the function that answers.
        payload_format: payload format version of event and answer, ``1.0`` or ``2.0``.
        asynchronous: whether requests are stored, answered with 202 immediately, and run later.
    """

    key: str
    function: str
    payload_format: str = "2.0"
    asynchronous: bool = False


class Cors(msgspec.Struct, frozen=True, kw_only=True):
    """CORS settings: which origins may send requests from a browser, and with which methods and headers.

    Attributes:
        allow_origins: origins; ``*`` for all, ``https://*`` or ``http://*`` for all of a scheme.
        allow_methods: methods; ``*`` for all.
        allow_headers: headers that a request may carry; ``*`` for all.
        expose_headers: headers of an answer that the page may read; ``*`` for all.
        max_age_s: how long a browser may cache the answer to a preflight request, seconds; 0: answers carry no
            ``Access-Control-Max-Age``.
        allow_credentials: whether requests may carry cookies and authorization.
    """

    allow_origins: tuple[str, ...] = ()
    allow_methods: tuple[str, ...] = ()
    allow_headers: tuple[str, ...] = ()
    expose_headers: tuple[str, ...] = ()
    max_age_s: int = 0
    allow_credentials: bool = False


class HttpApi(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that all routes share: an HTTP API and its one stage, in API Gateway's terms.

    Attributes:
        stage_variables: variables that each event carries as ``stageVariables``.
        cors: CORS rules that the platform applies; None: the handlers deal with CORS themselves.
    """

    stage_variables: dict[str, str] = {}
    cors: Cors | None = None


class FunctionUrl(msgspec.Struct, frozen=True, kw_only=True):
    """A function URL: an HTTP endpoint of one function.

    Attributes:
        auth_type: ``NONE``: anybody may call; ``AWS_IAM``: requests must be signed (Signature Version 4).
        invoke_mode: ``BUFFERED``: the answer is sent when it is complete; ``RESPONSE_STREAM``: it is sent part by part.
        cors: CORS rules that the platform applies; None: the handler deals with CORS itself.
    """

    auth_type: str
    invoke_mode: str = "BUFFERED"
    cors: Cors | None = None


class SqsSource(msgspec.Struct, frozen=True, kw_only=True):
    """An SQS queue whose messages invoke a function, in batches: an event source mapping.

    Attributes:
        sqs: ARN or URL of the queue.
        batch_size: largest number of messages in one invocation: 1-10,000, or 1-10 for a FIFO queue; above 10 only if
            `window_s` is above 0.
        window_s: how long messages may be collected for a batch, seconds, 0-300; 0: a batch is sent as soon as it has
            a message.
        maximum_concurrency: largest number of batches in flight, 2-1,000; None: as many as the function may have
            environments.
        filters: event patterns, JSON texts; messages that match none of them are deleted; empty: every message is
            passed on.
        report_batch_item_failures: whether the handler's answer names the messages that failed.
        enabled: whether thawd reads the queue.
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
        timezone: IANA name of the time zone of ``cron`` and ``at`` expressions.
        input: the event, JSON text; None: EventBridge's "Scheduled Event".
        enabled: whether the schedule runs.
        missed: which of the runs that came due while no server ran are made up for: none (``skip``), the last one
            (``once``) or each of them (``all``).
    """

    name: str
    function: str
    schedule: str
    timezone: str = "UTC"
    input: bytes | None = None
    enabled: bool = True
    missed: str = "once"


class ProvisionedSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """Times at which a function's provisioned concurrency changes.

    Attributes:
        schedule: ``cron(…)`` or ``at(…)``.
        count: number of environments kept initialised from that time on.
        timezone: IANA name of the time zone of `schedule`.
    """

    schedule: str
    count: int
    timezone: str = "UTC"


class AwsStatement(msgspec.Struct, frozen=True, kw_only=True):
    """What functions may do on AWS besides what the configuration shows: a statement of their roles' policies.

    Attributes:
        actions: actions of IAM, such as ``bedrock:InvokeModel``.
        resources: ARNs of resources; ``*`` for all.
        function: name of the function; None: all functions.
    """

    actions: tuple[str, ...]
    resources: tuple[str, ...]
    function: str | None = None


class AwsDeployment(msgspec.Struct, frozen=True, kw_only=True):
    """How ``thawd deploy aws`` deploys a configuration. The server does not use it.

    Attributes:
        stack: name of the stack; None: made from the name of the configuration's folder.
        region: AWS region; None: that of AWS's own settings.
        architecture: ``x86_64`` or ``arm64``.
        python: Python version of all Python functions on AWS, such as ``3.12``; None: each function's own.
        log_retention_days: how long CloudWatch keeps log events, days.
        tracing: whether functions are traced by X-Ray.
        alarms: whether the stack has alarms on errors and throttles, and a dashboard.
        alarm_topic: ARN of the SNS topic that alarms notify; None: nobody is notified.
        rollout: how a new version gets requests: ``all`` at once; ``N%``: this share of them, until the next rollout;
            or the name of a deployment configuration of CodeDeploy.
        statements: further statements of roles' policies.
    """

    stack: str | None = None
    region: str | None = None
    architecture: str = "x86_64"
    python: str | None = None
    log_retention_days: int = 30
    tracing: bool = False
    alarms: bool = True
    alarm_topic: str | None = None
    rollout: str = "all"
    statements: tuple[AwsStatement, ...] = ()


def reserved_variables(names: Iterable[str]) -> list[str]:
    """The names in `names` that are reserved, sorted. The names in Lambda's list and all ``THAWD_*`` are reserved.

    A function may set any other variable, even one that begins with ``AWS_LAMBDA_``, for example
    ``AWS_LAMBDA_EXEC_WRAPPER``.
    """
    return sorted(name for name in names if name in _RESERVED_VARIABLES or name.startswith(_OWN_PREFIX))
