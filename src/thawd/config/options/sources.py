"""Options of event sources (queues and schedules), and of schedules of provisioned concurrency."""

from __future__ import annotations

from thawd.config import kinds
from thawd.config.options.option import REQUIRED, Option

SOURCE = (
    Option("sqs", kinds.queue(), "The queue to read.", REQUIRED),
    Option(
        "batch_size",
        kinds.whole(1, 10_000),
        "Largest number of messages in one invocation. More than 10 require a `window_s` of at least 1; a FIFO queue "
        "allows at most 10.",
    ),
    Option(
        "window_s",
        kinds.whole(0, 300),
        "How long to gather messages for a batch, in seconds; 0: the function is invoked as soon as a message arrives.",
    ),
    Option(
        "maximum_concurrency",
        kinds.whole(2, 1000),
        "Largest number of batches of this queue that run at the same time.",
        "the largest number of environments of the function",
    ),
    Option(
        "filters",
        kinds.list_of("a list of 1 to 5 event patterns, as tables or as JSON texts", least=1),
        "Event patterns, in EventBridge's form. Messages that match none of them are deleted without an invocation.",
        "none: every message is passed to the function",
    ),
    Option(
        "report_batch_item_failures",
        kinds.flag(),
        "Whether the handler's answer names the messages that failed, in `batchItemFailures`; only these are then "
        "received again. If the invocation fails, all messages of its batch are received again.",
    ),
    Option("enabled", kinds.flag(), "Whether the queue is read."),
)

PROVISIONED_SCHEDULE = (
    Option(
        "schedule",
        kinds.text('"cron(…)" or "at(…)"'),
        "Times at which `count` takes effect, written as in `[schedules]`. `rate(…)` is not allowed, because it names "
        "no time of day.",
        REQUIRED,
    ),
    Option(
        "count",
        kinds.whole(0, 10_000),
        "Number of environments to keep initialised, from each time of `schedule` until the next time of any of the "
        "function's `provisioned_schedule` tables.",
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
        "Times at which the function is invoked, in EventBridge's form: `rate(5 minutes)`, `cron(0 12 * * ? *)`, "
        "`at(2026-12-01T09:00:00)`.",
        REQUIRED,
    ),
    Option("timezone", kinds.time_zone(), "Time zone of `cron` and `at`."),
    Option("input", kinds.event(), "Event that the function gets.", 'EventBridge\'s "Scheduled Event"'),
    Option("enabled", kinds.flag(), "Whether the schedule runs."),
    Option(
        "missed",
        kinds.choice("skip", "once", "all"),
        'What to do with runs whose time passed while thawd was down. "skip": do not run them; "once": run only the '
        'last one; "all": run each.',
    ),
)
