"""Parts of CloudFormation's engine: names, addresses of templates, walks through graphs, and texts without secrets."""

from __future__ import annotations

import threading

import pytest

from thawd.server.emulator.cloudformation import generated_names
from thawd.server.emulator.cloudformation.errors import StackError
from thawd.server.emulator.cloudformation.graph_order import turned, walk
from thawd.server.emulator.cloudformation.stack_records import masked
from thawd.server.emulator.cloudformation.template_urls import place_of

LONG = "x" * 100


@pytest.mark.parametrize(
    ("kind", "most"), [("AWS::Lambda::Function", 64), ("AWS::S3::Bucket", 63), ("AWS::SQS::Queue", 80)]
)
def test_a_generated_name_is_within_the_services_limit_and_new_each_time(kind: str, most: int) -> None:
    first, second = (generated_names.generated(kind, LONG, "Logical" + LONG) for _ in range(2))
    assert len(first) == most
    assert first != second
    assert first.lower() == first or kind != "AWS::S3::Bucket"


def test_a_generated_name_shows_the_stack_and_the_logical_id() -> None:
    assert generated_names.generated("AWS::SNS::Topic", "shop", "News").startswith("shop-News-")
    assert generated_names.generated("AWS::SQS::Queue", "shop", "Jobs", {"FifoQueue": "true"}).endswith(".fifo")


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("https://s3.us-east-1.amazonaws.com/b/k/t.json", ("b", "k/t.json", None)),
        ("https://s3.amazonaws.com/b/t%20t.json?versionId=7", ("b", "t t.json", "7")),
        ("https://b.s3.amazonaws.com/k/t.json", ("b", "k/t.json", None)),
        ("https://my.bucket.s3.eu-west-1.amazonaws.com/t.json", ("my.bucket", "t.json", None)),
        ("https://s3-eu-west-1.amazonaws.com/b/t.json", ("b", "t.json", None)),
        ("http://127.0.0.1:8350/b/k/t.json", ("b", "k/t.json", None)),
        ("s3://b/k/t.json", ("b", "k/t.json", None)),
    ],
)
def test_the_address_of_a_template_names_bucket_key_and_version(url: str, place: tuple[str, str, str | None]) -> None:
    assert place_of(url) == place


@pytest.mark.parametrize("url", ["https://s3.amazonaws.com/b", "t.json", ""])
def test_an_address_without_bucket_and_key_is_refused(url: str) -> None:
    with pytest.raises(StackError, match="TemplateURL"):
        place_of(url)


def walked(needs: dict[str, set[str]], fails: set[str], *, goes_on: bool = False) -> tuple[list[str], set[str]]:
    done: list[str] = []

    def work(node: str) -> None:
        if node in fails:
            raise ValueError(node)
        done.append(node)

    return done, set(walk(needs, work, stop=threading.Event(), goes_on=goes_on))


NEEDS = {"a": set(), "b": {"a"}, "c": {"b", "outside"}, "d": set()}


def test_work_is_done_after_that_which_it_needs_and_failures_keep_back_what_needs_them() -> None:
    done, failed = walked(NEEDS, set())
    assert (sorted(done), failed) == (["a", "b", "c", "d"], set())
    assert done.index("a") < done.index("b") < done.index("c")
    done, failed = walked(NEEDS, {"b"}, goes_on=True)
    assert (sorted(done), failed) == (["a", "d"], {"b"})
    assert turned(NEEDS) == {"a": {"b"}, "b": {"c"}, "c": set(), "d": set()}


def test_no_work_begins_after_a_stop_or_a_failure() -> None:
    stop = threading.Event()
    stop.set()
    done: list[str] = []
    assert walk(NEEDS, done.append, stop=stop) == {}
    assert done == []
    assert "c" not in walked(NEEDS, {"a"})[0]


def test_secrets_are_masked_also_where_one_is_a_part_of_another() -> None:
    assert masked('{"a": "open", "b": "opensesame", "c": "say \\"x\\""}', ["open", "opensesame", 'say "x"', ""]) == (
        '{"a": "****", "b": "****", "c": "****"}'
    )
