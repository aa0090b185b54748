"""Describes each picture that arrives in the bucket. The model is two tables of words, made in the init phase."""

import io
import os
from urllib.parse import unquote_plus

import boto3
import numpy
from PIL import Image

COLOURS = {"red": (220, 40, 40), "green": (40, 180, 60), "blue": (40, 70, 210), "grey": (128, 128, 128)}
NAMES, CENTRES = list(COLOURS), numpy.array(list(COLOURS.values()), dtype=numpy.float32)
SHADES = ("a dark", "a", "a bright")

s3 = boto3.client("s3")
table = boto3.resource("dynamodb").Table(os.environ["TABLE"])


def caption(data):
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    mean = numpy.asarray(picture, dtype=numpy.float32).mean(axis=(0, 1))
    name = NAMES[numpy.linalg.norm(CENTRES - mean, axis=1).argmin()]
    shade = SHADES[min(2, int(mean.mean() // 86))]
    return f"{shade} {name} picture of {picture.width} by {picture.height} pixels"


def handler(event, context):
    captions = {}
    for record in event.get("Records", []):
        bucket, key = record["s3"]["bucket"]["name"], unquote_plus(record["s3"]["object"]["key"])
        captions[key] = caption(s3.get_object(Bucket=bucket, Key=key)["Body"].read())
        table.put_item(Item={"picture": key, "caption": captions[key], "version": context.function_version})
    return captions
