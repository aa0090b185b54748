"""From bucket to table: writes for each picture a row with `UUID`, `ImageName`, `ObjectClass`.

Events are delivered at least once. So the UUID is computed from bucket and name: a second delivery writes the same row.
"""

import uuid
from urllib.parse import unquote_plus

from classifier import classify

import thawd


def handler(event, context):
    for record in event["Records"]:
        bucket, key = record["s3"]["bucket"]["name"], unquote_plus(record["s3"]["object"]["key"])
        name = str(uuid.uuid5(uuid.NAMESPACE_URL, f"s3://{bucket}/{key}"))
        found = classify(thawd.bucket(bucket).read(key))
        thawd.table("products").put(name, {"UUID": name, "ImageName": key, "ObjectClass": found["ObjectClass"]})
