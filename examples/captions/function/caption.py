"""Writes a caption for each image that arrives in the bucket, with thawd's own bucket and table."""

from urllib.parse import unquote_plus

from captioner import caption

import thawd


def handler(event, context):
    captions = {}
    for record in event["Records"]:
        bucket, key = record["s3"]["bucket"]["name"], unquote_plus(record["s3"]["object"]["key"])
        captions[key] = caption(thawd.bucket(bucket).read(key))
        thawd.table("captions").put(key, {"Caption": captions[key]})
    return captions
