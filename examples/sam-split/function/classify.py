"""Names the colour of each picture that arrives in the bucket. Its packages and its model come from another bucket."""

import io
import os
from urllib.parse import unquote_plus

import boto3
import parts  # fetches the packages that are imported next

# isort: split
import numpy
from PIL import Image

model = numpy.load(parts.MODEL / "colours.npz")
s3 = boto3.client("s3")
table = boto3.resource("dynamodb").Table(os.environ["LABELS_TABLE"])


def classify(data):
    pixels = numpy.asarray(Image.open(io.BytesIO(data)).convert("RGB"), dtype=numpy.float32)
    distances = numpy.linalg.norm(model["colours"] - pixels.mean(axis=(0, 1)), axis=1)
    return str(model["names"][distances.argmin()])


def handler(event, context):
    labels = {}
    for record in event.get("Records", []):
        bucket, key = record["s3"]["bucket"]["name"], unquote_plus(record["s3"]["object"]["key"])
        labels[key] = classify(s3.get_object(Bucket=bucket, Key=key)["Body"].read())
        table.put_item(Item={"picture": key, "label": labels[key]})
    return labels
