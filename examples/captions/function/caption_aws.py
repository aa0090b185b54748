"""Writes a caption for each image that arrives in the bucket, with S3 and DynamoDB through boto3.

Runs unchanged on AWS Lambda.
"""

import os
from urllib.parse import unquote_plus

import boto3
from captioner import caption

_clients = {}


def client(service):
    # The first invocation makes the clients, not init: a snapshot must contain no open connection and no credentials.
    if service not in _clients:
        _clients[service] = boto3.client(service)
    return _clients[service]


def handler(event, context):
    captions = {}
    for record in event["Records"]:
        bucket, key = record["s3"]["bucket"]["name"], unquote_plus(record["s3"]["object"]["key"])
        captions[key] = caption(client("s3").get_object(Bucket=bucket, Key=key)["Body"].read())
        item = {"ImageName": {"S": key}, "Caption": {"S": captions[key]}}
        client("dynamodb").put_item(TableName=os.environ["TABLE"], Item=item)
    return captions
