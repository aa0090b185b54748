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
        "Folder of the bucket; created if missing. It must not contain, or be inside, another bucket's folder.",
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
        "Instead of `path`: URL of a bucket in S3 or a compatible store, in Google Cloud Storage or in Azure.",
        "none: the bucket is a folder",
    ),
    Option(
        "poll_s",
        kinds.number(1, 86_400),
        "With `url`: thawd lists the bucket to find changes; this is the time between two listings, in seconds.",
    ),
    Option(
        "existing",
        kinds.choice("notify", "skip"),
        'With `url`: "notify": objects in the first listing invoke functions, too; "skip": only objects that are '
        "created later do.",
    ),
    Option(
        "notifications",
        kinds.queue(),
        "With a `url` of S3: the SQS queue to which S3 sends this bucket's notifications. thawd reads the queue, and "
        "does not list the bucket.",
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
    Option("prefix", _NO_LEADING_SLASH, "Only objects whose key begins with this text invoke the function.", '""'),
    Option("suffix", kinds.text("a text"), "Only objects whose key ends with this text invoke the function.", '""'),
)

TABLE = (
    Option("path", kinds.file(), "SQLite file of the table; created if missing.", "tables/NAME.db in `data`"),
    Option(
        "url",
        kinds.text(
            'a URL such as "postgresql://user@host/db" or "dynamodb://TABLE?region=eu-west-1"', len, secret=True
        ),
        "Instead of `path`: URL of a table in PostgreSQL or DynamoDB. `${NAME}` in it stands for the value of an "
        "environment variable.",
        "none: the table is a SQLite file",
    ),
)
