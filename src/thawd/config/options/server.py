"""Options of ``[server]``, and the environment variables that override them."""

from __future__ import annotations

import re

from thawd.config import kinds
from thawd.config.options.option import Option

HOST = kinds.host()

ACCESS_KEY_ID = kinds.pattern("a name of 3 to 128 letters, digits and underscores", r"[A-Za-z0-9_]{3,128}")

SECRET_ACCESS_KEY = kinds.text(
    "a text of 4 to 256 printable ASCII characters without spaces", re.compile(r"[!-~]{4,256}").fullmatch, secret=True
)

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
        "Secret that callers must send. Better kept out of the file, in `THAWD_KEY`.",
        "none",
    ),
    Option(
        "names",
        kinds.list_of('a list of host names, such as "build-box.example"'),
        "Further host names under which the server answers while it has no `key`, such as a proxy's or a tunnel's; "
        "those of this machine always work. Requests for other hosts are refused.",
        "[]",
    ),
    Option("data", kinds.folder(), "Folder for everything that thawd stores; created when missing.", '".thawd"'),
    Option(
        "grace_s",
        kinds.number(0, 3600),
        "How long a stopping server waits for invocations in flight, in seconds.",
    ),
    Option(
        "max_environments",
        kinds.whole(1, 10_000),
        "Limit of execution environments at once, for all functions together.",
        "from the machine",
    ),
    Option(
        "admission",
        kinds.choice("cores", "all"),
        "Which requests run at once. `cores`: as many as the processor cores carry, by what their functions have used; "
        "further requests wait in line. Handlers that wait for a network do not count. `all`: every request for which "
        "there is an environment or room for one.",
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
        "Limit of requests that wait for an environment of one function; further requests are answered 429.",
    ),
    Option(
        "queue_timeout_s",
        kinds.number(0, 900),
        "How long a synchronous request may wait for an environment, in seconds; then it is answered 429.",
    ),
    Option(
        "retry_wait_s",
        kinds.number(0, 3600),
        "Wait before the first retry of an asynchronous event, in seconds; the wait before the second is twice that.",
    ),
    Option(
        "max_queued",
        kinds.whole(1, 1_000_000_000),
        "Limit of asynchronous events that wait. At the limit, further ones are answered 429, and events of buckets "
        "wait.",
    ),
    Option(
        "dead_letter_retention_s",
        kinds.number(60, 315_360_000),
        "How long a dead letter is kept, in seconds.",
    ),
    Option(
        "private_tmp",
        kinds.flag(),
        "Whether each environment has its own `/tmp` and cannot write to its code, where the kernel allows that.",
    ),
    Option(
        "capabilities",
        kinds.flag(),
        "Whether functions keep the capabilities of the thawd process, such as root's; without, they have none.",
    ),
    Option(
        "user",
        kinds.text("the name of a user", re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}").fullmatch),
        "User to which a server started by root switches, with its functions; also `thawd up --user`.",
        "none",
    ),
    Option(
        "cpu_limits",
        kinds.flag(),
        "Limit each environment to the CPU share that belongs to its memory: 1,769 MB are one CPU. Needs a cgroup.",
    ),
    Option("log_max_mb", kinds.whole(1, 1024), "Size at which log files are rotated, in MiB."),
    Option(
        "snapshots",
        kinds.choice("auto", "off"),
        '"auto": functions are frozen once and thawed from then on; "off": environments are forked or start cold.',
    ),
    Option(
        "snapshots_max_mb",
        kinds.whole(0, 16_777_216),
        "Disk space for snapshots, in MiB; snapshots in use are kept even above it.",
    ),
    Option(
        "access_keys",
        kinds.table('a table of access key ids and secrets, such as { AKIALOCAL = "a-long-secret" }', secret=True),
        "Keys for signed requests. Once there is one, the Lambda API accepts only requests signed with one of them or "
        "sent with `key`. Better kept out of the file, in `THAWD_ACCESS_KEYS`.",
        "{}",
    ),
    Option(
        "webhook_secret",
        kinds.text(
            "a text of 8 to 256 printable ASCII characters without spaces",
            re.compile(r"[!-~]{8,256}").fullmatch,
            secret=True,
        ),
        "Secret with which requests to webhook destinations are signed. Better kept out of the file, in "
        "`THAWD_WEBHOOK_SECRET`.",
        "none",
    ),
    Option(
        "webhooks_plain_http",
        kinds.flag(),
        "Whether webhook destinations on other machines may have http:// addresses. Anybody on the network between "
        "can read what is sent there.",
    ),
    Option(
        "snapshots_max_age_s",
        kinds.number(0, 31_536_000),
        "Age without use after which a snapshot is removed, in seconds.",
    ),
)

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
