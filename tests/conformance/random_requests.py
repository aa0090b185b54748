"""Random requests made from AWS's service model: valid ones, values that break constraints, wrong types, odd texts.

The same seed gives the same requests, as far as the values that earlier answers gave (revision ids, UUIDs, markers) are
the same.
"""

from __future__ import annotations

import json
import random
from typing import Any

from botocore.model import Shape, StructureShape

from .conftest import CODE, OTHER_CODE, ROLE, RUNTIME, zipped
from .constraints import OPERATIONS, bad_values, sample
from .wire import Answer, Request, operation, request_of

INVOKING = ("Invoke", "InvokeAsync", "InvokeWithResponseStream")
NAMES = ("fuzz-a", "fuzz-b", "fuzz-c", "configured", "absent")
_CHOSEN = (*NAMES, *NAMES[:3], *NAMES[:3])
LAYERS = ("fuzz-layer", "fuzz-other")
_ARN = "arn:aws:lambda:us-east-1:000000000000:"
_QUALIFIERS = ("$LATEST", "1", "1", "1", "2", "live", "live", "next", "9", "a b", "$latest", "x" * 129)
_ZIPS = (CODE, OTHER_CODE, zipped(app__py="raise RuntimeError('no')"), b"no zip", b"", zipped())
_TEXTS = (
    "", " ", "x", "a/b", "..", "../..", "%00", "\0", "\u00e9\u4e16\U0001f600", "\ud800", "null", "x" * 300, "x" * 5000,
    "-1", "1e400", "${jndi:x}", "'; drop table x; --", "\r\nx-y: z", "\u202e",
    "arn:aws:lambda:eu-west-1:000000000000:function:f",
)  # fmt: skip
_NUMBERS = (0, 1, -1, 2, 3, 10, 128, 900, 2**31, -(2**31), 2**63, 1.5, 1e308, 10**30)
_QUEUES = tuple(f"arn:aws:sqs:us-east-1:000000000000:fuzz{suffix}" for suffix in ("", ".fifo"))
_BODIES = (b"{}", b'{"fail": true}', b"", b"{", b"\xff", b"[1,", b"null", b'"x"', b"[" * 2000, b"NaN")
_NO_DOCUMENTS = (b"[]", b'"x"', b"7", b"null", b"\xff\xfe", b"{" * 3000, b'{"a":NaN}')
_METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS")
_ENDINGS = ("/", "/x", "?MaxItems=x", "&MaxItems=-1", "%2f", "?")
_FOLDERS = ("function", "%66unctions", "..")
_OTHERS = (None, True, False, [], {}, [None], {"a": None}, [[]], "text", 7, {"": ""})
# What starts processes: seldom done, so that the other requests are not delayed.
_SLOW = {"CreateFunction": 0.5, "UpdateFunctionCode": 0.3, "UpdateFunctionConfiguration": 0.3, "DeleteFunction": 0.08}
_SLOW |= {"PutProvisionedConcurrencyConfig": 0.3, "PutFunctionConcurrency": 0.3}
_MOST_KNOWN = 40


