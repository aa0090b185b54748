"""Options of ``[routes]``, ``[http]``, ``[http.cors]`` and ``[functions.NAME.url]``."""

from __future__ import annotations

from thawd.config import kinds
from thawd.config.options.option import REQUIRED, Option

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "ANY")

ROUTE_KEY = (
    f'"$default", or one of {", ".join(METHODS)}, a space, and a path such as /items, /items/{{id}} or /files/{{path+}}'
)

ROUTE = Option(
    '"METHOD /path"',
    kinds.route(),
    f"Function that answers requests that match this key. The key is {ROUTE_KEY}.",
    "none",
)

ROUTE_TABLE = (
    Option("function", kinds.text("the name of a function of this file"), "Function that answers requests.", REQUIRED),
    Option("payload_format", kinds.choice("1.0", "2.0"), "Payload format version of the event and the answer."),
    Option(
        "asynchronous",
        kinds.flag(),
        "Whether each request is stored durably and answered with 202 immediately; the function runs afterwards.",
    ),
)

HTTP = (
    Option(
        "stage_variables",
        kinds.table("a table of texts"),
        "Variables that events contain as `stageVariables`.",
        "{}",
    ),
    Option(
        "cors",
        kinds.table("a table, `[http.cors]`"),
        "CORS: which web pages of other origins may send requests.",
        "none: handlers answer CORS requests themselves",
    ),
)

STAGE_VARIABLE_NAME = kinds.pattern("a name of letters, digits and underscores", r"[A-Za-z0-9_]+")

STAGE_VARIABLE_VALUE = kinds.pattern("a text of letters, digits and -._~:/?#&=,", r"[A-Za-z0-9._~:/?#&=,-]{1,512}")

CORS = (
    Option(
        "allow_origins",
        kinds.list_of('a list of origins such as "https://example.com", or "https://*", "http://*", "*"'),
        "Origins of the web pages that may send requests.",
        "[]",
    ),
    Option(
        "allow_methods",
        kinds.list_of('a list of methods, or "*"'),
        "Methods that pages of the allowed origins may use.",
        "[]",
    ),
    Option(
        "allow_headers",
        kinds.list_of('a list of names of headers, or "*"'),
        "Headers that requests of the allowed origins' pages may have.",
        "[]",
    ),
    Option(
        "expose_headers",
        kinds.list_of('a list of names of headers, or "*"'),
        "Headers of an answer that pages of the allowed origins may read.",
        "[]",
    ),
    Option(
        "max_age_s",
        kinds.whole(0, 86_400),
        "How long a browser may cache these CORS rules, in seconds; 0: answers have no `Access-Control-Max-Age`.",
    ),
    Option("allow_credentials", kinds.flag(), "Whether requests may contain cookies and authorization."),
)

URL = (
    Option(
        "auth_type",
        kinds.choice("NONE", "AWS_IAM"),
        '"NONE": anyone who can reach the port may send requests; "AWS_IAM": requests must be signed with one of '
        "`access_keys`.",
        REQUIRED,
    ),
    Option(
        "invoke_mode",
        kinds.choice("BUFFERED", "RESPONSE_STREAM"),
        '"BUFFERED": the answer is sent when it is complete; "RESPONSE_STREAM": it is sent part by part.',
    ),
    Option(
        "cors",
        kinds.table("a table of the options of `[http.cors]`"),
        "CORS: which web pages of other origins may send requests.",
        "none",
    ),
)
