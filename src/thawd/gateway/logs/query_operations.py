"""The operations of the Logs API on Logs Insights queries."""

from __future__ import annotations

import asyncio
import base64
import binascii
from typing import Any

import msgspec

from thawd.cloudwatch.logs.errors import InvalidParameterException, LogsNotFoundException
from thawd.cloudwatch.logs.events import GroupEvents, Place
from thawd.cloudwatch.logs.groups import LogGroups
from thawd.cloudwatch.logs.queries import Queries, Query, result_fields
from thawd.gateway.logs.requests import Request, identified, parts_of, token_of, whole_of
from thawd.grammar.insights.rows import Record, Row
from thawd.resources import ACCOUNT_ID
from thawd.stores.log_events import Key
from thawd.telemetry.logs.events import LogPosition

_MOST_GROUPS = 50
# Times in seconds are below this; AWS takes milliseconds, too.
_SECONDS_BELOW = 100_000_000_000
_DESCRIBED = 1000
# No position in a file and no number of the state file is larger.
_LARGEST = 1 << 62


class QueryOperations:
    """Operations on queries. Each takes the checked input, and returns the answer.

    Args:
        groups: all log groups.
        queries: runs queries.
    """

    def __init__(self, groups: LogGroups, queries: Queries) -> None:
        self._groups = groups
        self._queries = queries

    async def start_query(self, request: Request) -> dict[str, Any]:
        if request.get("queryLanguage", "CWLI") != "CWLI":
            raise InvalidParameterException("thawd runs queries in the language CWLI (Logs Insights) only")
        named = [
            *([request["logGroupName"]] if "logGroupName" in request else []),
            *request.get("logGroupNames", []),
            *(identified(each, "logGroupIdentifiers") for each in request.get("logGroupIdentifiers", [])),
        ]
        given = sum(name in request for name in ("logGroupName", "logGroupNames", "logGroupIdentifiers"))
        if given != 1 or not named:
            raise InvalidParameterException(
                "Exactly one of logGroupName, logGroupNames and logGroupIdentifiers must be specified."
            )
        if len(named) > _MOST_GROUPS:
            raise InvalidParameterException(f"At most {_MOST_GROUPS} log groups can be queried together.")
        start, end = request["startTime"], request["endTime"]
        if start > end:
            raise InvalidParameterException("End time should not be less than start time.")
        start_ms = start * 1000 if start < _SECONDS_BELOW else start
        end_ms = end * 1000 + 999 if end < _SECONDS_BELOW else end
        groups = list(dict.fromkeys(named))
        identifier = self._queries.start(
            request["queryString"], groups, period_ms=(start_ms, end_ms), limit=request.get("limit")
        )
        return {"queryId": identifier}

    async def get_query_results(self, request: Request) -> dict[str, Any]:
        query = self._queries.find(request["queryId"])
        outcome = query.outcome
        begin = whole_of((parts_of(request.get("nextToken"), 1) or ["0"])[0])
        end = begin + (request.get("maxItems") or len(outcome.results))
        answer: dict[str, Any] = {
            "queryLanguage": "CWLI",
            "results": [result_fields(result) for result in outcome.results[begin:end]],
            "statistics": {
                "recordsMatched": float(outcome.matched),
                "recordsScanned": float(outcome.scanned),
                "estimatedRecordsSkipped": 0.0,
                "bytesScanned": float(outcome.scanned_bytes),
                "estimatedBytesSkipped": 0.0,
                "logGroupsScanned": float(len(query.groups)),
            },
            "status": query.status,
        }
        if end < len(outcome.results):
            answer["nextToken"] = token_of(str(end))
        return answer

    async def stop_query(self, request: Request) -> dict[str, Any]:
        self._queries.stop(request["queryId"])
        return {"success": True}

    async def describe_queries(self, request: Request) -> dict[str, Any]:
        limit = request.get("maxResults", _DESCRIBED)
        begin = whole_of((parts_of(request.get("nextToken"), 1) or ["0"])[0])
        found = [
            query
            for query in self._queries.list()
            if request.get("logGroupName") in (None, *query.groups) and request.get("status") in (None, query.status)
            if request.get("queryLanguage") in (None, "CWLI")
        ]
        answer: dict[str, Any] = {"queries": [_described(query) for query in found[begin : begin + limit]]}
        if begin + limit < len(found):
            answer["nextToken"] = token_of(str(begin + limit))
        return answer

    async def get_log_record(self, request: Request) -> dict[str, Any]:
        return await asyncio.to_thread(self._get_log_record, request["logRecordPointer"])

    def _get_log_record(self, pointer: str) -> dict[str, Any]:
        try:
            name, file, offset, time_ms, identifier, event_id = msgspec.json.decode(
                base64.b64decode(pointer, altchars=b"-_", validate=True), type=tuple[str, int, int, int, int, str]
            )
        except (binascii.Error, ValueError, msgspec.MsgspecError):
            raise InvalidParameterException("The specified logRecordPointer is invalid.") from None
        if offset < 0 or max(offset, abs(time_ms), abs(identifier)) > _LARGEST:
            raise InvalidParameterException("The specified logRecordPointer is invalid.")
        place = Place(LogPosition(file, offset), Key(time_ms, identifier))
        with GroupEvents(self._groups.source(name), self._groups.store.reading) as events:
            for event in events.forward(place):
                if event.id != event_id:
                    break
                row = Row(
                    Record(
                        event.time_ms, event.ingested_ms, event.text, event.stream, name, ACCOUNT_ID, lambda: pointer
                    )
                )
                fields = row.everything()
                return {"logRecord": fields}
        raise LogsNotFoundException("The specified log record does not exist.")


def _described(query: Query) -> dict[str, Any]:
    described: dict[str, Any] = {
        "queryLanguage": "CWLI",
        "queryId": query.id,
        "queryString": query.text,
        "status": query.status,
        "createTime": query.created_ms,
        "logGroupName": query.groups[0],
    }
    if query.duration_ms is not None:
        described |= {"queryDuration": query.duration_ms, "bytesScanned": float(query.outcome.scanned_bytes)}
    return described
