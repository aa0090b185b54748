"""Structs for the whole configuration. `thawd.config.load` returns them checked, and with absolute paths.

This module defines the server's own settings and their defaults. `thawd.resources` defines the resources that users
declare (functions, buckets, ...).
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from thawd.resources import (
    AwsDeployment,
    Bucket,
    Function,
    FunctionUrl,
    HttpApi,
    ProvisionedSchedule,
    RemoteBucket,
    Route,
    Schedule,
    SqsSource,
    StoreUrl,
    Table,
)
from thawd.system import folders

REDACTED = (
    "authorization",
    "proxy-authorization",
    "cookie",
    "cookies",
    "set-cookie",
    "*api-key",
    "*password*",
    "*passwd",
    "*secret*",
    "*token",
    "*credential*",
    "*private-key*",
)
"""Default of ``server.redact``. A hyphen also stands for an underscore, and for none."""
_SQLITE_SUFFIXES = ("", "-wal", "-shm", "-journal")


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The certificate with which the server encrypts connections to its port.

    Attributes:
        certificate: file with the certificate and its intermediate certificates, PEM.
        key: file with the private key, PEM; None: it is in `certificate`, too.
    """

    certificate: Path
    key: Path | None = None


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The server's own settings.

    Attributes:
        data: folder for everything that thawd stores, absolute; created if missing.
        host: address to listen on.
        port: TCP port to listen on, 0-65,535; 0: any free port.
        tls: the certificate of the port; None: connections are not encrypted.
        key: secret that callers must send; None: callers need no secret, and `host` must be a loopback address.
        drain_s: how long a server that is to stop continues to serve new requests, seconds, 0-3,600.
        grace_s: how long a stopping server waits for unfinished invocations, seconds, 0-3,600.
        max_environments: most execution environments at the same time; None: 16 for each processor core that the
            server may use.
        spares: most spares at the same time, 0-10,000.
        admission: ``cores``: while the functions that run use all processor cores, further requests wait; ``all``: a
            request waits only if it finds neither an environment nor room for one.
        limits: ``aws``: the Lambda API has AWS's quotas; ``machine``: it accepts what this machine can hold.
        memory_mb: limit for the sum of all environments' memory limits, MiB; None: 80 % of the memory of the machine,
            or of the server's cgroup if that has less.
        max_waiting: most requests that wait for environments of one function, 1-100,000.
        queue_timeout_s: how long a synchronous request may wait for an environment, seconds, 0-900.
        retry_wait_s: wait before the first retry of an asynchronous event, seconds, 0-3,600; the second wait is twice
            as long.
        max_queued: most asynchronous events that are stored at the same time, 1-1,000,000,000. Events that run, or
            whose outcome is not delivered yet, count too; dead letters do not. At the limit, no more are accepted.
        dead_letter_retention_s: how long a dead letter is kept, seconds, 60-315,360,000.
        private_tmp: whether each environment has its own ``/tmp`` and read-only code, if the kernel allows that.
        paths: ``lambda``: environments see code, runtime and layers at ``/var/task``, ``/var/runtime`` and ``/opt`` if
            the kernel allows that; ``real``: at their real paths.
        capabilities: whether functions keep the Linux capabilities of the server's process, such as root's.
        user: a server that root starts continues as this user; None: it continues as root.
        cpu_limits: whether environments are limited to the CPU share that corresponds to their memory, if the server
            has a writable cgroup.
        log_format: what the server prints: ``text``, ``json``: a JSON object a line, ``journald``: entries of systemd's
            journal.
        log_max_mb: size at which a log file is rotated, MiB, 1-1,024.
        snapshots: ``auto``: thaw functions from snapshots if possible; ``all``: also functions made through the API
            that do not ask for SnapStart; ``off``: take and use no snapshots.
        bases: ``auto``: snapshots share a base where that is safe; ``off``: each snapshot is complete.
        snapshots_max_mb: disk space for snapshots, MiB, 0-16,777,216. If they need more, the least recently used are
            removed, but never those in use.
        snapshots_max_age_s: a snapshot that was not used for this long is removed, seconds, 0-31,536,000.
        snapshot_store: folder, bucket or registry with snapshots of all machines; None: snapshots stay on this machine.
        chunk_cache_max_mb: disk space for chunks of snapshots that came from a bucket or a registry, MiB, 0-16,777,216.
        lazy_snapshots: whether the copies of a large image start before it has arrived from there.
        state: PostgreSQL database with the state that the machines of a cluster share; None: this machine is alone.
        durability: ``machine``: an accepted event is on this machine's disk; ``cluster``: in the database `state`, too.
        webhook_secret: secret with which thawd signs requests to webhooks (destinations that are URLs); None: they are
            not signed.
        webhooks_plain_http: whether webhooks on other machines may have ``http://`` URLs.
        names: further host names that the ``Host`` header of requests may contain while the server has no key.
        record_days: how long records of invocations are kept, days, 0-3,650; 0: no invocation is recorded.
        record_max_mb: disk space for records of invocations, MiB, 4-1,048,576. If they need more, the oldest are
            removed, successes first.
        record_per_s: most successful invocations of a function that are recorded in a second, 0-1,000; failures and
            starts of environments are always recorded.
        redact: names of keys and headers whose values are replaced in records; ``*`` stands for any characters.
        traces: URL of the collector that spans are sent to, by OTLP over HTTP; None: none is sent.
        trace_ratio: share of the traces that begin here that are recorded, 0-1.
        access_keys: secrets for signed requests, by access key id; empty: the Lambda API needs no signature, and
            function URLs with ``AWS_IAM`` accept only the id ``test`` with the secret ``test``.
    """

    data: Path
    host: str = "127.0.0.1"
    port: int = 8350
    tls: TlsSettings | None = None
    key: str | None = None
    drain_s: float = 0.0
    grace_s: float = 30.0
    max_environments: int | None = None
    admission: str = "cores"
    spares: int = 0
    limits: str = "aws"
    memory_mb: int | None = None
    max_waiting: int = 1000
    queue_timeout_s: float = 30.0
    retry_wait_s: float = 60.0
    max_queued: int = 1_000_000
    # Source: SQS quotas, the longest that a message is kept.
    dead_letter_retention_s: float = 1_209_600.0
    private_tmp: bool = True
    paths: str = "real"
    capabilities: bool = False
    user: str | None = None
    cpu_limits: bool = False
    log_format: str = "text"
    log_max_mb: int = 10
    snapshots: str = "auto"
    bases: str = "off"
    snapshots_max_mb: int = 20_480
    # Source: Lambda developer guide, "SnapStart": a snapshot that was not used for 14 days is deleted.
    snapshots_max_age_s: float = 1_209_600.0
    state: StoreUrl | None = None
    durability: str = "machine"
    snapshot_store: Path | RemoteBucket | None = None
    chunk_cache_max_mb: int = 1024
    lazy_snapshots: bool = True
    webhook_secret: str | None = None
    webhooks_plain_http: bool = False
    names: tuple[str, ...] = ()
    record_days: float = 7.0
    record_max_mb: int = 256
    record_per_s: float = 20.0
    redact: tuple[str, ...] = REDACTED
    traces: str | None = None
    trace_ratio: float = 1.0
    access_keys: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"Server(host={self.host!r}, port={self.port}, data={str(self.data)!r})"  # keys are not for logs


class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster that this machine belongs to.

    Attributes:
        name: name of this machine; empty: the one in its data folder.
        key: secret with which machines prove that they belong to the cluster; empty: the one in the data folder.
        machines: host and port of each machine for connections of the others, by name, in file order; empty: machines
            find each other in the database ``server.state``.
        address: host and port at which this machine accepts connections of the others, if `machines` is empty.
        placement: ``spread`` or ``pack``; see `thawd.cluster.placement`.
        zone: this machine's zone.
        certificate: file with this machine's certificate and private key; None: connections are not encrypted.
        authority: file with the certificate of the authority of all machines' certificates.
        unencrypted: whether connections over the network need no TLS.
    """

    name: str = ""
    key: str = ""
    machines: dict[str, tuple[str, int]] = {}
    address: tuple[str, int] = ("127.0.0.1", 0)
    placement: str = "spread"
    zone: str = ""
    certificate: Path | None = None
    authority: Path | None = None
    unencrypted: bool = False

    def __repr__(self) -> str:
        return f"Cluster(name={self.name!r}, machines={list(self.machines)})"  # the key is not for logs


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """A whole configuration.

    Attributes:
        path: the configuration file, absolute; relative paths in it are relative to its folder.
        server: the server's own settings.
        functions: functions by name, in file order.
        environment_files: files with environment variables, by function; their variables are in `functions`.
        buckets: buckets that are folders, by name, in file order.
        remote_buckets: buckets in object stores outside thawd, by name, in file order.
        tables: tables by name, in file order.
        routes: routes in file order.
        http: settings that all routes share.
        urls: function URLs, by function name.
        runtimes: interpreters, as paths or commands, by Lambda's runtime names.
        sources: queues that functions read, by function name.
        schedules: schedules by name, in file order.
        provisioned_schedules: schedules of provisioned concurrency, in file order, by function name.
        cluster: the cluster that this machine belongs to; None: it runs alone.
        deployment: how ``thawd deploy aws`` deploys the configuration.
        set_aside: further paths that `not_code` returns; not an option of the file. A private server has a data folder
            of its own, so it names the configured data folder here.
    """

    path: Path
    server: ServerSettings
    functions: dict[str, Function]
    buckets: dict[str, Bucket]
    tables: dict[str, Table]
    routes: tuple[Route, ...]
    http: HttpApi = HttpApi()
    urls: dict[str, FunctionUrl] = {}
    runtimes: dict[str, str] = {}
    sources: dict[str, tuple[SqsSource, ...]] = {}
    schedules: dict[str, Schedule] = {}
    provisioned_schedules: dict[str, tuple[ProvisionedSchedule, ...]] = {}
    remote_buckets: dict[str, RemoteBucket] = {}
    environment_files: dict[str, tuple[Path, ...]] = {}
    cluster: ClusterSettings | None = None
    deployment: AwsDeployment = AwsDeployment()
    set_aside: tuple[Path, ...] = ()

    def most_provisioned(self, name: str) -> int:
        """Return the highest provisioned concurrency that a function has at any time."""
        counts = (entry.count for entry in self.provisioned_schedules.get(name, ()))
        return max([self.functions[name].provisioned_concurrency, *counts])

    def not_code(self) -> frozenset[Path]:
        """Return paths that are left out when code is copied: the configuration, the data folder, buckets and tables.

        So are files with environment variables, which may contain other functions' secrets.

        So are the files into which this process prints, as in ``thawd run app.py > log.txt``.

        They may be inside a function's code folder. Files there that a running server writes would otherwise count as
        changes of the code, and the function would be published again and again. The configuration may contain the
        server's keys, which functions must not see; nor must they see the private key of the server's certificate.
        """
        written = {self.path, self.server.data, *self.set_aside, *(bucket.path for bucket in self.buckets.values())}
        for file in (table.path for table in self.tables.values() if table.path is not None):
            written |= {file.with_name(file.name + suffix) for suffix in _SQLITE_SUFFIXES}
        written |= {file for files in self.environment_files.values() for file in files}
        if self.server.tls is not None:
            written |= {self.server.tls.certificate, self.server.tls.key or self.server.tls.certificate}
        return frozenset(written | folders.printed_into())