class Requests:
    """Makes random requests, and learns from their answers.

    Args:
        seed: number that determines the requests.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._known: dict[str, list[str]] = {}
        names = [*OPERATIONS, *INVOKING]
        self._names = names
        self._weights = [_SLOW.get(name, 1.0) for name in names]

    def next(self) -> tuple[str, Request]:
        """Return the name of an operation and a request for it, which can be malformed."""
        choose = self._random
        (name,) = choose.choices(self._names, self._weights)
        if name in INVOKING:
            return name, self._invocation(name)
        shape = operation(name).input_shape
        how = choose.random()
        parameters = {} if shape is None else self._members(name, shape, oddness=0.0 if how < 0.5 else 0.25)
        request = request_of(name, parameters)
        return name, request if choose.random() > 0.04 else self._damaged(request)

    def learn(self, answer: Answer) -> None:
        """Remember identifiers in an answer, for later requests."""
        if answer.status >= 300 or not answer.body.startswith(b"{"):
            return
        document = json.loads(answer.body)
        for field in ("RevisionId", "UUID", "NextMarker", "CodeSigningConfigArn"):
            for value in _values_of(document, field):
                known = self._known.setdefault(field, [])
                if value not in known:
                    known.append(value)
                    del known[:-_MOST_KNOWN]

    def _learnt(self, field: str, otherwise: str) -> str:
        return self._random.choice([*self._known.get(field, ()), otherwise])

    def _members(self, name: str, shape: StructureShape, *, oddness: float) -> dict[str, Any]:
        choose, made = self._random, {}
        optional = choose.choice((0.02, 0.1, 0.4))
        for member, described in shape.members.items():
            is_required = member in shape.required_members
            if choose.random() < (1 - oddness / 4 if is_required else optional):
                made[member] = self._value(name, member, described, oddness)
        if name in ("CreateFunction", "PublishLayerVersion") and choose.random() < 0.8:
            made = {key: value for key, value in made.items() if choose.random() < 0.4 or key in shape.required_members}
            if name == "CreateFunction":
                made |= {"Runtime": RUNTIME, "Handler": "app.handler", "Role": ROLE, "Code": {"ZipFile": _ZIPS[0]}}
        return made

    def _value(self, name: str, member: str, shape: Shape, oddness: float) -> Any:
        choose = self._random
        if choose.random() < oddness:
            return self._odd(shape)
        known = self._known_value(name, member, shape)
        if known is not None:
            return known
        make = {
            "structure": lambda: self._members("", shape, oddness=oddness),  # type: ignore[arg-type]
            "list": lambda: [self._value("", "", shape.member, oddness) for _ in range(choose.choice((0, 1, 1, 2)))],
            "map": lambda: {
                self._text(shape.key, oddness): self._value("", "", shape.value, oddness)
                for _ in range(choose.choice((0, 1, 1, 3)))
            },
            "string": lambda: self._text(shape, oddness),
            "boolean": lambda: choose.random() < 0.5,
            "blob": lambda: choose.choice(_ZIPS),
        }
        return make.get(shape.type_name, lambda: self._number(shape))()

    def _number(self, shape: Shape) -> Any:
        least, most = int(shape.metadata.get("min", 0)), int(shape.metadata.get("max", 1000))
        return self._random.choice((least, most, self._random.randint(least, min(most, least + 20))))

    def _known_value(self, name: str, member: str, shape: Shape) -> Any:
        """Return a value that refers to something that may exist, for members that name something."""
        choose = self._random
        if member == "FunctionName":
            plain = choose.choice(_CHOSEN)
            qualified = f"{plain}:{choose.choice(_QUALIFIERS)}"
            return choose.choice(
                (plain, plain, plain, f"{_ARN}function:{plain}", qualified, f"{_ARN}function:{qualified}")
            )
        if member in ("Qualifier", "FunctionVersion") and not shape.enum:  # type: ignore[attr-defined]
            return choose.choice(_QUALIFIERS)
        simple = {
            "Name": ("live", "next", "other"),
            "LayerName": (*LAYERS, f"{_ARN}layer:fuzz-layer"),
            "StatementId": ("one", "two", "three"),
            "Role": (ROLE,),
            "VersionNumber": (1, 2, 3, 0, -1),
            "Principal": ("*", "s3.amazonaws.com", "000000000000", ROLE, "nobody"),
            "Handler": ("app.handler", "app.none"),
            "ReservedConcurrentExecutions": (0, 1, 2, 100),
            "ProvisionedConcurrentExecutions": (1, 2, 100),
            "Timeout": (1, 3, 900),
            "EventSourceArn": _QUEUES,
            "Resource": (f"{_ARN}function:fuzz-a", f"{_ARN}function:fuzz-b", f"{_ARN}function:fuzz-a:1"),
            "TagKeys": (["a"], ["a", "b"]),
            "Tags": ({"a": "1"}, {"a": "2", "b": ""}, {}),
            "S3Bucket": ("code", "none"),
        }
        if member in simple:
            return choose.choice(simple[member])
        learnt = {
            "RevisionId": ("RevisionId", "stale"),
            "UUID": ("UUID", "8f7d3a52-1c2d-4e5f-9a6b-7c8d9e0f1a2b"),
            "Marker": ("NextMarker", "x"),
            "CodeSigningConfigArn": ("CodeSigningConfigArn", f"{_ARN}code-signing-config:csc-0123456789abcdefg"),
        }
        if member in learnt and not (name == "CreateFunction" and choose.random() < 0.9):
            return self._learnt(*learnt[member])
        return None

    def _text(self, shape: Shape, oddness: float) -> str:
        choose = self._random
        if choose.random() < oddness:
            return choose.choice(_TEXTS)
        if shape.enum:  # type: ignore[attr-defined]
            return str(choose.choice(shape.enum))  # type: ignore[attr-defined]
        return str(sample(shape))

    def _odd(self, shape: Shape) -> Any:
        choose = self._random
        where = shape.serialization.get("location")
        if choose.random() < 0.4:
            broken = list(bad_values(shape, in_path=where == "uri", in_query=where == "querystring"))
            if broken:
                return choose.choice(broken)[1]
        value = choose.choice((choose.choice(_TEXTS), choose.choice(_NUMBERS), choose.choice(_OTHERS), _nested(choose)))
        if where is not None:  # texts, in the path never empty
            return str(value).encode("utf-8", "replace").decode() or "x"
        return value

    def _invocation(self, name: str) -> Request:
        choose = self._random
        reference = self._known_value(name, "FunctionName", operation(name).input_shape) or "x"
        target = request_of(
            name, {"FunctionName": reference if choose.random() < 0.95 else choose.choice(_TEXTS[1:9])}
        ).target
        if choose.random() < 0.3:
            target += f"?Qualifier={choose.choice(('$LATEST', '1', 'live', '9', 'a%20b', '', '%00'))}"
        body = choose.choice(
            (b"{}", b'{"fail": true}', b"", b"{", b"\xff", b"[1,", b"null", b'"x"', b"[" * 2000, b"NaN")
        )
        return Request("POST", target, body)

    def _damaged(self, request: Request) -> Request:
        choose = self._random
        how = choose.randrange(6)
        if how == 0:
            return request._replace(body=request.body[: choose.randrange(len(request.body) + 1)])
        if how == 1:
            return request._replace(
                body=choose.choice((b"[]", b'"x"', b"7", b"null", b"\xff\xfe", b"{" * 3000, b'{"a":NaN}'))
            )
        if how == 2:
            return request._replace(method=choose.choice(_METHODS))
        if how == 3:
            return request._replace(
                target=request.target + choose.choice(("/", "/x", "?MaxItems=x", "&MaxItems=-1", "%2f", "?"))
            )
        if how == 4:
            return request._replace(
                target=request.target.replace("functions", choose.choice(("function", "%66unctions", "..")))
            )
        return request._replace(body=request.body + b" " * 5000 + choose.choice((b"", b"x", request.body)))


def _nested(choose: random.Random) -> Any:
    value: Any = "x"
    for _ in range(choose.choice((1, 5, 40, 200))):
        value = [value] if choose.random() < 0.5 else {"a": value}
    return value


def _values_of(document: Any, field: str) -> list[str]:
    found: list[str] = []
    if isinstance(document, dict):
        for name, value in document.items():
            if name == field and isinstance(value, str):
                found.append(value)
            else:
                found += _values_of(value, field)
    elif isinstance(document, list):
        for item in document:
            found += _values_of(item, field)
    return found
