"""The query language of Logs Insights; texts and numbers are those of the CloudWatch Logs user guide, if it has any."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from thawd.grammar.insights.query import parse
from thawd.grammar.insights.rows import Record, Row
from thawd.grammar.insights.tokens import QueryError
from thawd.grammar.insights.values import scientific, text

BEGIN_MS = 1_790_000_040_000  # a whole minute
REQUEST = "8f507cfc-xmpl-4697-b07a-ac58fc914c95".replace("xmpl", "4e3f")
REPORT = (
    f"REPORT RequestId: {REQUEST}\tDuration: 15.74 ms\tBilled Duration: 16 ms\tMemory Size: 128 MB\t"
    "Max Memory Used: 56 MB\tInit Duration: 130.49 ms\t\n"
)


def rows(*messages: Any, step_ms: int = 1000, group: str = "/aws/lambda/f") -> list[Row]:
    """Events, the latest first, one each `step_ms`; the first message is the earliest event."""
    records = [
        Record(
            BEGIN_MS + index * step_ms,
            BEGIN_MS + index * step_ms + 1,
            message if isinstance(message, str) else json.dumps(message),
            f"s{index % 2}",
            group,
            "000000000000",
            partial(str, f"p{index}"),
        )
        for index, message in enumerate(messages)
    ]
    return [Row(record) for record in records[::-1]]


def run(query: str, events: list[Row], **options: Any) -> list[dict[str, str]]:
    found = [dict(result) for result in parse(query, **options).run(iter(events), matched=lambda: None)]
    for result in found:
        result.pop("@ptr", None)
    return found


NUMBERS = [{"n": number, "kind": ("even", "odd")[number % 2], "user": {"id": f"u{number}"}} for number in range(6)]


def test_without_fields_a_result_has_its_time_its_message_and_its_pointer() -> None:
    [result] = parse("filter @message = 'b'").run(iter(rows("a", "b")), matched=lambda: None)
    assert result == [("@timestamp", "2026-09-21 14:14:01.000"), ("@message", "b"), ("@ptr", "p1")]


def test_the_latest_events_come_first_and_limit_takes_the_first() -> None:
    assert [r["@message"] for r in run("fields @message | limit 2", rows("a", "b", "c"))] == ["c", "b"]
    assert [r["@message"] for r in run("fields @message", rows("a", "b", "c"), limit=1)] == ["c"]


@pytest.mark.parametrize(
    ("condition", "numbers"),
    [
        ("n > 3", "54"),
        ("n >= 3 and n < 5", "43"),
        ("n = 1 or n = '2'", "21"),
        ("not n > 0", "0"),
        ("kind = 'odd' and not (n = 3)", "51"),
        ("n in [1, 4]", "41"),
        ("n not in [1, 4]", "5320"),
        ("user.id like /u[45]/", "54"),
        ("user.id =~ /(?i)U1/", "1"),
        ("user.id not like 'u'", ""),
        ("@message like 'odd'", "531"),
        ("ispresent(user.id) and not ispresent(absent)", "543210"),
        ("absent = 1", ""),
        ("absent != 1", "543210"),
        ("n * 2 + 1 = 2 ^ 3 - 1", "3"),
        ("n % 2 = 1 and -n < -1", "53"),
        ('`user.id` = "u2"', "2"),
        ("strlen(kind) = 3 # only the odd ones", "531"),
    ],
)
def test_a_filter_keeps_the_events_for_which_it_holds(condition: str, numbers: str) -> None:
    assert "".join(r["n"] for r in run(f"fields n | filter {condition}", rows(*NUMBERS))) == numbers


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("abs(0 - 3)", "3"),
        ("ceil(1.2)", "2"),
        ("floor(1.8)", "1"),
        ("sqrt(16)", "4"),
        ("log(1)", "0"),
        ("greatest(1, 12, 3)", "12"),
        ("least(5, 12, 3)", "3"),
        ("1 / 3", "0.3333"),
        ("coalesce(absent, kind, 'x')", "odd"),
        ("if(n = 1, 'one', 'other')", "one"),
        ("concat(kind, '-', n)", "odd-1"),
        ("trim('  a ')", "a"),
        ("ltrim('xxa', 'x')", "a"),
        ("rtrim('axx', 'x')", "a"),
        ("toupper(kind)", "ODD"),
        ("tolower('ABC')", "abc"),
        ("substr('abcdef', 2)", "cdef"),
        ("substr('abcdef', 2, 3)", "cde"),
        ("replace('a.b', '.', '/')", "a/b"),
        ("strcontains(kind, 'dd')", "1"),
        ("isempty('')", "1"),
        ("isblank(' ')", "1"),
        ("isValidIpv4('10.0.0.1')", "1"),
        ("isIpInSubnet('10.0.0.1', '10.0.0.0/8')", "1"),
        ("toMillis(@timestamp)", str(BEGIN_MS)),
        ("fromMillis(0)", "1970-01-01 00:00:00.000"),
        ("datefloor(@timestamp, 1h)", "2026-09-21 14:00:00.000"),
        ("dateceil(@timestamp, 1h)", "2026-09-21 15:00:00.000"),
        ("@log", "000000000000:/aws/lambda/f"),
        ("@logStream", "s0"),
    ],
)
def test_a_function_computes_a_field(expression: str, value: str) -> None:
    assert run(f"fields {expression} as x | display x", rows(NUMBERS[1])) == [{"x": value}]


def test_stats_groups_by_fields_and_by_time() -> None:
    events = rows(*NUMBERS, step_ms=20_000)
    assert run("stats count(*) as c, sum(n), avg(n) by kind", events) == [
        {"kind": "odd", "c": "3", "sum(n)": "9", "avg(n)": "3"},
        {"kind": "even", "c": "3", "sum(n)": "6", "avg(n)": "2"},
    ]
    assert run("stats max(n) as most, min(n) by bin(1m)", events) == [
        {"bin(1m)": "2026-09-21 14:15:00.000", "most": "5", "min(n)": "3"},
        {"bin(1m)": "2026-09-21 14:14:00.000", "most": "2", "min(n)": "0"},
    ]
    assert run("stats count() by bin(30s) as slot, kind | sort slot asc, kind | limit 1", events) == [
        {"slot": "2026-09-21 14:14:00.000", "kind": "even", "count()": "1"}
    ]


def test_aggregates_are_computed_over_all_events_and_can_be_calculated_with() -> None:
    [found] = run(
        "stats pct(n, 50) as p50, stddev(n) as s, count_distinct(kind) as kinds, earliest(user.id) as first, "
        "latest(user.id) as last, sortsFirst(kind) as a, sortsLast(kind) as z, 100 * sum(n) / count(*) as share",
        rows(*NUMBERS),
    )
    assert found == {
        **{"p50": "2", "s": "1.8708", "kinds": "2", "first": "u0", "last": "u5"},
        **{"a": "even", "z": "odd", "share": "250"},
    }
    assert run("stats count(*) as c, sum(n) as s", []) == [{"c": "0"}]
    assert run("stats count(*) as c by kind | stats max(c) as most", rows(*NUMBERS)) == [{"most": "3"}]


def test_lambdas_lines_have_fields() -> None:
    [found] = run("fields @type, @requestId, @duration, @billedDuration, @memorySize, @initDuration", rows(REPORT))
    assert found == {
        **{"@type": "REPORT", "@requestId": REQUEST, "@duration": "15.74", "@billedDuration": "16.0"},
        **{"@memorySize": "1.28E8", "@initDuration": "130.49"},
    }
    # The user guide's query about provisioned memory that is not used.
    query = """filter @type = "REPORT"
        | stats max(@memorySize / 1024 / 1024) as provisionedMemoryMB, avg(@maxMemoryUsed / 1024 / 1024) as used"""
    assert run(query, rows(REPORT, "other")) == [{"provisionedMemoryMB": "122.0703", "used": "53.4058"}]
    line = f"2026-11-24T05:00:00.000Z\t{REQUEST}\tINFO\thello"
    assert run("fields @requestId", rows(line)) == [{"@requestId": REQUEST}]
    assert run("fields @requestId", rows(line, group="elsewhere")) == [{}]


def test_fields_of_json_are_found_at_their_paths_also_behind_other_text() -> None:
    document = {"a": {"b": [{"c": 1}, {"c": "two"}]}, "d.e": True, "f": None}
    assert run("fields a.b.1.c, d.e, f, a.b", rows(document)) == [
        {"a.b.1.c": "two", "d.e": "1", "a.b": '[{"c":1},{"c":"two"}]'}
    ]
    assert run("fields level", rows('[INFO] {"level": "low"} and more')) == [{"level": "low"}]


def test_parse_takes_fields_out_of_a_text() -> None:
    line = "user=ann, method:GET, latency := 150 ms"
    assert run('parse @message "user=*, method:*, latency := *" as @user, @method, @latency', rows(line, "no")) == [
        {"@timestamp": "2026-09-21 14:14:01.000", "@message": "no"},
        {"@timestamp": "2026-09-21 14:14:00.000", "@message": line},
    ]
    query = r"parse @message /user=(?<user>\w+).*:= (?<took>\d+)/ | filter took > 100 | fields user, took"
    assert run(query, rows(line, "no")) == [{"user": "ann", "took": "150"}]
    assert run("parse user.id 'u*' as number | stats sum(number)", rows(*NUMBERS)) == [{"sum(number)": "15"}]


def test_dedup_keeps_the_first_of_each_kind_and_those_without_one() -> None:
    query = "fields n | sort n asc | dedup kind"
    assert [r["n"] for r in run(query, rows(*NUMBERS, {"n": 9}, {"n": 8}))] == ["0", "1", "8", "9"]


def test_sorting_puts_numbers_before_texts_and_missing_values_last() -> None:
    events = rows({"v": "b"}, {"v": 10}, {"v": 9}, {"w": 1}, {"v": "a"})
    assert [r.get("v") for r in run("fields v | sort v asc", events)] == ["9", "10", "a", "b", None]
    assert [r.get("v") for r in run("fields v | sort v desc", events)] == ["b", "a", "10", "9", None]


@pytest.mark.parametrize(
    ("query", "start", "message"),
    [
        ("bogus @message", 0, "unexpected symbol found bogus at line 1 and position 1"),
        ("fields @message |\n filter", 24, "unexpected end of query"),
        ("fields f(1)", 7, "unknown function f at line 1 and position 8"),
        ("filter count(*) > 1", 7, "aggregation function count is not allowed at line 1 and position 8"),
        ("stats n by kind", 6, "stats needs an aggregation function at line 1 and position 7"),
        ("fields a\n| parse @message /(/", 26, "invalid regular expression"),
        ("parse @message 'a*b*' as x", 15, "parse needs as many fields as wildcards at line 1 and position 16"),
        ("limit 0", 6, "unexpected symbol found 0 at line 1 and position 7"),
        ("limit 10001", 6, "unexpected symbol found 10001"),
        ("fields substr('a')", 7, "invalid number of arguments for substr"),
        ("fields (", 7, "unexpected end of query"),
        ("fields a ; b", 9, "unexpected symbol found ;"),
        ("", 0, "unexpected end of query"),
        ("unnest a into b", 0, "unexpected symbol found unnest"),
        ("fields " + "(" * 50 + "1" + ")" * 50, 47, "nested too deep"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_place(query: str, start: int, message: str) -> None:
    with pytest.raises(QueryError) as error:
        parse(query)
    assert message in str(error.value)
    assert error.value.start == start


def test_matched_counts_what_the_filters_let_through_whatever_the_limit() -> None:
    seen: list[int] = []
    results = list(parse("filter n > 1 | limit 1").run(iter(rows(*NUMBERS)), matched=lambda: seen.append(1)))
    assert (len(results), len(seen)) == (1, 4)


def test_numbers_are_written_as_aws_writes_them() -> None:
    assert [text(value) for value in (1, 1.0, 1.5, 2 / 3, 1e20, True)] == ["1", "1", "1.5", "0.6667", "1.0E20", "1"]
    assert [scientific(value) for value in (128e6, 512.0, 99.5)] == ["1.28E8", "512.0", "99.5"]


HUGE = '{"n": ' + "9" * 400 + "}"


@pytest.mark.parametrize(
    "query",
    [
        "fields n as x | sort x desc",
        "stats pct(n, 99) as x",
        "stats max(n) as x, avg(n) as y, stddev(n) as z",
        "fields frommillis(n) as x",
        "fields frommillis(1e300) as x",
        'fields tomillis("1e999") as x',
        "fields datefloor(n, 1h) as x",
        "stats count(*) as x by datefloor(1e308, 1ms)",
        "fields n + n * n ^ n as x",
    ],
)
def test_numbers_of_any_size_are_values_and_no_failure(query: str) -> None:
    assert len(run(query, rows(HUGE))) == 1


def test_a_line_that_looks_like_a_report_is_no_failure() -> None:
    figures = ("1.2.3", "." * 9, "9" * 5000, "7")
    lines = [f"REPORT RequestId: {REQUEST}\tDuration: {figure} ms\t\n" for figure in figures]
    found = run("fields @duration, @type", rows(*lines))
    assert [result.get("@duration") for result in found] == ["7.0", None, None, None]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("-" * 5001 + "1", "-1"),
        ("1" + "+1" * 4000, "4001"),
        ("1" + "-1" * 4000, "-3999"),
        ("2^" * 3 + "1", "16"),
        ("1^" * 4000 + "1", "1"),
        ("7" + " % 4" * 1000, "3"),
    ],
)
def test_long_expressions_are_computed_in_the_order_of_their_operators(expression: str, value: str) -> None:
    assert run(f"fields {expression} as x", rows("m")) == [{"x": value}]
