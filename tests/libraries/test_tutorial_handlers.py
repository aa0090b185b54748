"""Handlers written as in tutorials, from upload to row under `thawd up --aws`: thawed, with correct results.

They have no hooks and no special settings. Clients, tracer and metrics are made at module level, and so is the model,
which one handler fetches from a bucket at import. The models are made here: small, of the real architectures, with
random weights.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from tests.integration.conftest import Project, Running, eventually
from tests.integration.test_aws import client

ENVIRONMENTS = 100

CAPTIONS = """
import os
from io import BytesIO
from urllib.parse import unquote_plus

import boto3
from aws_lambda_powertools import Logger, Metrics, Tracer
from aws_lambda_powertools.metrics import MetricUnit
from PIL import Image
from transformers import pipeline

logger = Logger(service="captions")
tracer = Tracer(service="captions")
metrics = Metrics(namespace="Captions", service="captions")

s3 = boto3.client("s3")
table = boto3.resource("dynamodb").Table("captions")
boto3.client("sts").get_caller_identity()
captioner = pipeline("image-text-to-text", model=os.environ["LAMBDA_TASK_ROOT"] + "/model")


@tracer.capture_method
def caption(image):
    return captioner(image, text="word1", max_new_tokens=8)[0]["generated_text"]


@metrics.log_metrics(capture_cold_start_metric=True)
@tracer.capture_lambda_handler
@logger.inject_lambda_context(log_event=True)
def handler(event, context):
    for record in event["Records"]:
        bucket = record["s3"]["bucket"]["name"]
        key = unquote_plus(record["s3"]["object"]["key"])
        image = Image.open(BytesIO(s3.get_object(Bucket=bucket, Key=key)["Body"].read())).convert("RGB")
        text = caption(image)
        seen = {"request": context.aws_request_id, "stream": context.log_stream_name}
        table.put_item(Item={"image": key, "result": text, **seen})
        metrics.add_metric(name="Captioned", unit=MetricUnit.Count, value=1)
        logger.info("captioned", extra={"key": key, "caption": text})
"""

CLASSES = """
import io
import os
import tarfile
import urllib.parse

import boto3
from PIL import Image
from transformers import pipeline

s3 = boto3.client("s3")
s3.download_file("models", "classifier.tar", "/tmp/classifier.tar")
with tarfile.open("/tmp/classifier.tar") as archive:
    archive.extractall("/tmp/classifier", filter="data")
classifier = pipeline("image-classification", model="/tmp/classifier")
table = boto3.resource("dynamodb").Table("classes")


def handler(event, context):
    bucket = event["Records"][0]["s3"]["bucket"]["name"]
    key = urllib.parse.unquote_plus(event["Records"][0]["s3"]["object"]["key"])
    image = Image.open(io.BytesIO(s3.get_object(Bucket=bucket, Key=key)["Body"].read()))
    found = classifier(image)[0]
    result = f"{found['label']} {found['score']:.4f}"
    seen = {"request": context.aws_request_id, "stream": context.log_stream_name}
    table.put_item(Item={"image": key, "result": result, **seen})
    return result
"""

MAKE_CAPTIONER = """
import sys
from pathlib import Path
import torch
from transformers import BertTokenizer, BlipConfig, BlipForConditionalGeneration, BlipImageProcessor, BlipProcessor

folder = Path(sys.argv[1])
folder.mkdir(parents=True)
torch.manual_seed(1)
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[DEC]", "[ENC]", *(f"word{n}" for n in range(300))]
(folder / "vocab.txt").write_text("\\n".join(words))
small = {"hidden_size": 32, "intermediate_size": 64, "projection_dim": 32}
small |= {"num_hidden_layers": 2, "num_attention_heads": 2}
marks = {"vocab_size": len(words), "bos_token_id": 5, "eos_token_id": 3, "pad_token_id": 0, "sep_token_id": 3}
text = {**small, **marks, "encoder_hidden_size": 32, "max_position_embeddings": 64}
vision = {**small, "image_size": 32, "patch_size": 8, "initializer_range": 0.05}
model = BlipForConditionalGeneration(BlipConfig(text_config=text, vision_config=vision, projection_dim=32))
for name, weights in model.named_parameters():
    # What a random decoder sees is made louder: else it says the same of everything.
    if ("crossattention" in name or "patch_embedding" in name) and name.endswith("weight") and "Norm" not in name:
        weights.data *= 40
model.save_pretrained(folder)
tokenizer = BertTokenizer(str(folder / "vocab.txt"))
BlipProcessor(BlipImageProcessor(size={"height": 32, "width": 32}), tokenizer).save_pretrained(folder)
"""

MAKE_CLASSIFIER = """
import sys
import torch
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

torch.manual_seed(2)
names = {n: f"class{n}" for n in range(50)}
config = ViTConfig(image_size=32, patch_size=8, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                   intermediate_size=64, id2label=names, label2id={name: n for n, name in names.items()})
model = ViTForImageClassification(config)
for name, weights in model.named_parameters():
    if ("patch_embeddings" in name or "classifier" in name) and name.endswith("weight"):
        weights.data *= 40
model.save_pretrained(sys.argv[1])
ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(sys.argv[1])
"""

DIRECT = """
import io, json, os, sys
from PIL import Image
from transformers import pipeline

task, model, folder = sys.argv[1:]
found = {}
pipe = pipeline(task, model=model)
for name in sorted(os.listdir(folder)):
    image = Image.open(os.path.join(folder, name)).convert("RGB")
    if task == "image-classification":
        best = pipe(image)[0]
        found[name] = f"{best['label']} {best['score']:.4f}"
    else:
        found[name] = pipe(image, text="word1", max_new_tokens=8)[0]["generated_text"]
