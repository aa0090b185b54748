"""Options of ``[buckets.NAME]``, with its notifications, and of ``[tables.NAME]``."""

from __future__ import annotations

from thawd.config import kinds
from thawd.config.options.option import REQUIRED, Option

EVENT_TYPES = (
    "s3:ObjectCreated:*",
    "s3:ObjectCreated:Put",
    "s3:ObjectCreated:Post",
    "s3:ObjectCreated:Copy",
    "s3:ObjectCreated:CompleteMultipartUpload",
    "s3:ObjectRemoved:*",
    "s3:ObjectRemoved:Delete",
)

BUCKET_NAME = kinds.pattern(
    "a name of 3 to 63 lower-case letters, digits, hyphens and single dots, "
    "with a letter or digit at both ends, and not an IP address",
    r"(?!\d+\.\d+\.\d+\.\d+$)(?!.*\.\.)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]",
)

TABLE_NAME = kinds.pattern(
    "a name of 1 to 255 letters, digits, dots, hyphens and underscores", r"[A-Za-z0-9_.-]{1,255}"
)

_NO_LEADING_SLASH = kinds.text("a text; keys do not begin with a slash", lambda value: not value.startswith("/"))

BUCKET = (
    Option(
        "path",
        kinds.folder(),
        "Folder of the bucket; created if missing. It must not be inside another bucket's folder.",
        "the bucket's name",
    ),
    Option(
        "notify",
        kinds.list_of('a list of tables such as { function = "classify", suffix = ".png" }'),
        "Functions to invoke when objects are created or removed.",
        "[]",
    ),
)

REMOTE_BUCKET = (
    Option(
        "url",
        kinds.text(
            'a URL such as "s3://bucket/prefix", "gs://bucket" or "az://container?account=NAME"', len, secret=True
        ),
        "URL of a remote bucket, instead of a folder: in S3 or a compatible store, Google Cloud Storage or Azure.",
        "none: the bucket is a folder",
    ),
    Option(
        "poll_s",
        kinds.number(1, 86_400),
        "With a URL: the bucket is listed to find changes; this is the time between two listings, in seconds.",
    ),
    Option(
        "existing",
        kinds.choice("notify", "skip"),
        'With a URL: "notify": objects in the first listing cause events; "skip": only objects created later do.',
    ),
    Option(
        "notifications",
        kinds.queue(),
        "With a URL of S3: the SQS queue that receives S3's notifications of this bucket, which is then not listed.",
        "none: the bucket is listed",
    ),
)

NOTIFICATION = (
    Option("function", kinds.text("the name of a function of this file"), "Function to invoke.", REQUIRED),
    Option(
        "events",
        kinds.list_of(
            f"a list of one or more of {', '.join(EVENT_TYPES)}",
            least=1,
        ),
        "S3 event types that invoke the function.",
        '["s3:ObjectCreated:*"]',
    ),
    Option("prefix", _NO_LEADING_SLASH, "Only objects whose key begins with this.", '""'),
    Option("suffix", kinds.text("a text"), "Only objects whose key ends with this.", '""'),
)

TABLE = (
    Option("path", kinds.file(), "SQLite file of the table; created if missing.", "tables/NAME.db in `data`"),
    Option(
        "url",
        kinds.text(
            'a URL such as "postgresql://user@host/db" or "dynamodb://TABLE?region=eu-west-1"', len, secret=True
        ),
        "URL of a table in PostgreSQL or DynamoDB, instead of a file. `${NAME}` inserts an environment variable.",
        "none: the table is a SQLite file",
    ),
)
