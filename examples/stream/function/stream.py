"""From bucket to bucket: writes for each picture a JSON object of the same name."""

import json
from urllib.parse import unquote_plus

import classifier

import thawd


def handler(event, context):
    found = {}
    for record in event["Records"]:
        bucket, key = record["s3"]["bucket"]["name"], unquote_plus(record["s3"]["object"]["key"])
        found[key] = classifier.classify(thawd.bucket(bucket).read(key))
        thawd.bucket("results").write(f"{key}.json", json.dumps({"ImageName": key, **found[key]}).encode())
    return found
