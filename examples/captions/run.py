"""Writes captions of images with ViT-GPT2: first with thawd's own bucket and table, then with S3, DynamoDB and boto3.

make example-captions
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pictures
from served import (
    ExampleError,
    Served,
    configuration,
    libraries_python,
    main,
    object_created,
    say,
    serving,
    table,
)

HERE = Path(__file__).resolve().parent
MODEL = HERE / "function" / "model"
PHOTOS = HERE / "photos"
PRIME = HERE / "prime.json"
PRIMING = "priming/photo.png"
PICTURES = range(300, 306)


def run() -> None:
    """Run all steps."""
    print("captions: ViT-GPT2 writes a caption for each image, beam search of 4, at most 16 tokens\n", flush=True)
    make()
    sent = {f"photo-{number}.jpg": pictures.picture(number) for number in PICTURES}
    expected = dict(zip(sent, directly(), strict=True))
    empty()
    prime()
    try:
        own(sent, expected)
        aws(sent, expected)
    finally:
        empty()


def prepare() -> None:
    """Make the model, the priming event with its image, and a configuration."""
    make()
    prime()
    configuration(HERE / "thawd.toml")


def environment() -> dict[str, str]:
    """Return the environment variables of programs that the libraries' interpreter runs."""
    return {**os.environ, "PYTHONPATH": str(HERE.parent), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def by_libraries(*command: str) -> str:
    """Run a program with the libraries' interpreter and return what it printed.

    Raises:
        ExampleError: it failed.
    """
    python = libraries_python()
    if not python.exists():
        raise ExampleError(f"{python} is missing; make it with `make example-captions`")
    done = subprocess.run([python, *command], capture_output=True, text=True, check=False, env=environment())
    if done.returncode:
        raise ExampleError(f"{command[0]} ended with status {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def make() -> None:
    """Make the model unless it exists already."""
    if MODEL.exists():
        return
    partial = MODEL.with_name(".model")
    shutil.rmtree(partial, ignore_errors=True)
    parameters = int(by_libraries(str(HERE / "make.py"), str(partial)))
    partial.rename(MODEL)
    size = sum(file.stat().st_size for file in MODEL.iterdir())
    say("model", f"ViT-GPT2 made: {parameters:,} parameters, {size / 1e6:.0f} MB")


def directly() -> list[str]:
    """Return the captions by the model without thawd."""
    captions: list[str] = json.loads(by_libraries(str(HERE / "direct.py"), str(MODEL), *map(str, PICTURES)))
    return captions


def empty() -> None:
    """Remove the photos of an earlier run."""
    if PHOTOS.exists():
        for file in (*PHOTOS.glob("photo-*.jpg"), *PHOTOS.glob("priming/photo.png")):
            file.unlink()


def prime() -> None:
    """Write the priming event, which runs before the snapshot is taken, and its image.

    The image has a name that invokes no function.
    """
    (PHOTOS / PRIMING).parent.mkdir(parents=True, exist_ok=True)
    (PHOTOS / PRIMING).write_bytes(pictures.picture(1))
    PRIME.write_text(json.dumps(object_created("photos", PRIMING)))


def own(sent: dict[str, bytes], expected: dict[str, str]) -> None:
    """Run variant A: thawd's own bucket and table."""
    with serving(configuration(HERE / "thawd.toml")) as served:
        say("server", f"{served.url}, with thawd's own bucket and table")
        begun_s = time.perf_counter()
        for name, data in sent.items():
            staged = PHOTOS / f".{name}"
            staged.write_bytes(data)
            staged.replace(PHOTOS / name)
        served.wait_for(lambda: sent.keys() <= served.rows("captions").keys(), "captions", ["caption"])
        taken_s = time.perf_counter() - begun_s
        rows = served.rows("captions")
        check("own", {name: rows[name]["Caption"] for name in sent}, expected)
        starts = ", ".join(f"{count} by {kind}" for kind, count in served.starts("caption").items())
        say("table", f"{len(sent)} captions after {taken_s:.1f} s; environments started: {starts}")
        compare(served)


def compare(served: Served) -> None:
    """Compare the first caption of a thawed environment and of a cold start with warm captions.

    The function has environments on the server `served` by now. So the thaw is measured on a second server, which has
    none yet. That server would write captions for the photos in the bucket during the measurement, so the photos are
    removed first. The measured request is for the priming image, which has a name that invokes no function.
    """
    for file in PHOTOS.glob("photo-*.jpg"):
        file.unlink()
    event = object_created("photos", PRIMING)
    cold = served.invoke("caption-cold", event)
    warm_ms = statistics.median(served.invoke("caption-cold", event).took_ms for _ in range(3))
    with serving(configuration(HERE / "thawd.toml")) as fresh:
        thaw = fresh.invoke("caption", event)
    rows = [
        (one.start, f"{one.took_ms:.0f} ms", f"{one.took_ms - warm_ms:.0f} ms", f"{one.took_ms / warm_ms:.2f}")
        for one in (cold, thaw)
    ]
    table(
        ("start", "first caption", "over a warm one", "times a warm one"),
        [*rows, ("warm", f"{warm_ms:.0f} ms", "", "")],
    )


def aws(sent: dict[str, bytes], expected: dict[str, str]) -> None:
    """Run variant B: the handler uses S3 and DynamoDB through boto3. `thawd up --aws` emulates both services."""
    import boto3

    with serving(configuration(HERE / "aws.toml"), "--aws") as served:
        say("server", f"{served.url}, S3 and DynamoDB emulated")
        keys = {"aws_access_key_id": "any", "aws_secret_access_key": "any", "region_name": "us-east-1"}
        s3, dynamodb, functions = (
            boto3.client(name, endpoint_url=served.url, **keys) for name in ("s3", "dynamodb", "lambda")
        )
        dynamodb.create_table(
            TableName="captions",
            KeySchema=[{"AttributeName": "ImageName", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "ImageName", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        s3.create_bucket(Bucket="holiday-photos")
        arn = functions.get_function_configuration(FunctionName="caption-aws")["FunctionArn"]
        notify = [{"LambdaFunctionArn": arn, "Events": ["s3:ObjectCreated:*"]}]
        s3.put_bucket_notification_configuration(
            Bucket="holiday-photos", NotificationConfiguration={"LambdaFunctionConfigurations": notify}
        )
        begun_s = time.perf_counter()
        for name, data in sent.items():
            s3.put_object(Bucket="holiday-photos", Key=name, Body=data)

        def items() -> list[dict[str, dict[str, str]]]:
            found: list[dict[str, dict[str, str]]] = dynamodb.scan(TableName="captions")["Items"]
            return found

        served.wait_for(lambda: len(items()) == len(sent), "captions", ["caption-aws"])
        starts = ", ".join(f"{count} by {kind}" for kind, count in served.starts("caption-aws").items())
        say("dynamodb", f"{len(sent)} captions after {time.perf_counter() - begun_s:.1f} s; started: {starts}")
        check("boto3", {item["ImageName"]["S"]: item["Caption"]["S"] for item in items()}, expected)


def check(variant: str, found: dict[str, str], expected: dict[str, str]) -> None:
    """Compare captions with those of the model run directly.

    Raises:
        ExampleError: one differs.
    """
    for name, caption in expected.items():
        if found[name] != caption:
            raise ExampleError(f"{variant}, {name}: {found[name]!r}; the model run directly says {caption!r}")
    say("caption", f"{next(iter(expected))}: {next(iter(expected.values()))}")
    different = len(set(expected.values()))
    say("check", f"{variant}: {len(expected)} images, {different} captions: each is that of the model run directly")


if __name__ == "__main__":
    sys.exit(main(run, prepare))
