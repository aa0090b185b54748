"""URLs of stores: which are valid, and that passwords come from elsewhere and are never shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.config_files import HELLO, load, only_mistake
from thawd.resources import Notification, RemoteBucket, StoreUrl

QUEUE = "arn:aws:sqs:eu-west-1:123456789012:photos"


def url_of(tmp_path: Path, text: str, **environ: str) -> StoreUrl:
    table = load(tmp_path, f'{HELLO}[tables.labels]\nurl = "{text}"', environ=environ).tables["labels"]
    assert table.url is not None
    assert table.path is None
    return table.url


def test_variables_come_from_the_environment_and_may_hold_any_character(tmp_path: Path) -> None:
    url = url_of(tmp_path, "postgresql://me:${PW}@${HOST}/db?table=a%20b", PW="p@ss/w:rd%", HOST="db.example")
    assert url.text == "postgresql://me:p%40ss%2Fw%3Ard%25@db.example/db?table=a%20b"
    assert str(url) == "postgresql://me:${PW}@${HOST}/db?table=a%20b"


def test_a_variable_may_be_the_whole_url(tmp_path: Path) -> None:
    url = url_of(tmp_path, "${DATABASE_URL}", DATABASE_URL="postgres://me:secret@host:5432,other:5433/db")
    assert url.text == "postgres://me:secret@host:5432,other:5433/db"
    assert str(url) == "postgres://me:***@host:5432,other:5433/db"
    assert url.scheme == "postgres"


@pytest.mark.parametrize(
    ("text", "secret", "shown"),
    [
        ("postgresql://me:secret@host/db", "secret", "postgresql://me:***@host/db"),
        ("postgresql://me:se/cr@et@host/db", "se/cr@et", "postgresql://me:***@host/db"),
        ("postgresql://me:s%65cret@host/db", "secret", "postgresql://me:***@host/db"),
        ("postgresql://me@host/db?password=secret&a=b", "secret", "postgresql://me@host/db?password=***&a=b"),
        ("postgresql://host:5432/db", "-", "postgresql://host:5432/db"),
    ],
)
def test_no_password_is_shown(tmp_path: Path, text: str, secret: str, shown: str) -> None:
    url = url_of(tmp_path, text)
    assert str(url) == shown
    settings = load(tmp_path, f'{HELLO}[tables.labels]\nurl = "{text}"')
    for told in (str(url), repr(url), repr(settings), f"{settings.tables}", settings.tables["labels"].place):
        assert secret not in told.replace("thawd-", "").replace("test_no_password", "") or secret == "-"
    assert url.conceal(f"cannot connect with {secret}") != f"cannot connect with {secret}" or secret == "-"


@pytest.mark.parametrize(
    ("text", "found", "allowed"),
    [
        ("mysql://me:secret@host/db", 'the scheme "mysql"', "schemes"),
        ("host/db?password=secret", "a text without ://", "postgresql://"),
        ("postgresql://me:${NONE}@host/db", "${NONE}, but no such environment variable is set", "that are set"),
        ("postgresql://me:secret#1@host/db", '"postgresql://me:***@host/db"', "%23"),
        (f"postgresql://host/db?table={'x' * 64}", "a table with a name of 64 bytes", "1 to 63 bytes"),
        ("postgresql://host/db?schema=", "a schema with a name of 0 bytes", "?schema=NAME"),
        ("dynamodb://", '"dynamodb://"', "dynamodb://TABLE"),
        ("dynamodb://labels/more", '"dynamodb://labels/more"', "dynamodb://TABLE"),
        ("dynamodb://labels?regoin=x", 'the parameter "regoin"', '"region" (did you mean that?)'),
    ],
)
def test_what_is_no_url_of_a_table_is_told_without_its_secrets(
    tmp_path: Path, text: str, found: str, allowed: str
) -> None:
    problem = only_mistake(tmp_path, f'{HELLO}[tables.labels]\nurl = "{text}"')
    assert problem.key == "tables.labels.url"
    assert found in problem.found
    assert allowed in problem.allowed
    assert "secret" not in str(problem)


def test_a_long_name_needs_another_one_in_the_url(tmp_path: Path) -> None:
    name = "n" * 64
    problem = only_mistake(tmp_path, f"{HELLO}[tables.{name}]\nurl = 'postgresql://host/db'")
    assert problem.found == "a table with a name of 64 bytes"
    assert load(tmp_path, f"{HELLO}[tables.{name}]\nurl = 'postgresql://host/db?table=n'").tables[name].url


def test_a_path_and_a_url_exclude_each_other(tmp_path: Path) -> None:
    problem = only_mistake(tmp_path, f"{HELLO}[tables.labels]\npath = 'x.db'\nurl = 'dynamodb://labels'")
    assert (problem.key, problem.allowed) == ("tables.labels.path", "either path or url")


def test_a_url_that_is_no_text_is_not_shown(tmp_path: Path) -> None:
    problem = only_mistake(tmp_path, f"{HELLO}[tables.labels]\nurl = ''")
    assert problem.found == "an empty text (not shown)"


def bucket_at(tmp_path: Path, text: str, more: str = "", **environ: str) -> RemoteBucket:
    return load(tmp_path, f'{HELLO}[buckets.photos]\nurl = "{text}"\n{more}', environ=environ).remote_buckets["photos"]


def test_a_bucket_elsewhere_has_what_its_url_says(tmp_path: Path) -> None:
    bucket = bucket_at(
        tmp_path,
        "s3://there/in/ph%20otos/?region=eu-west-1&endpoint=http://127.0.0.1:9000",
        'poll_s = 5\nexisting = "skip"\nnotify = [{ function = "hello", suffix = ".png" }]',
    )
    assert (bucket.name, bucket.bucket, bucket.prefix, bucket.region) == ("photos", "there", "in/ph otos/", "eu-west-1")
    assert bucket.parameters["endpoint"] == "http://127.0.0.1:9000"
    assert (bucket.poll_s, bucket.existing) == (5, "skip")
    assert bucket.notify == (Notification(function="hello", suffix=".png"),)
    assert load(tmp_path, HELLO + "[buckets.photos]\nurl = 's3://there'").buckets == {}


def test_the_region_of_a_bucket_is_the_environments_where_the_url_has_none(tmp_path: Path) -> None:
    assert bucket_at(tmp_path, "s3://there").region == "us-east-1"
    assert bucket_at(tmp_path, "s3://there", AWS_REGION="eu-north-1").region == "eu-north-1"
    assert bucket_at(tmp_path, "gs://there", AWS_REGION="eu-north-1").region == "us-east-1"
    assert bucket_at(tmp_path, "az://there?account=mine").parameters == {"account": "mine"}
    assert bucket_at(tmp_path, "az://there", AZURE_STORAGE_ACCOUNT_NAME="mine").bucket == "there"


def test_buckets_of_another_place_are_other_buckets(tmp_path: Path) -> None:
    urls = ["s3://aa", "s3://bb", "s3://aa/in", "gs://aa", "s3://aa?endpoint=http://minio", "az://aa?account=x"]
    assert len({bucket_at(tmp_path, url).identity for url in urls}) == len(urls)


@pytest.mark.parametrize(
    ("options", "key", "found"),
    [
        ("url = 'ftp://there'", "url", 'the scheme "ftp"'),
        ("url = 's3://'", "url", '"s3://"'),
        ("url = 's3://there/a//b'", "url", '"s3://there/a//b"'),
        ("url = 's3://there/../b'", "url", '"s3://there/../b"'),
        ("url = 's3://there?account=x'", "url", 'the parameter "account"'),
        ("url = 's3://there?path_style=yes'", "url", 'path_style="yes"'),
        ("url = 'az://there'", "url", '"az://there"'),
        ("url = 's3://there'\npath = 'x'", "path", "both path and url"),
        ("url = 's3://there'\npoll_s = 0", "poll_s", "0"),
        ("url = 's3://there'\nexisting = 'no'", "existing", '"no"'),
        ("poll_s = 5", "poll_s", "poll_s"),
        ("url = 's3://there'\nnotifications = 'queue'", "notifications", '"queue"'),
        (f"url = 'gs://there'\nnotifications = '{QUEUE}'", "notifications", "a queue for gs://there"),
        (f"url = 's3://there'\nnotifications = '{QUEUE}'\npoll_s = 5", "poll_s", "poll_s"),
        (f"notifications = '{QUEUE}'", "notifications", "notifications"),
        ("url = 's3://there'\nnotify = [{ function = 'helo' }]", "notify[0].function", '"helo"'),
    ],
)
def test_what_is_wrong_with_a_bucket_elsewhere_is_told(tmp_path: Path, options: str, key: str, found: str) -> None:
    problem = only_mistake(tmp_path, f"{HELLO}[buckets.photos]\n{options}")
    assert (problem.key, problem.found) == (f"buckets.photos.{key}", found)


def test_a_bucket_elsewhere_may_be_a_destination_and_has_no_name_of_the_api(tmp_path: Path) -> None:
    text = HELLO + "on_success = 'bucket:photos'\n[buckets.photos]\nurl = 's3://there'"
    assert load(tmp_path, text).functions["hello"].on_success is not None
    problem = only_mistake(tmp_path, HELLO + "[buckets.2015-03-31]\nurl = 's3://there'")
    assert problem.key == "buckets.2015-03-31"


def test_a_queue_of_notifications_is_one_buckets(tmp_path: Path) -> None:
    text = "".join(f"[buckets.{name}]\nurl = 's3://{name}'\nnotifications = '{QUEUE}'\n" for name in ("one", "two"))
    problem = only_mistake(tmp_path, HELLO + text)
    assert (problem.key, problem.found) == ("buckets.two.notifications", "the queue of bucket one")
    assert bucket_at(tmp_path, "s3://there", f"notifications = '{QUEUE}'").notifications == QUEUE


# What is secret


def test_a_password_is_concealed_as_it_is_written_as_it_is_meant_and_as_it_is_encoded(tmp_path: Path) -> None:
    url = url_of(tmp_path, "postgresql://me:a%2Fb c@host/db?sslpassword=x/y")
    for secret in ("a%2Fb c", "a/b c", "x/y", "x%2Fy"):
        assert url.conceal(f"refused: {secret}!") == "refused: ***!"


def test_what_comes_in_by_a_variable_is_concealed_wherever_it_stands_in_the_url(tmp_path: Path) -> None:
    url = url_of(tmp_path, "postgresql://${WHO}:${PW}@host/db", WHO="ann@example", PW="p w")
    for secret in ("ann@example", "ann%40example", "p w", "p%20w"):
        assert url.conceal(f"no such role {secret}") == "no such role ***"


def test_of_a_url_that_is_one_variable_the_password_is_concealed_and_the_rest_is_shown(tmp_path: Path) -> None:
    whole = "postgresql://me:secret@host/db"
    url = url_of(tmp_path, "${DATABASE_URL}", DATABASE_URL=whole)
    assert url.conceal(f"cannot reach {whole}") == "cannot reach postgresql://me:***@host/db"


def test_a_secret_that_is_within_a_longer_one_leaves_nothing_of_it(tmp_path: Path) -> None:
    url = url_of(tmp_path, "postgresql://${SHORT}:${LONG}@host/db", SHORT="pass", LONG="zz-password-1")
    assert url.conceal("zz-password-1 and pass") == "*** and ***"
    assert [len(secret) for secret in url.secrets] == sorted((len(secret) for secret in url.secrets), reverse=True)


# What is just within the limits


@pytest.mark.parametrize(
    "text",
    [
        "dynamodb://labels?region=eu-west-1&endpoint=http://127.0.0.1:8000&profile=mine",
        "dynamodb://labels/",
        f"postgresql://host/db?table={'x' * 63}&schema={'y' * 63}",
        "postgresql://host/db?schema=s",
    ],
)
def test_a_url_of_a_table_may_say_so_much(tmp_path: Path, text: str) -> None:
    assert str(url_of(tmp_path, text)) == text


@pytest.mark.parametrize(
    ("text", "found", "allowed"),
    [
        ("postgresql://host/db?table=a%00b", "a table with a name of 3 bytes", "a name of 1 to 63 bytes"),
        ("postgresql://host/db\t", '"postgresql://host/db\t"', "a URL; write characters such as # / @"),
        ("postgresql://[host/db", '"postgresql://[host/db"', "a URL; write characters such as # / @"),
        ("dynamodb://ab", '"dynamodb://ab"', 'a URL such as "dynamodb://TABLE?region=eu-west-1"'),
        ("dynamodb://labels?table=x", 'the parameter "table"', "one of the parameters: region, endpoint, profile"),
        ("mysql://host/db", 'the scheme "mysql"', "one of the schemes: postgresql, postgres, dynamodb"),
    ],
)
def test_what_does_not_fit_is_told_with_what_does(tmp_path: Path, text: str, found: str, allowed: str) -> None:
    problem = only_mistake(tmp_path, f"{HELLO}[tables.labels]\nurl = {json.dumps(text)}")
    assert problem.found == found
    assert problem.allowed.startswith(allowed)


@pytest.mark.parametrize(
    ("url", "found", "allowed"),
    [
        ("s3://there?anonymous=", 'anonymous=""', "true or false"),
        ("s3://there?anonymous=yes", 'anonymous="yes"', "true or false"),
        ("s3://there/./b", '"s3://there/./b"', 'a URL such as "s3://bucket/prefix"'),
        ("az://there", '"az://there"', "a URL with ?account=NAME, or the variable AZURE_STORAGE_ACCOUNT_NAME"),
    ],
)
def test_a_url_of_a_bucket_that_does_not_fit_is_told_with_what_does(
    tmp_path: Path, url: str, found: str, allowed: str
) -> None:
    problem = only_mistake(tmp_path, f"{HELLO}[buckets.photos]\nurl = '{url}'")
    assert (problem.found, problem.allowed) == (found, allowed)


@pytest.mark.parametrize("value", ["true", "false"])
def test_a_bucket_may_be_addressed_by_path_and_read_by_anybody_or_not(tmp_path: Path, value: str) -> None:
    bucket = bucket_at(tmp_path, f"s3://there?anonymous={value}&path_style={value}")
    assert bucket.parameters == {"anonymous": value, "path_style": value}
    assert bucket.prefix == ""


def test_the_default_region_of_the_environment_stands_behind_its_region(tmp_path: Path) -> None:
    assert bucket_at(tmp_path, "s3://there", AWS_DEFAULT_REGION="eu-west-3").region == "eu-west-3"
    both = bucket_at(tmp_path, "s3://there", AWS_REGION="eu-north-1", AWS_DEFAULT_REGION="eu-west-3")
    assert both.region == "eu-north-1"
