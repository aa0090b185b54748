"""Options of ``[server]``, and the environment variables that override them."""

from __future__ import annotations

import json
import re

from thawd.config import kinds
from thawd.config.options.option import REQUIRED, Option
from thawd.config.settings import REDACTED
from thawd.grammar.destination_names import address_of
from thawd.resources import Destination

HOST = kinds.host()

ACCESS_KEY_ID = kinds.pattern("a name of 3 to 128 letters, digits and underscores", r"[A-Za-z0-9_]{3,128}")

SECRET_ACCESS_KEY = kinds.text(
    "a text of 4 to 256 printable ASCII characters without spaces", re.compile(r"[!-~]{4,256}").fullmatch, secret=True
)

_COLLECTOR = re.compile(r"https?://[^\s/@?#]+(/[^\s@?#]*)?")

REDACTED_NAME = kinds.pattern("a name of 1 to 100 characters, which may contain stars", r"(?=.*[^*_-])[^\s=]{1,100}")

LOG_FORMATS = ("text", "json", "journald")
"""What ``server.log_format`` can be."""

SERVER = (
    Option("host", kinds.host(), "Address to listen on. If it is not a loopback address, a `key` is required."),
    Option("port", kinds.whole(0, 65535), "TCP port to listen on; 0: any free port."),
    Option(
        "tls",
        kinds.table("a table, `[server.tls]`"),
        "The certificate of the port. If there is one, the port accepts only HTTPS.",
        "none: connections are not encrypted",
    ),
    Option(
        "key",
        kinds.text(
            "a text of 8 to 256 printable ASCII characters without spaces",
            re.compile(r"[!-~]{8,256}").fullmatch,
            secret=True,
        ),
        "Secret that callers must send, in the header `X-Api-Key` or as `Authorization: Bearer KEY`. Requests to "
        "function URLs do not need it. The secret is safer in the environment variable `THAWD_KEY` than in this file.",
        "none",
    ),
    Option(
        "names",
        kinds.list_of('a list of host names, such as "build-box.example"'),
        "Further host names, such as a proxy's or a tunnel's, that the `Host` header of requests may contain. Without "
        "`key`, the server refuses requests for any other host than these, this machine and function URLs.",
        "[]",
    ),
    Option("data", kinds.folder(), "Folder for everything that thawd stores; created if missing.", '".thawd"'),
    Option(
        "drain_s",
        kinds.number(0, 3600),
        "How long a server that is to stop continues to serve, in seconds. Meanwhile `/_thawd/ready` answers 503, so "
        "that load balancers turn away, and each connection is closed after its next answer, which says "
        "`Connection: close`. 0: the server accepts no more requests as soon as it is to stop.",
    ),
    Option(
        "grace_s",
        kinds.number(0, 3600),
        "How long a stopping server waits for unfinished invocations, in seconds.",
    ),
    Option(
        "max_environments",
        kinds.whole(1, 10_000),
        "Largest number of execution environments of all functions at the same time.",
        "16 for each processor core that the server may use",
    ),
    Option(
        "spares",
        kinds.whole(0, 10_000),
        "Largest number of spares at the same time. A spare is a thawed process that waits to become the next "
        "environment of a recently invoked function. It counts as an environment, with the function's `memory_mb`, and "
        "is ended first when another environment needs room. 0: no spares.",
    ),
    Option(
        "admission",
        kinds.choice("cores", "all"),
        '"cores": while the functions that run use all processor cores, further requests wait in line. thawd measures '
        "how much processor time each function uses, so a handler that only waits for the network hardly counts. "
        '"all": a request waits only if it finds neither an environment nor room for one.',
    ),
    Option(
        "limits",
        kinds.choice("aws", "machine"),
        '"aws": the Lambda API refuses what AWS Lambda refuses: code of more than 50 MB in a request or of more than '
        "250 MB unpacked, environment variables of more than 4 KB, more than 5 layers, subnets that do not exist, "
        "SnapStart for other runtimes than Python, with more than 512 MB of `/tmp` or with provisioned concurrency. "
        '"machine": it accepts all of these that this machine can run.',
    ),
    Option(
        "memory_mb",
        kinds.whole(128, 16_777_216),
        "Limit for the sum of the memory limits of all execution environments, in MiB.",
        "80 % of the memory of the machine, or of the server's cgroup if that has less",
    ),
    Option(
        "max_waiting",
        kinds.whole(1, 100_000),
        "Largest number of requests that wait for environments of one function; further requests are answered with "
        "429.",
    ),
    Option(
        "queue_timeout_s",
        kinds.number(0, 900),
        "How long a synchronous request may wait for an environment, in seconds; then it is answered with 429.",
    ),
    Option(
        "retry_wait_s",
        kinds.number(0, 3600),
        "Wait before the first retry of an asynchronous event, in seconds; the second wait is twice as long.",
    ),
    Option(
        "max_queued",
        kinds.whole(1, 1_000_000_000),
        "Largest number of asynchronous events that are stored at the same time. Events that run, or whose outcome is "
        "not delivered yet, count too; dead letters do not. At the limit, requests with further events are answered "
        "with 429, and changes in buckets are recorded later.",
    ),
    Option(
        "dead_letter_retention_s",
        kinds.number(60, 315_360_000),
        "How long a dead letter is kept, in seconds.",
    ),
    Option(
        "private_tmp",
        kinds.flag(),
        "Whether each environment has its own `/tmp` and cannot write to its code, if the kernel allows that.",
    ),
    Option(
        "paths",
        kinds.choice("real", "lambda"),
        '"lambda": environments see code, runtime and layers at `/var/task`, `/var/runtime` and `/opt`, if the kernel '
        'allows that; "real": at their real paths.',
    ),
    Option(
        "capabilities",
        kinds.flag(),
        "Whether functions keep the Linux capabilities of the server's process, such as root's. If not, they have "
        "none.",
    ),
    Option(
        "user",
        kinds.text("the name of a user", re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}").fullmatch),
        "User as which the server and its functions run if root starts the server; `thawd up --user` overrides it.",
        "none",
    ),
    Option(
        "cpu_limits",
        kinds.flag(),
        "Whether each environment is limited to the CPU share that corresponds to its memory: one CPU for 1,769 MB. "
        "This needs a writable cgroup with the cpu controller.",
    ),
    Option(
        "log_format",
        kinds.choice(*LOG_FORMATS),
        'What the server prints. "text": lines for people; "json": a JSON object a line; "journald": entries of '
        "systemd's journal, with fields. `thawd up --log-format` overrides it. The logs of functions have their own "
        "option `log_format`.",
    ),
    Option("log_max_mb", kinds.whole(1, 1024), "Size at which log files are rotated, in MiB."),
    Option(
        "snapshots",
        kinds.choice("auto", "all", "off"),
        '"auto": if possible, each version is frozen once after its init phase, and its environments are thawed from '
        "that snapshot. Functions made through the Lambda API are frozen only if they ask for SnapStart, as on Lambda; "
        'with "all", the others are, too. "off": environments are forked or start cold.',
    ),
    Option(
        "bases",
        kinds.choice("auto", "off"),
        '"auto": the snapshots of functions with the same interpreter share a base and store only what differs from '
        "it. The base can also hold the packages that the functions' modules import first. "
        '"off": each snapshot is complete.',
    ),
    Option(
        "snapshots_max_mb",
        kinds.whole(0, 16_777_216),
        "Disk space for snapshots, in MiB. If they need more, the least recently used are removed, but never those in "
        "use.",
    ),
    Option(
        "record_days",
        kinds.number(0, 3650),
        "How long records of invocations are kept, in days. The pages under `/_thawd/` show them. 0: no invocation is "
        "recorded.",
    ),
    Option(
        "record_max_mb",
        kinds.whole(4, 1_048_576),
        "Disk space for records of invocations, in MiB. If they need more, the oldest are removed, successes first.",
    ),
    Option(
        "record_per_s",
        kinds.number(0, 1000),
        "Largest number of successful invocations of one function that are recorded in a second. A record says for how "
        "many it stands. Failures, and invocations that waited for the start of an environment, are always recorded.",
    ),
    Option(
        "redact",
        kinds.list_of('a list of names, such as "*password*"'),
        "Names of keys and headers whose values are replaced in records, before they are stored. `*` stands for any "
        "characters; a hyphen also stands for an underscore, or for none. The list replaces the default.",
        f"[{', '.join(map(json.dumps, REDACTED))}]",
    ),
    Option(
        "traces",
        kinds.text(
            'a URL without name and password, such as "http://127.0.0.1:4318"',
            lambda url: _COLLECTOR.fullmatch(url) and address_of(Destination("http", url)) is not None,
        ),
        "OpenTelemetry collector that gets the spans of requests and events, by OTLP over HTTP in protobuf. "
        "`/v1/traces` is appended.",
        "none: no trace is sent",
    ),
    Option(
        "trace_ratio",
        kinds.number(0, 1),
        "Share of the traces that begin here that are recorded, 0 to 1. A trace that comes with a request is recorded "
        "if the request says so.",
    ),
    Option(
        "access_keys",
        kinds.table('a table of access key ids and secrets, such as { AKIALOCAL = "a-long-secret" }', secret=True),
        "Access keys for signed requests. If there are any, AWS's APIs but S3's, and those of thawd for the queue, "
        "sources, records and machines, accept only requests that are signed with one of them or that contain the "
        "value of the option `key`. Access keys are safer in the "
        "environment variable `THAWD_ACCESS_KEYS` than in this file.",
        "{}",
    ),
    Option(
        "webhook_secret",
        kinds.text(
            "a text of 8 to 256 printable ASCII characters without spaces",
            re.compile(r"[!-~]{8,256}").fullmatch,
            secret=True,
        ),
        "Secret with which requests to webhook destinations are signed. It is safer in the environment variable "
        "`THAWD_WEBHOOK_SECRET` than in this file.",
        "none",
    ),
    Option(
        "webhooks_plain_http",
        kinds.flag(),
        "Whether webhook destinations on other machines may have http:// URLs. Such requests are not encrypted, so "
        "anyone on the network between the machines can read them.",
    ),
    Option(
        "snapshots_max_age_s",
        kinds.number(0, 31_536_000),
        "A snapshot that has not been used for this long is removed, in seconds.",
    ),
    Option(
        "state",
        kinds.text(
            'a URL such as "postgresql://thawd:${PASSWORD}@db.example/thawd"', lambda value: value != "", secret=True
        ),
        "PostgreSQL database that the machines of a cluster share. `${NAME}` inserts an environment variable. The URL "
        "may have a parameter `schema`, the schema of thawd's tables, otherwise `thawd`.",
        "none",
    ),
    Option(
        "durability",
        kinds.choice("machine", "cluster"),
        '"machine": an asynchronous event is accepted when it is on this machine\'s disk. "cluster": when a copy is in '
        "the database `state`, too; if this machine dies, another one runs the event. Events of schedules and of "
        "buckets have no copies.",
    ),
    Option(
        "snapshot_store",
        kinds.text(
            'the path of a folder, or a URL such as "s3://bucket/prefix" or "oci://host/repository"',
            lambda value: value != "",
        ),
        "A store of chunks: before a function is initialised, its snapshot is looked for there, and a new snapshot is "
        "sent there. The data folder must contain the store's key, `snapshots.key`; with the key of one function, only "
        "snapshots of that function are received, and none is sent.",
        "none",
    ),
    Option(
        "chunk_cache_max_mb",
        kinds.whole(0, 16_777_216),
        "Disk space for chunks that came from `snapshot_store`, in MiB. All functions share them, so equal parts of "
        "snapshots are fetched once. If they need more, the least recently used are removed. 0: none are kept. None "
        "are kept either if `snapshot_store` is a folder.",
    ),
    Option(
        "lazy_snapshots",
        kinds.flag(),
        "Whether copies of an image of 32 MiB or more start before the image has arrived from `snapshot_store`. What a "
        "copy needs first is fetched first, and an access to memory that has not arrived waits. This needs `/dev/fuse` "
        "and the right to mount; without them, thawd receives the whole image first, and says so once.",
    ),
)

TLS = (
    Option(
        "certificate",
        kinds.file(),
        "File with the certificate and its intermediate certificates, in PEM format.",
        REQUIRED,
    ),
    Option(
        "key",
        kinds.file(),
        "File with the private key, in PEM format. Only its owner may be able to read it; if it belongs to root, a "
        "group, too.",
        "the file `certificate`",
    ),
)

ENVIRONMENT_VARIABLES = {
    "THAWD_HOST": "host",
    "THAWD_PORT": "port",
    "THAWD_KEY": "key",
    "THAWD_DATA": "data",
    "THAWD_USER": "user",
    "THAWD_SNAPSHOTS": "snapshots",
    "THAWD_LOG_FORMAT": "log_format",
    "THAWD_ACCESS_KEYS": "access_keys",
    "THAWD_WEBHOOK_SECRET": "webhook_secret",
}
"""Environment variables that override an option of ``[server]``. An empty variable counts as not set."""
