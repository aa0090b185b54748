"""The digits example: its model is good enough, and its function answers both kinds of event."""

from __future__ import annotations

import base64
import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest

from tests.integration.postgresql import binaries
from tests.trained import EXAMPLE, TRAINING, digits
from thawd import testing

HELD_OUT = 360
FEWEST_RIGHT = 354


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example after training."""
    return digits(tmp_path_factory)


@pytest.fixture
def stores() -> Iterator[testing.Stores]:
    with testing.stores() as made:
        yield made


@pytest.fixture
def handler(trained: Path, stores: testing.Stores) -> Iterator[Callable[[dict[str, Any], Any], Any]]:
    spec = importlib.util.spec_from_file_location("digits_classify", trained / "function" / "classify.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module.handler


def labels_of(trained: Path) -> dict[str, int]:
    labels: dict[str, int] = json.loads((trained / "held-out" / "labels.json").read_text())
    return labels


def object_created(bucket: str, *keys: str) -> dict[str, Any]:
    """Return an S3 event. S3 URL-encodes the keys."""
    return {
        "Records": [
            {
                "eventSource": "aws:s3",
                "eventName": "ObjectCreated:Put",
                "s3": {"bucket": {"name": bucket}, "object": {"key": quote_plus(key, safe="/")}},
            }
            for key in keys
        ]
    }


def request(body: bytes | None) -> dict[str, Any]:
    """Return an HTTP API event, payload format 2.0, with the body in base64."""
    event: dict[str, Any] = {
        "version": "2.0",
        "routeKey": "POST /classify",
        "isBase64Encoded": body is not None,
    }
    if body is not None:
        event["body"] = base64.b64encode(body).decode()
    return event


def test_training_twice_makes_the_same_model(trained: Path, tmp_path: Path) -> None:
    # Given the example, trained once
    first = (trained / "function" / "digits.onnx").read_bytes()
    # When it is trained again from scratch
    again = Path(shutil.copytree(trained, tmp_path / "again"))
    (again / "function" / "digits.onnx").unlink()
    subprocess.run([sys.executable, again / "train.py"], check=True, capture_output=True, env=TRAINING, timeout=300)
    # Then the model is the same
    assert (again / "function" / "digits.onnx").read_bytes() == first


def test_the_held_out_part_has_360_pictures_and_their_names_do_not_tell_the_digit(trained: Path) -> None:
    # Given the labels
    labels = labels_of(trained)
    # Then each has one numbered picture, and all digits are about equally frequent
    pictures = sorted(path.name for path in (trained / "held-out").glob("*.png"))
    assert len(pictures) == HELD_OUT
    assert pictures == sorted(labels) == [f"digit-{number:04}.png" for number in range(1, HELD_OUT + 1)]
    assert all(34 <= list(labels.values()).count(digit) <= 38 for digit in range(10))


def test_no_held_out_picture_is_among_those_trained_on(trained: Path) -> None:
    # Given the training script as a module
    spec = importlib.util.spec_from_file_location("digits_train", trained / "train.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["digits_train"] = module
    try:
        spec.loader.exec_module(module)
        # When both parts are loaded
        training, held_out = module.load()
    finally:
        del sys.modules["digits_train"]
    # Then the parts share no picture, and together they are the data set
    seen = {image.tobytes() for image in training.images}
    assert not seen & {image.tobytes() for image in held_out.images}
    assert (len(training.labels), len(held_out.labels)) == (1797 - HELD_OUT, HELD_OUT)


def test_at_least_354_of_360_held_out_digits_are_right_through_png_files(
    trained: Path, handler: Callable[..., Any], stores: testing.Stores
) -> None:
    # Given the held-out pictures in a bucket
    labels = labels_of(trained)
    for name in labels:
        stores.bucket("uploads").write(name, (trained / "held-out" / name).read_bytes())
    # When their events arrive
    for name in labels:
        handler(object_created("uploads", name), None)
    # Then each has a row, and nearly all are classified correctly
    rows = stores.tables["labels"]
    assert set(rows) == set(labels)
    assert sum(rows[name]["digit"] == digit for name, digit in labels.items()) >= FEWEST_RIGHT
    assert all(0.1 <= row["confidence"] <= 1 for row in rows.values())


def test_keys_are_decoded_and_every_record_of_an_event_is_labelled(
    trained: Path, handler: Callable[..., Any], stores: testing.Stores
) -> None:
    # Given objects with odd keys, in folders
    labels = labels_of(trained)
    pictures = dict(zip(["a b/ü+1.png", "100%/x.png"], list(labels)[:2], strict=True))
    for key, name in pictures.items():
        stores.bucket("uploads").write(key, (trained / "held-out" / name).read_bytes())
    # When one event names both
    answer = handler(object_created("uploads", *pictures), None)
    # Then both are labelled under their keys in the bucket
    assert set(answer) == set(pictures)
    assert stores.tables["labels"].keys() == set(pictures)


def test_a_posted_picture_is_answered_with_its_digit(trained: Path, handler: Callable[..., Any]) -> None:
    # Given a held-out picture
    name, digit = next(iter(labels_of(trained).items()))
    # When it is posted
    answer = handler(request((trained / "held-out" / name).read_bytes()), None)
    # Then the answer is the digit as JSON, which becomes the body of a 200
    assert answer["digit"] == digit
    assert json.loads(json.dumps(answer)) == answer


BROKEN = {
    "text": b"this is no picture",
    "nothing": b"",
    "the start of a PNG": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
}


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN)
def test_a_body_that_is_no_picture_gives_400(handler: Callable[..., Any], body: bytes) -> None:
    # Given something other than a picture, when it is posted
    answer = handler(request(body), None)
    # Then the answer is 400
    assert answer["statusCode"] == 400
    assert "no picture" in json.loads(answer["body"])["message"]


@pytest.mark.parametrize("kept_bytes", [40, 60, 100])
def test_a_truncated_picture_gives_400(trained: Path, handler: Callable[..., Any], kept_bytes: int) -> None:
    # Given the first bytes of a picture
    picture = (trained / "held-out" / "digit-0001.png").read_bytes()
    # When they are posted
    answer = handler(request(picture[:kept_bytes]), None)
    # Then the answer is 400, and not a guess
    assert answer["statusCode"] == 400


@pytest.mark.parametrize(
    "event", [request(None), {**request(b""), "body": "%%%"}, {"isBase64Encoded": False, "body": "hi"}]
)
def test_a_body_that_is_missing_or_not_base64_gives_400(handler: Callable[..., Any], event: dict[str, Any]) -> None:
    assert handler(event, None)["statusCode"] == 400


def test_an_object_that_is_no_picture_fails_the_invocation_and_writes_no_row(
    handler: Callable[..., Any], stores: testing.Stores
) -> None:
    # Given an object that is not a picture in spite of its name
    stores.bucket("uploads").write("fake.png", b"text")
    # When its event arrives, then the function fails, so that the event is retried and becomes a dead letter
    with pytest.raises(OSError, match="cannot identify"):
        handler(object_created("uploads", "fake.png"), None)
    assert not any(stores.tables.values())


def test_a_cluster_that_loses_a_machine_has_a_row_for_each_picture(trained: Path, tmp_path: Path) -> None:
    binaries()  # skips the test if there is no PostgreSQL
    example = tmp_path / "digits"
    shutil.copytree(trained, example, symlinks=True)
    for name in ("demo.py", "demo_cluster.py"):
        shutil.copy(EXAMPLE / name, example)
    (example / "function" / "digits.onnx").touch()  # as new as the script that made it
    done = subprocess.run(
        [sys.executable, example / "demo_cluster.py", "--without-snapshots"],
        capture_output=True,
        text=True,
        env=TRAINING,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "360 rows, the last one" in done.stdout
    assert "found from an earlier run" in done.stdout
