"""Options of what invokes functions besides callers: queues and schedules; and of provisioned schedules."""

from __future__ import annotations

from thawd.config import kinds
from thawd.config.options.option import REQUIRED, Option

SOURCE = (
    Option("sqs", kinds.queue(), "The queue to read.", REQUIRED),
    Option(
        "batch_size",
        kinds.whole(1, 10_000),
        "Limit of messages in one invocation; over 10 needs a `window_s`, a FIFO queue allows at most 10.",
    ),
    Option(
        "window_s",
        kinds.whole(0, 300),
        "How long a batch gathers messages, in seconds; 0: a batch is sent as soon as it has a message.",
    ),
    Option(
        "maximum_concurrency",
        kinds.whole(2, 1000),
        "Limit of batches in flight.",
        "as many as the function has environments",
    ),
    Option(
        "filters",
        kinds.list_of("a list of 1 to 5 event patterns, as tables or as JSON texts", least=1),
        "Messages that match none of them are deleted.",
        "none: every message is passed on",
    ),
    Option(
        "report_batch_item_failures",
        kinds.flag(),
        "Whether the handler's answer names the messages that failed, in `batchItemFailures`.",
    ),
    Option("enabled", kinds.flag(), "Whether the queue is read."),
)

PROVISIONED_SCHEDULE = (
    Option(
        "schedule",
        kinds.text('"cron(…)" or "at(…)"'),
        "When, as in `[schedules]`; a rate is not allowed, because it names no time.",
        REQUIRED,
    ),
    Option(
        "count",
        kinds.whole(0, 10_000),
        "Number of environments kept initialised from then on, until the next time of any entry.",
        REQUIRED,
    ),
    Option("timezone", kinds.time_zone(), "Time zone of `schedule`."),
)

SCHEDULE_NAME = kinds.pattern(
    "a name of 1 to 64 letters, digits, dots, hyphens and underscores", r"[A-Za-z0-9_.-]{1,64}"
)

SCHEDULE = (
    Option("function", kinds.text("the name of a function of this file"), "Function to invoke.", REQUIRED),
    Option(
        "schedule",
        kinds.text('"rate(…)", "cron(…)" or "at(…)"'),
        "When, in EventBridge's terms, such as `rate(5 minutes)`, `cron(0 12 * * ? *)`, `at(2026-12-01T09:00:00)`.",
        REQUIRED,
    ),
    Option("timezone", kinds.time_zone(), "Time zone of `cron` and `at`."),
    Option("input", kinds.event(), "The event.", 'EventBridge\'s "Scheduled Event"'),
    Option("enabled", kinds.flag(), "Whether the schedule runs."),
    Option(
        "missed",
        kinds.choice("skip", "once", "all"),
        'Runs that came due while thawd was down. "skip": none is made up for; "once": the last one; "all": each.',
    ),
)
