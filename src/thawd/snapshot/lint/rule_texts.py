"""The rules of ``thawd snapshot lint``: what each rule warns of, why it matters after a thaw, and what to do.

This module contains only the texts; `checks` and `search` examine the initialised process.
docs/reference/snapshot-lint.md shows an example for each rule. Standard library only, Python 3.9 and later.
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
        level: `WARNING`, or `NOTE` for a finding that usually needs no change.
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
        what: description of the object; it never contains a secret's value.
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
        "There may be further findings among the objects that were not searched.",
        "Keep fewer objects at module level, or search again with more time.",
        NOTE,
    ),
    "TS001": Rule(
        "A random generator of the function's own",
        "Every copy starts from the same state and draws the same numbers. thawd renews only the global generators.",
        "Seed the generator again in an after-restore hook, or make it on the first invocation.",
    ),
    "TS002": Rule(
        "An open connection",
        "In every copy the connection has ended, as if the other side had closed it. For an unconnected socket, a copy "
        "gets a new one. Clients that check a connection before they reuse it open another; other clients raise "
        "an error once. A function with a socket that listens on a port of the program's choice is not frozen.",
        "Do nothing if the client reconnects by itself. Otherwise close the connection in a before-snapshot hook and "
        "connect in an after-restore hook or on first use.",
    ),
    "TS003": Rule(
        "A Python thread",
        "Every copy continues the thread from the point where it was frozen, before the after-restore hooks run. So "
        "every copy does the thread's work.",
        "Stop the thread in a before-snapshot hook and start it in an after-restore hook or on the first invocation.",
    ),
    "TS004": Rule(
        "A credential kept in memory",
        "The credential is stored in the image file, and every copy keeps using it after it has expired or was "
        "replaced.",
        "Read the credential from os.environ when it is needed, or read it again in an after-restore hook.",
    ),
    "TS005": Rule(
        "A time taken while init ran",
        "In every copy this is the time of the snapshot, perhaps days ago, not the start time of the environment.",
        "Read the clock in the handler, or again in an after-restore hook.",
    ),
    "TS006": Rule(
        "An open asyncio event loop",
        "In a copy the deadlines of the loop's timers are long past. If the loop runs in a thread, it runs on in every "
        "copy.",
        "Use asyncio.run in the handler, or close the loop in a before-snapshot hook and make another one in an "
        "after-restore hook.",
    ),
    "TS007": Rule(
        "An identifier made while init ran",
        "Every copy has the same identifier.",
        "Make the identifier on the first invocation, or again in an after-restore hook.",
    ),
    "TS008": Rule(
        "An open file",
        "Every copy opens the file again at the same position. Copies that write overwrite each other's data; if the "
        "file has changed since the freeze, copies read other data.",
        "Open the file in the handler or in an after-restore hook.",
    ),
    "TS009": Rule(
        "A child process",
        "No copy would have the child process, so a process that has one is not frozen.",
        "End the child in a before-snapshot hook and start it in an after-restore hook or on the first invocation.",
    ),
    "TS010": Rule(
        "A temporary file or folder",
        "Every copy has the same path. Unless the path is in the function's own temporary folder, all copies use the "
        "same file or folder, and the copy that ends first may remove it.",
        "Make the file or folder in the handler or in an after-restore hook.",
    ),
    "TS011": Rule(
        "Threads of native code",
        "In every copy, these threads continue from the point where they were stopped.",
        "Do nothing, unless one of these threads communicates with other processes.",
        NOTE,
    ),
    "TS012": Rule(
        "An environment variable that differs in each copy",
        "Every copy keeps the value that the variable had in the frozen process.",
        "Read the variable from os.environ in the handler, or take the value from the context.",
    ),
}