print(json.dumps(found))
"""

CONFIG = """
[server]
port = 0
[functions.{name}]
handler = "app.handler"
code = "{name}"
memory_mb = 1024
timeout_s = 60
idle_timeout_s = 0
environment = {{ HF_HUB_OFFLINE = "1", POWERTOOLS_LOG_LEVEL = "INFO" }}
[buckets.models]
path = "models"
"""


@pytest.fixture
def outside() -> Iterator[Project]:
    """A project outside /tmp, so that each environment has a private /tmp."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="thawd-test-", ignore_cleanup_errors=True) as folder:
        yield Project(Path(folder))


def program(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def pictures(folder: Path) -> None:
    """Write as many different pictures as there are to be environments."""
    folder.mkdir()
    for number in range(ENVIRONMENTS):
        picture = Image.new("RGB", (48, 48), ((number * 53) % 256, (number * 97) % 256, (number * 151) % 256))
        picture.paste(((number * 29) % 256, (number * 71) % 256, 0), (0, 0, 24, 1 + number % 47))
        picture.save(folder / f"picture {number}.png")


def set_up(running: Running, name: str) -> None:
    """Make bucket, table and notification, only with boto3."""
    client(running, "s3").create_bucket(Bucket="uploads")
    client(running, "dynamodb").create_table(
        TableName=name,
        KeySchema=[{"AttributeName": "image", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "image", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    arn = f"arn:aws:lambda:us-east-1:000000000000:function:{name}"
    configuration = {"LambdaFunctionConfigurations": [{"LambdaFunctionArn": arn, "Events": ["s3:ObjectCreated:*"]}]}
    client(running, "s3").put_bucket_notification_configuration(
        Bucket="uploads", NotificationConfiguration=configuration
    )


def upload_and_compare(running: Running, name: str, folder: Path, expected: dict[str, str]) -> list[dict[str, str]]:
    """Upload until `ENVIRONMENTS` environments have each handled an event.

    Compare each row with a cold process's result, and return the rows.
    """
    s3, dynamodb = client(running, "s3"), client(running, "dynamodb")

    def rows() -> list[dict[str, str]]:
        found = []
        for page in dynamodb.get_paginator("scan").paginate(TableName=name):
            found += [{key: value["S"] for key, value in item.items()} for item in page["Items"]]
        return found

    # Not the count of starts: an environment may thaw for an event which another one has taken by then.
    uploaded, found = 0, rows()
    while len({row["stream"] for row in found}) < ENVIRONMENTS:
        assert running.function(name)["start"] == "thaw", running.function(name)["start_reason"]
        for path in sorted(folder.iterdir()):
            s3.upload_file(str(path), "uploads", f"{uploaded}/{path.name}")
            uploaded += 1
        eventually(lambda so_many=uploaded: len(rows()) == so_many, what=f"{uploaded} rows")
        found = rows()
    assert {row["image"]: row["result"] for row in found} == {
        row["image"]: expected[row["image"].partition("/")[2]] for row in found
    }
    assert len({row["request"] for row in found}) == uploaded
    invocations = running.function(name)["invocations"]
    assert not any(one["count"] for kind, one in invocations.items() if kind == "cold"), invocations
    return found


def test_a_captioning_function_is_thawed_and_each_caption_is_right(outside: Project) -> None:
    root = outside.root
    program(MAKE_CAPTIONER, str(root / "captions" / "model"))
    pictures(root / "pictures")
    expected = json.loads(
        program(DIRECT, "image-text-to-text", str(root / "captions" / "model"), str(root / "pictures"))
    )
    assert len(set(expected.values())) > ENVIRONMENTS // 5
    outside.code(CAPTIONS, "captions/app.py")
    (root / "thawd.toml").write_text(CONFIG.format(name="captions"))
    with outside.up("--aws") as running:
        set_up(running, "captions")
        rows = upload_and_compare(running, "captions", root / "pictures", expected)
        lines = (outside.data / "logs" / "captions.log").read_text().splitlines()
    documents = [json.loads(text[text.index("{") :]) for text in lines if "{" in text and text.rstrip().endswith("}")]
    told = [one for one in documents if one.get("message") == "captioned"]
    assert {one["function_request_id"]: one["key"] for one in told} == {row["request"]: row["image"] for row in rows}
    assert sum(one.get("Captioned") == [1.0] for one in documents) == len(rows)
    # Powertools reports the first invocation of each environment.
    assert sum(one.get("ColdStart") == [1.0] for one in documents) == len({row["stream"] for row in rows})


def test_a_classifier_that_fetches_its_model_at_import_is_thawed_and_each_class_is_right(outside: Project) -> None:
    root = outside.root
    program(MAKE_CLASSIFIER, str(root / "made"))
    pictures(root / "pictures")
    expected = json.loads(program(DIRECT, "image-classification", str(root / "made"), str(root / "pictures")))
    assert len(set(expected.values())) > ENVIRONMENTS // 2
    (root / "models").mkdir()
    with tarfile.open(root / "models" / "classifier.tar", "w") as archive:
        archive.add(root / "made", ".")
    outside.code(CLASSES, "classes/app.py")
    (root / "thawd.toml").write_text(CONFIG.format(name="classes"))
    with outside.up("--aws") as running:
        set_up(running, "classes")
        upload_and_compare(running, "classes", root / "pictures", expected)
