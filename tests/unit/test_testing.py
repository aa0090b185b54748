"""The public fakes behave like the real things."""

from __future__ import annotations

import pytest

import thawd
from thawd import testing


def test_a_handler_runs_on_stores_in_memory() -> None:
    def handler(event: dict[str, str], context: testing.FakeContext) -> str:
        data = thawd.bucket("in").read(event["key"])
        thawd.table("sizes").put(event["key"], {"size": len(data)})
        thawd.bucket("out").write("copy", data)
        return context.function_name

    with testing.stores(objects={"in": {"a": b"123"}}) as stores:
        assert handler({"key": "a"}, testing.context(function_name="f")) == "f"
        assert thawd.table("sizes").get("a") == {"size": 3}
        assert list(thawd.table("sizes").scan()) == [("a", {"size": 3})]
        thawd.table("sizes").delete("a")
        with pytest.raises(FileNotFoundError):
            thawd.bucket("in").read("b")
        with pytest.raises(TypeError):
            thawd.table("sizes").put("b", [1])  # type: ignore[arg-type]
    assert stores.buckets["out"] == {"copy": b"123"}
    assert stores.tables["sizes"] == {}


def test_outside_a_function_tables_say_where_they_work() -> None:
    with pytest.raises(Exception, match="inside a function"):
        thawd.table("labels").get("a")


def test_a_handler_that_takes_lists_gets_a_context_with_one_for_each_item() -> None:
    context = testing.batch_context(2, function_name="f")
    first, second = context.items
    assert first.aws_request_id != second.aws_request_id
    assert context.aws_request_id == f"{first.aws_request_id},{second.aws_request_id}"
    assert {context.function_name, first.function_name, second.function_name} == {"f"}
