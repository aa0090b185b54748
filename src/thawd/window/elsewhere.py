"""Invocations that other machines of the cluster have recorded, as parts of pages, with links to the pages there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from thawd.window.layout import ROOT, table, when
from thawd.window.markup import Content, el


@dataclass(frozen=True, slots=True)
class RecordElsewhere:
    """An invocation that another machine has recorded.

    Attributes:
        machine: name of the machine.
        page: address of the machine's first page; None: other machines do not reach its pages.
        request_id: the request id.
        function: the function.
        began_ms: when the last attempt began, milliseconds since 1970.
        error_type: how the last attempt failed; empty: it succeeded.
    """

    machine: str
    page: str | None
    request_id: str
    function: str
    began_ms: int
    error_type: str


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What the other machines say about a request id, or about the beginning of one.

    Attributes:
        found: the invocations that they have recorded.
        asked: names of the machines that have answered.
        away: names of those that have not.
    """

    found: Sequence[RecordElsewhere] = ()
    asked: Sequence[str] = ()
    away: Sequence[str] = ()

    def only(self, request_id: str) -> Elsewhere:
        """Return this without the records of other request ids."""
        return Elsewhere([each for each in self.found if each.request_id == request_id], self.asked, self.away)


def section(elsewhere: Elsewhere) -> list[Content]:
    """Return a table of the records, and the machines that have not answered."""
    away = f"These machines did not answer, and may have recorded it, too: {', '.join(elsewhere.away)}."
    rows = [
        [
            _link(each),
            each.function,
            each.machine,
            [when(each.began_ms), " UTC"],
            each.error_type or "succeeded",
        ]
        for each in elsewhere.found
    ]
    heads = ["request id", "function", "machine", "began", "result"]
    return [
        table("Recorded by other machines", heads, rows, empty="") if rows else None,
        el("p", away, class_="note") if elsewhere.away else None,
    ]


def _link(record: RecordElsewhere) -> Content:
    if record.page is None:
        return el("code", record.request_id)
    path = f"{ROOT}/invocations/{quote(record.request_id, safe='')}"
    return el("a", record.request_id, href=f"{record.page.removesuffix('/_thawd/')}{path}")


def nothing_here(request_id: str, elsewhere: Elsewhere) -> list[Content]:
    """Return the content of the page of a request id that only other machines have recorded."""
    return [
        el(
            "p",
            "This machine has recorded no invocation with the request id ",
            el("code", request_id[:80]),
            ", and other machines have. Replay it there, or with ",
            el("code", "thawd invoke --replay"),
            ".",
            role="status",
        ),
        *section(elsewhere),
    ]


def nowhere(request_id: str, elsewhere: Elsewhere) -> str:
    """Return the message that no machine has recorded a request id."""
    machines = f"This machine has recorded no invocation with the request id {request_id[:80]}"
    if elsewhere.asked:
        machines += f", and neither have the machines {', '.join(elsewhere.asked)}"
    away = f". These did not answer, and may have: {', '.join(elsewhere.away)}" if elsewhere.away else ""
    return (
        f"{machines}{away}. Of a busy function only some successes are recorded (server.record_per_s), and old records "
        "are removed (server.record_days)"
    )
