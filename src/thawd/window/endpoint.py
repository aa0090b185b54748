"""Routes requests to pages, checks who may see them, and carries out what buttons ask for.

A request changes something only by POST, with the token of its session in the form. Pages run no scripts but thawd's
own file, and cannot be shown inside pages of other sites (Content-Security-Policy).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict, Unpack
from urllib.parse import parse_qsl, quote, unquote

from thawd.errors import (
    AccessDeniedException,
    InvalidParameterValueException,
    MethodNotAllowedException,
    ResourceNotFoundException,
    ThawdError,
)
from thawd.gateway.hosts import may_ask
from thawd.gateway.http import READING, ClientGoneError, Headers, Receive, Scope, Send, header, read_body, respond
from thawd.gateway.lambda_api.invoke_request import check_json
from thawd.invocation import MAX_PAYLOAD_BYTES, Invocation, Result
from thawd.recording.records import Records
from thawd.stores.events.dead_letters import Selection
from thawd.stores.invocations.record_queries import Filter
from thawd.window import (
    elsewhere,
    failures,
    function_page,
    invocation_page,
    machines_table,
    now,
    queue_page,
    snapshots_page,
    try_page,
)
from thawd.window.elsewhere import Elsewhere
from thawd.window.layout import ROOT, counted, page, whole_number
from thawd.window.live import Live
from thawd.window.markup import Content, el
from thawd.window.session import Sessions
from thawd.window.sources import Sources
from thawd.window.uploads import Form, form_of, http_event

_HERE = Path(__file__).parent
_FILES = {"style.css": b"text/css; charset=utf-8", "live.js": b"text/javascript; charset=utf-8"}
_WRONG_KEY_S = 0.5
_LEAST_OF_ID = 8
"""Characters of a request id that lists show, and that find it."""
_FORM_BYTES = 3 * MAX_PAYLOAD_BYTES
"""A byte of an event takes three characters in a form."""
_LOGIN_BYTES = 4096
"""Without a session, nobody may make the server read a large form."""
_PROTECTION: Headers = [
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
]


class PageOptions(TypedDict, total=False):
    """Arguments of `page`."""

    here: str
    token: str | None
    live: bool | str


class _Goto(Exception):
    """The answer is another page."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class Window:
    """Serves the pages.

    Args:
        sources: what the pages are made from.
        sessions: who may see them.
        live: the pages that are open.
    """

    def __init__(self, sources: Sources, sessions: Sessions, live: Live) -> None:
        self._sources = sources
        self._sessions = sessions
        self._live = live
        self._files = {name: (_HERE / name).read_bytes() for name in _FILES}

    def _made(self, title: str, *content: Content, **options: Unpack[PageOptions]) -> bytes:
        """Return a whole page, with the name of this machine if it belongs to a cluster; see `page`."""
        cluster = self._sources.cluster
        return page(title, *content, machine="" if cluster is None else cluster.own, **options)

    def claims(self, scope: Scope) -> bool:
        """Whether a request is for one of the pages. ``/_thawd/`` is one for browsers only."""
        path: str = scope["path"]
        if path.startswith(f"{ROOT}/") or path == ROOT:
            return True
        return path in ("/_thawd", "/_thawd/") and b"text/html" in (header(scope, b"accept") or b"")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; errors are answered, not raised."""
        try:
            await self._serve(scope, receive, send)
        except _Goto as there:
            await _respond(send, 303, [(b"location", there.path.encode())], b"")
        except ThawdError as error:
            text = self._sources.redactor.text(error.message or error.type)
            content = page(error.type, el("p", text, class_="bad", role="alert"))
            await _respond(send, error.status, [_html()], content)
        except ClientGoneError:
            return

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        rest = path.removeprefix(ROOT).strip("/") if path.startswith(ROOT) else ""
        if not may_ask(scope, allows=lambda origin: False) and not _is_followed_link(scope):
            raise AccessDeniedException("A page of another site has sent this request; open the page itself instead")
        session = self._sessions.opened(scope)
        if rest in self._files:
            await _respond(send, 200, [(b"content-type", _FILES[rest])], self._files[rest])
        elif rest == "login" and scope["method"] == "POST":
            await self._log_in(scope, send, (await _form(scope, receive, limit_bytes=_LOGIN_BYTES)).fields)
        elif session is None:
            came_from = path if _is_followed_link(scope) else None
            await _respond(send, 401, [_html()], _login_page(is_wrong=False, came_from=came_from))
        elif scope["method"] == "POST":
            with self._sources.budget.hold(scope, most_bytes=_FORM_BYTES):
                await self._take(scope, send, rest, await _form(scope, receive, limit_bytes=_FORM_BYTES), session)
        elif scope["method"] not in READING:
            raise MethodNotAllowedException(f"{path} accepts GET and POST", allowed=(*READING, "POST"))
        elif rest == "live":
            await self._serve_live(scope, receive, send)
        else:
            query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
            token = self._sessions.token(session)
            leave = token if self._sessions.are_needed else None
            await _respond(send, 200, [_html()], await self._page(rest, query, token, leave=leave))

    async def _serve_live(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._live.is_full:
            await _respond(send, 204, [], b"")
            return
        cluster = self._sources.cluster
        shown = dict(parse_qsl(scope["query_string"].decode("latin-1"))).get("shown", "")
        if cluster is None or not shown:
            await self._live.serve(receive, send)
            return

        async def look() -> str:
            return machines_table.fingerprint(await cluster.machines())

        await self._live.serve(receive, send, look=look, shown=shown)

    async def _take(self, scope: Scope, send: Send, rest: str, form: Form, session: str) -> None:
        """Carry out what a form asks for, if it has the session's token."""
        if not self._sessions.has_token(session, form.fields.get("token", "")):
            raise AccessDeniedException("The form is too old, or another site has sent it; load the page again")
        if rest == "logout":
            cookie = self._sessions.log_out(is_secure=scope.get("scheme") == "https")
            await _respond(send, 303, [(b"location", b"/_thawd/"), (b"set-cookie", cookie)], b"")
        else:
            await _respond(send, 200, [_html()], await self._change(rest, form, self._sessions.token(session)))

    async def _log_in(self, scope: Scope, send: Send, form: Mapping[str, str]) -> None:
        cookie = self._sessions.log_in(form.get("key", ""), is_secure=scope.get("scheme") == "https")
        if cookie is None:
            await asyncio.sleep(_WRONG_KEY_S)  # slows guessing
            await _respond(send, 401, [_html()], _login_page(is_wrong=True))
            return
        await _respond(send, 303, [(b"location", b"/_thawd/"), (b"set-cookie", cookie)], b"")

    def _records(self) -> Records:
        if self._sources.records is None:
            raise ResourceNotFoundException(f"Invocations are not recorded: {self._sources.why_none}")
        return self._sources.records

    async def _page(self, rest: str, query: Mapping[str, str], token: str, *, leave: str | None) -> bytes:
        """Return the page at the path `rest` under the root.

        Args:
            rest: the path.
            query: the parameters.
            token: token of the session's forms.
            leave: the same if the session can be ended; else None.
        """
        sources = self._sources
        if rest == "":
            machines = None if sources.cluster is None else await sources.cluster.machines()
            parts = await now.content(sources, query, machines)
            seen = True if machines is None else machines_table.fingerprint(machines)
            return self._made("Now", *parts, here="/_thawd/", token=leave, live=seen)
        here, live, title = f"{ROOT}/{rest}", True, rest.capitalize()
        if rest in ("failures", "invocations"):
            if query.get("request"):
                text = query["request"].strip()
                return self._made("Invocations", *await self._with_ids(text), here=here, token=leave)
            content = await failures.content(self._records(), query, only_failures=rest == "failures")
            live = "before" not in query
        elif rest == "queue":
            content, title = await queue_page.content(sources, query, token=token), "Queue and dead letters"
        elif rest == "snapshots":
            content = await snapshots_page.content(sources)
        elif rest == "try":
            content, title, live = await try_page.content(sources, query, token=token), "Try a function", False
        else:
            title, content, here = await self._page_of(*rest.split("/", 1), query=query, token=token)
            live = rest.startswith("functions/")
        return self._made(title, *content, here=here, token=leave, live=live)

    async def _page_of(
        self, kind: str, name: str = "", *, query: Mapping[str, str], token: str
    ) -> tuple[str, list[Content], str]:
        """Return title, content and place in the navigation of the page of one function, invocation or dead letter."""
        name = unquote(name)
        sources = self._sources
        if kind == "functions" and name:
            return name, await function_page.content(sources, name, query), "/_thawd/"
        if kind == "invocations" and name:
            title, content = await self._invocation(name, query, token)
            return title, content, f"{ROOT}/invocations"
        number = whole_number(name)
        if kind == "records" and number is not None:
            raise _Goto(await self._of_record(number))
        if kind == "dead" and number is not None:
            content = await queue_page.letter_content(sources, number, token=token)
            return f"Dead letter {number}", content, f"{ROOT}/queue"
        raise ResourceNotFoundException(f"There is no page {ROOT}/{kind}/{name}"[:300])

    async def _invocation(self, request_id: str, query: Mapping[str, str], token: str) -> tuple[str, list[Content]]:
        """Return title and content of the page of an invocation, which other machines may have recorded, too.

        Raises:
            ResourceNotFoundException: nothing is recorded about it (404).
        """
        records = self._records()
        others = await self._elsewhere(request_id)
        try:
            whole = await records.whole(request_id)
        except ResourceNotFoundException:
            if others is None:
                raise
            if not others.found:
                raise ResourceNotFoundException(elsewhere.nowhere(request_id, others)) from None
            return "Invocation", elsewhere.nothing_here(request_id, others)
        shown = whole_number(query.get("attempt", ""))
        content = await invocation_page.content(self._sources, whole, token=token, attempt=shown)
        same = None if others is None else others.only(request_id)
        if same is not None and same.found:
            content = [*content, el("h2", "On other machines"), *elsewhere.section(same)]
        return invocation_page.title(whole.attempts), content

    async def _elsewhere(self, text: str) -> Elsewhere | None:
        """Return what other machines have recorded about request ids that begin with `text`; None: there are none."""
        cluster = self._sources.cluster
        return None if cluster is None else await cluster.find(text)

    async def _with_ids(self, text: str) -> list[Content]:
        """Return a list of the invocations whose request ids begin with `text`, if there are several.

        Raises:
            _Goto: there is one, or none, which that page says.
        """
        found = await self._records().beginning_with(text) if len(text) >= _LEAST_OF_ID else []
        others = await self._elsewhere(text) or Elsewhere()
        ids = {*(row.request_id for row in found), *(record.request_id for record in others.found)}
        if len(ids) > 1:
            return [*failures.several(found, text), *elsewhere.section(others)]
        raise _Goto(f"{ROOT}/invocations/{quote(ids.pop() if ids else text, safe='')}")

    async def _of_record(self, number: int) -> str:
        """Return the path of the page with the record `number`."""
        found = (await self._records().page(Filter(), before=number + 1, limit=1)).rows
        if not found or found[0].id != number:
            raise ResourceNotFoundException(f"There is no record {number} any more")
        return f"{ROOT}/invocations/{quote(found[0].request_id, safe='')}?attempt={number}"

    async def _change(self, rest: str, form: Form, token: str) -> bytes:
        """Carry out what a form asks for, and return the page that says so."""
        if rest == "replay":
            whole = await self._records().whole(form.fields.get("request", ""))
            body, row = whole.bodies[-1], whole.attempts[-1]
            if body is None or whole.why_not_replayable is not None:
                raise InvalidParameterValueException(f"It cannot be replayed: {whole.why_not_replayable}")
            invocation, _ = await self._run(row.function, body.event, row.qualifier or None)
            raise _Goto(f"{ROOT}/invocations/{invocation.request_id}")
        if rest == "try":
            return await self._try(form, token)
        if rest == "dead/ask":
            preview = await self._sources.queue.preview(_selection(form.fields))
            content = queue_page.question(form.fields, token, can_undo=preview["can_undo"])
            return self._made("Remove dead letters", *content, here=f"{ROOT}/queue")
        if rest in ("dead/redrive", "dead/remove", "dead/undo"):
            return await self._change_letters(rest.removeprefix("dead/"), form.fields, token)
        raise ResourceNotFoundException(f"Nothing can be sent to {ROOT}/{rest}")

    async def _change_letters(self, verb: str, form: Mapping[str, str], token: str) -> bytes:
        queue = self._sources.queue
        if verb == "undo":
            done, what = await queue.undo(whole_number(form.get("removal", "")) or 0), "restored"
        elif verb == "redrive":
            done, what = await queue.redrive(_selection(form)), "queued again"
        else:
            done, what = await queue.remove(_selection(form)), "removed"
        text = f"{counted(done['count'], 'dead letter')} {'was' if done['count'] == 1 else 'were'} {what}."
        undo = queue_page.undo(done["undo"], token) if done.get("undo") else None
        if verb == "remove" and done["count"] and undo is None:
            text += " They were too many or too large to be kept, so this cannot be undone."
        content = await queue_page.content(self._sources, {}, token=token)
        return self._made(
            "Queue and dead letters", queue_page.told(text, undo), *content, here=f"{ROOT}/queue", live=True
        )

    async def _try(self, form: Form, token: str) -> bytes:
        fields, sources = form.fields, self._sources
        text = None if form.file is not None else fields.get("event", "")
        if form.file is not None:
            event = await asyncio.to_thread(http_event, form.file, form.file_type, fields.get("path", "/"))
        else:
            event = fields.get("event", "").encode()
        parts: list[Content]
        try:
            if len(event) > MAX_PAYLOAD_BYTES:
                raise InvalidParameterValueException(f"The event is larger than {MAX_PAYLOAD_BYTES:,} bytes")
            invocation, result = await self._run(fields.get("function", ""), event, None)
        except ThawdError as error:
            parts = await try_page.content(sources, fields, token=token, event=text, problem=error.message)
        else:
            is_failure = result.function_error is not None
            outcome = "The function failed." if is_failure else "The function has answered."
            more = el("a", "See where the time went", href=f"{ROOT}/invocations/{invocation.request_id}")
            parts = [
                el("p", outcome, " ", more, class_="bad" if is_failure else "good", role="status"),
                await asyncio.to_thread(try_page.shown, result.payload, result.content_type),
                el("h2", "Again"),
                *await try_page.content(sources, fields, token=token, event=text),
            ]
        return self._made("Try a function", *parts, here=f"{ROOT}/try")

    async def _run(self, function: str, event: bytes, qualifier: str | None) -> tuple[Invocation, Result]:
        """Run a function. The invocation is recorded in any case.

        Raises:
            ThawdError: it could not be run.
        """
        invocation = Invocation(
            function,
            check_json(event.strip() or b"{}"),
            time.monotonic() + self._sources.wait_s,
            qualifier=qualifier,
            is_always_recorded=True,
        )
        return invocation, await self._sources.dispatcher.invoke(invocation)


