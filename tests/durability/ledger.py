"""What the server has accepted from clients, and the check that it kept all of it."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

KINDS = ("plain", "plain", "plain", "plain", "flaky", "exits", "slow", "poison")
"""What a handler does with an event: the last part of the event's token. Clients send the kinds in this order."""

FUNCTION = "work"
BUCKET = "uploads"
CODE = """
    import hashlib, json, os, time, urllib.parse
    import thawd

    def is_first(token):
        try:
            os.close(os.open(os.path.join(os.environ["ATTEMPTS"], token), os.O_CREAT | os.O_EXCL))
            return True
        except FileExistsError:
            return False

    def handler(event, context):
        if "Records" in event:
            key = urllib.parse.unquote_plus(event["Records"][0]["s3"]["object"]["key"])
            event = json.loads(thawd.bucket("uploads").read(key))
        token = event["token"]
        kind = token.rpartition("-")[2]
        if kind == "poison":
            raise ValueError("poison " + token)
        if kind == "slow":
            time.sleep(0.1)
        if kind in ("flaky", "exits") and is_first(token):
            if kind == "exits":
                os._exit(3)
            raise RuntimeError("not yet " + token)
        return {"token": token, "value": hashlib.sha256(token.encode()).hexdigest()}
"""
CONFIG = """
    [functions.work]
    handler = "app.handler"
    memory_mb = 128
    environment = {{ ATTEMPTS = "{attempts}" }}
    on_success = "table:results"
    on_failure = "table:failures"
    [buckets.uploads]
    notify = [{{ function = "work" }}]
    [tables.results]
    [tables.failures]
"""


def value_of(token: str) -> str:
    """Return the answer that the handler of `CODE` gives."""
    return hashlib.sha256(token.encode()).hexdigest()


@dataclass
class Ledger:
    """What the clients recorded. Thread-safe.

    Attributes:
        seed: the run's seed, for messages.
        accepted: tokens of accepted events, by request id (answer 202) or object key (answer 200, or a completed
            rename).
        unsure: tokens of events that may have been accepted, by request id, object key or (for invocations without an
            answer) the token itself. Each may be stored at most once.
        environments_killed: number of environments that the test killed.
    """

    seed: int
    accepted: dict[str, str] = field(default_factory=dict)
    unsure: dict[str, str] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    environments_killed: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def accept(self, key: str, token: str) -> None:
        """Record that the server accepted the event."""
        with self._changed:
            assert key not in self.accepted, f"{key} was given to two"
            self.accepted[key] = token
            self.unsure.pop(key, None)
            self._changed.notify_all()

    def doubt(self, key: str, token: str, why: str) -> None:
        """Record that the server refused the event or did not answer."""
        with self._changed:
            self.refused[why] += 1
            if key not in self.accepted:
                self.unsure[key] = token

    def until_accepted(self, count: int) -> None:
        """Return as soon as `count` events have been accepted."""
        with self._changed:
            self._changed.wait_for(lambda: len(self.accepted) >= count)

    def verify(self, results: dict[str, dict[str, Any]], failures: dict[str, dict[str, Any]]) -> None:
        """Check that every accepted event became one row with the right value or one dead letter, and that nothing else
        exists.

        Raises:
            AssertionError: the check fails; the message has the seed to repeat the run.
        """
        wrong = [*self._lost(results, failures), *self._foreign(results, failures), *self._values(results)]
        dead = [token_of(record) for record in failures.values()]
        unlucky = sorted(token for token in dead if not token.endswith("-poison"))
        # A killed environment is a failed attempt, as on Lambda. An event becomes a dead letter after three of them.
        if len(unlucky) > self.environments_killed:
            wrong.append(f"dead letters, though their handlers do not fail: {unlucky}")
        assert not wrong, f"seed {self.seed}: {len(wrong)} wrong:\n" + "\n".join(wrong[:20])

    def _lost(self, results: dict[str, Any], failures: dict[str, Any]) -> list[str]:
        wrong = []
        for key, token in self.accepted.items():
            where = [name for name, rows in (("results", results), ("failures", failures)) if key in rows]
            if len(where) != 1:
                wrong.append(f"{token} ({key}) was accepted and is in {' and '.join(where) or 'no table'}")
            elif (where == ["failures"]) < token.endswith("-poison"):
                wrong.append(f"{token} ({key}) always fails, but has a result")
        return wrong

    def _foreign(self, results: dict[str, Any], failures: dict[str, Any]) -> list[str]:
        wrong = []
        unsure = set(self.unsure.values())
        tokens = {key: item["token"] for key, item in results.items()}
        tokens |= {key: token_of(record) for key, record in failures.items()}
        for key, token in tokens.items():
            if self.accepted.get(key) != token and (token not in unsure or key in self.accepted):
                wrong.append(f"{token} ({key}) was not sent by any client")
        both = [*(item["token"] for item in results.values()), *(token_of(record) for record in failures.values())]
        wrong += [f"{token} is stored {count} times" for token, count in Counter(both).items() if count > 1]
        return wrong

    def _values(self, results: dict[str, Any]) -> list[str]:
        return [f"{key} holds {row}" for key, row in results.items() if row != _row(str(row.get("token")))]


def _row(token: str) -> dict[str, str]:
    return {"token": token, "value": value_of(token)}


def token_of(record: dict[str, Any]) -> str:
    """Return the token of the event that failed. An object in the bucket has the token as its key."""
    request = record["requestPayload"]
    token: str = request["Records"][0]["s3"]["object"]["key"] if "Records" in request else request["token"]
    return token.removesuffix(".json")


def body_of(token: str) -> bytes:
    """Return the event's payload, or the content of the object."""
    return json.dumps({"token": token}).encode()
