"""What a user declares: functions, buckets, tables, routes, destinations. Immutable, free of behaviour.

Names and units are AWS Lambda's where AWS has them (``MemorySize`` in MB is ``memory_mb``). Values here are valid:
`thawd.config` has checked them.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

ACCOUNT_ID = "000000000000"
REGION = "us-east-1"
LATEST = "$LATEST"
MEMORY_MB_PER_VCPU = 1769


class Destination(msgspec.Struct, frozen=True):
    """Where the outcome of an asynchronous invocation goes.

    Attributes:
        kind: ``table`` or ``bucket``.
        name: which one.
    """

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


class Function(msgspec.Struct, frozen=True, kw_only=True):
    """A function as declared.

    Attributes:
        name: 1-64 letters, digits, hyphens, underscores.
        handler: ``module.function``; the module may be dotted, or have slashes as on Lambda.
        code: folder with the code, absolute.
        python: path of, or version number for, the interpreter; None: the one that runs thawd.
        requirements: requirements file from which an environment is made, absolute; None: none is made.
        memory_mb: memory limit of an environment, MiB, 128-10,240.
        timeout_s: longest run of one invocation, seconds, 1-900.
        init_timeout_s: longest init phase, seconds.
        environment: environment variables given to the handler.
        reserved_concurrency: most environments at once, set aside for this function; None: shared; 0: always throttled.
        provisioned_concurrency: environments kept initialised.
        snapshot: start environments from the initialised function instead of initialising each.
        idle_timeout_s: an environment idle for so long is ended; seconds.
        maximum_retry_attempts: retries of a failed asynchronous event, 0-2.
        maximum_event_age_s: an asynchronous event older than this is not tried again, seconds, 60-21,600.
        on_success: destination of asynchronous results, or None.
        on_failure: destination of events given up, or None.
    """

    name: str
    handler: str
    code: Path
    python: str | None = None
    requirements: Path | None = None
    memory_mb: int = 512
    timeout_s: int = 30
    init_timeout_s: int = 130
    environment: dict[str, str] = {}
    reserved_concurrency: int | None = None
    provisioned_concurrency: int = 0
    snapshot: bool = True
    idle_timeout_s: float = 300.0
    maximum_retry_attempts: int = 2
    maximum_event_age_s: int = 21_600
    on_success: Destination | None = None
    on_failure: Destination | None = None

    @property
    def arn(self) -> str:
        """Unqualified Amazon Resource Name."""
        return f"arn:aws:lambda:{REGION}:{ACCOUNT_ID}:function:{self.name}"


class Notification(msgspec.Struct, frozen=True, kw_only=True):
    """Which object events of a bucket invoke which function.

    Attributes:
        function: name of the function.
        events: S3 event types, for example ``s3:ObjectCreated:*``.
        prefix: only keys that begin so.
        suffix: only keys that end so.
    """

    function: str
    events: tuple[str, ...] = ("s3:ObjectCreated:*",)
    prefix: str = ""
    suffix: str = ""


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


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table: items (JSON objects) by key.

    Attributes:
        name: 1-255 letters, digits, dots, hyphens, underscores.
        path: the SQLite file behind it, absolute.
    """

    name: str
    path: Path


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """An HTTP route in API Gateway's terms.

    Attributes:
        key: the route key, ``METHOD /path/{parameter}/{rest+}``, ``ANY /path`` or ``$default``.
        function: name of the function that answers.
    """

    key: str
    function: str