def _selection(form: Mapping[str, str]) -> Selection:
    number = whole_number(form.get("id", ""))
    if number is not None:
        return Selection(ids=[number])
    return Selection(function=form["function"]) if form.get("function") else Selection(all=form.get("all") == "1")


async def _form(scope: Scope, receive: Receive, *, limit_bytes: int) -> Form:
    body = await read_body(scope, receive, limit_bytes=limit_bytes, operation="form")
    content_type = (header(scope, b"content-type") or b"").decode("latin-1")
    return await asyncio.to_thread(form_of, content_type, body)


def _is_followed_link(scope: Scope) -> bool:
    """Whether somebody follows a link on a page of another site, such as another machine's: that site reads nothing.

    Source: Fetch Metadata Request Headers, W3C.
    """
    is_shown = header(scope, b"sec-fetch-mode") == b"navigate" and header(scope, b"sec-fetch-dest") == b"document"
    site = header(scope, b"sec-fetch-site")
    return scope["method"] == "GET" and is_shown and site in (b"cross-site", b"same-site")


def _login_page(*, is_wrong: bool, came_from: str | None = None) -> bytes:
    """Return the page that asks for the key.

    Args:
        is_wrong: whether a wrong key was sent.
        came_from: path of a page to which a link on another site led. Browsers send no session with such a request.
    """
    again = el("p", "If you have signed in here before, ", el("a", "continue", href=came_from), ".")
    return page(
        "Sign in",
        el("p", "This key is wrong.", class_="bad", role="alert") if is_wrong else None,
        again if came_from else None,
        el(
            "form",
            el("label", "The server's key (server.key, or THAWD_KEY) ",
               el("input", type="password", name="key", autocomplete="current-password", required=True)),
            el("p", el("button", "Sign in")),
            method="post", action=f"{ROOT}/login", class_="tall",
        ),
    )  # fmt: skip


def _html() -> tuple[bytes, bytes]:
    return b"content-type", b"text/html; charset=utf-8"


async def _respond(send: Send, status: int, headers: Headers, body: bytes) -> None:
    await respond(send, status, [*headers, (b"cache-control", b"no-store"), *_PROTECTION], body)
