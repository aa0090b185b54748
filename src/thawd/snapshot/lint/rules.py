"""The rules of ``thawd snapshot lint``: what each one warns of, why it matters after a thaw, and the way out.

Owns the texts; docs/reference/snapshot-lint.md shows an example for each. Inspects no objects. Standard library
only, Python 3.9 and later.
"""

from __future__ import annotations

from typing import NamedTuple

WARNING = "warning"
NOTE = "note"


class Rule(NamedTuple):
    """A rule of the search.

    Attributes:
        title: what the rule finds.
        why: the consequence after a thaw.
        way_out: what to do instead.
        level: `WARNING`, or `NOTE` for a finding that need not be mended.
    """

    title: str
    why: str
    way_out: str
    level: str = WARNING


class Finding(NamedTuple):
    """A finding in a process that is about to be frozen.

    Attributes:
        rule: key of `RULES`.
        level: `WARNING` or `NOTE`.
        where: path to the object, for example ``app.client.pool[0]``; or ``thread 'name'``, ``descriptor 7``.
        what: a description of the object, never with a secret's value.
        why: the rule's `why`.
        way_out: the rule's `way_out`.
    """

    rule: str
    level: str
    where: str
    what: str
    why: str
    way_out: str


def finding(rule: str, where: str, what: str, *, level: str = "") -> Finding:
    """Make a finding of `rule`, with the rule's level unless `level` is set."""
    known = RULES[rule]
    return Finding(rule, level or known.level, where, what, known.why, known.way_out)


RULES: dict[str, Rule] = {
    "TS000": Rule(
        "The search was cut short",
        "Objects that were not searched may hold any of the other findings.",
        "Hold less at module level, or search again with more time.",
        NOTE,
    ),
    "TS001": Rule(
        "A random generator of the function's own",
        "Every copy starts from the same state and draws the same numbers; only the global generators are renewed.",
        "Seed it again in an after-restore hook, or make it on the first invocation.",
    ),
    "TS002": Rule(
        "An open connection",
        "In every copy the connection has ended, as if the other side had closed it; an unconnected socket is new. "
        "Clients that check a connection before they reuse it open another; other clients raise an error once. A "
        "socket that listens on a port of its choice keeps the function from being frozen.",
        "Nothing, if the client reconnects by itself. Otherwise close it in a before-snapshot hook and connect in an "
        "after-restore hook, or connect when it is first used.",
    ),
    "TS003": Rule(
        "A Python thread",
        "It continues in every copy from the same point, before the after-restore hooks: all copies do its work.",
        "Stop it in a before-snapshot hook and start it in an after-restore hook or on the first invocation.",
    ),
    "TS004": Rule(
        "A credential kept in memory",
        "It is stored in the image file, and every copy keeps using it after it has expired or was replaced.",
        "Read it from os.environ when it is needed, or read it again in an after-restore hook.",
    ),
    "TS005": Rule(
        "A time taken while init ran",
        "In every copy it is the time of the snapshot, perhaps days ago, not of the start of the environment.",
        "Take it in the handler, or again in an after-restore hook.",
    ),
    "TS006": Rule(
        "An open asyncio event loop",
        "In a copy the deadlines of its timers are long past; a loop that runs in a thread continues in every copy.",
        "Use asyncio.run in the handler, or close the loop in a before-snapshot hook and make one after the restore.",
    ),
    "TS007": Rule(
        "An identifier made while init ran",
        "Every copy has the same one.",
        "Make it on the first invocation, or again in an after-restore hook.",
    ),
    "TS008": Rule(
        "An open file",
        "Every copy opens it again at the same position: if they write, they overwrite each other's data; if it has "
        "changed since, they read other data.",
        "Open it in the handler or in an after-restore hook.",
    ),
    "TS009": Rule(
        "A child process",
        "No copy would have it: a process that has a child is not frozen.",
        "End it in a before-snapshot hook and start it in an after-restore hook, or on the first invocation.",
    ),
    "TS010": Rule(
        "A temporary file or folder",
        "Every copy has the same path and, outside the function's own temporary folder, the same file: the copy that "
        "ends first removes it.",
        "Make it in the handler or in an after-restore hook.",
    ),
    "TS011": Rule(
        "Threads of native code",
        "They continue in every copy where they were stopped.",
        "Nothing, unless one of them communicates with other processes.",
        NOTE,
    ),
    "TS012": Rule(
        "A variable that differs in each copy",
        "Every copy has the value of the process that was frozen, which has ended.",
        "Read it from os.environ in the handler, or take it from the context.",
    ),
}
