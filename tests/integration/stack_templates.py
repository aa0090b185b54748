"""Templates of the stacks that tests create, with the code of their functions."""

from __future__ import annotations

import json
import sys
from typing import Any

RUNTIME = f"python{sys.version_info[0]}.{sys.version_info[1]}"
SOURCE = """
import os
def handler(event, context):
    return {"colour": os.environ["COLOUR"], "memory": context.memory_limit_in_mb, "version": context.function_version}
"""

RECORDER = """
import json
import os
import boto3
def handler(event, context):
    record = event["Records"][0]
    if "s3" in record:
        key = "s3/" + record["s3"]["object"]["key"]
    else:
        key = "sns/" + record["Sns"]["Message"]
    boto3.client("s3").put_object(Bucket=os.environ["SEEN"], Key=key, Body=json.dumps(event).encode())
"""
SEEDER = """
import json
import urllib.request
import boto3
def handler(event, context):
    given = event["ResourceProperties"]
    key = event["RequestType"] + given["Colour"]
    boto3.client("s3").put_object(Bucket="asked", Key=key, Body=json.dumps(event).encode())
    if given["Colour"] == "raises":
        raise ValueError("no such colour")
    answer = {
        "Status": "FAILED" if (given["Colour"], event["RequestType"]) == ("refuses", "Create") else "SUCCESS",
        "Reason": "not this one",
        "PhysicalResourceId": "seed-" + given["Colour"],
        "StackId": event["StackId"],
        "RequestId": event["RequestId"],
        "LogicalResourceId": event["LogicalResourceId"],
        "Data": {"Length": str(len(given["Colour"]))},
    }
    request = urllib.request.Request(event["ResponseURL"], json.dumps(answer).encode(), method="PUT")
    urllib.request.urlopen(request).close()
"""


def template(colour: str, *, runtime: str = RUNTIME, more: dict[str, Any] | None = None) -> str:
    """A function with a version, an alias, a permission, and a queue that invokes it."""
    function = {
        "Type": "AWS::Lambda::Function",
        "Properties": {
            "FunctionName": "painter",
            "Runtime": runtime,
            "Handler": "index.handler",
            "Role": "arn:aws:iam::000000000000:role/anybody",
            "Code": {"ZipFile": SOURCE},
            "MemorySize": "256",
            "Timeout": 7,
            "EphemeralStorage": {"Size": 600},
            "Environment": {"Variables": {"COLOUR": colour}},
            "Tags": [{"Key": "team", "Value": "paint"}],
        },
    }
    resources = {
        "Queue": {"Type": "AWS::SQS::Queue", "Properties": {"QueueName": "colours"}},
        "Painter": function,
        "Version": {"Type": "AWS::Lambda::Version", "Properties": {"FunctionName": {"Ref": "Painter"}}},
        "Alias": {
            "Type": "AWS::Lambda::Alias",
            "Properties": {
                "Name": "live",
                "FunctionName": {"Ref": "Painter"},
                "FunctionVersion": {"Fn::GetAtt": ["Version", "Version"]},
            },
        },
        "Mapping": {
            "Type": "AWS::Lambda::EventSourceMapping",
            "Properties": {
                "EventSourceArn": {"Fn::GetAtt": ["Queue", "Arn"]},
                "FunctionName": {"Ref": "Painter"},
                "BatchSize": 5,
            },
        },
        "Permission": {
            "Type": "AWS::Lambda::Permission",
            "Properties": {
                "FunctionName": {"Fn::GetAtt": ["Painter", "Arn"]},
                "Action": "lambda:InvokeFunction",
                "Principal": "s3.amazonaws.com",
            },
        },
        **(more or {}),
    }
    outputs = {"Arn": {"Value": {"Fn::GetAtt": ["Painter", "Arn"]}}}
    return json.dumps({"Resources": resources, "Outputs": outputs})


def wired(prefix: str, wanted: str) -> str:
    """A bucket and a topic that invoke a function.

    Args:
        prefix: beginning of the keys of the objects that invoke it.
        wanted: kind of the messages that invoke it.
    """
    resources = {
        "Seen": {"Type": "AWS::S3::Bucket", "Properties": {"BucketName": "seen"}},
        "Recorder": {
            "Type": "AWS::Lambda::Function",
            "Properties": {
                "Runtime": RUNTIME,
                "Handler": "index.handler",
                "Role": "arn:aws:iam::000000000000:role/anybody",
                "Code": {"ZipFile": RECORDER},
                "Environment": {"Variables": {"SEEN": {"Ref": "Seen"}}},
            },
        },
        "Uploads": {
            "Type": "AWS::S3::Bucket",
            "Properties": {
                "BucketName": "uploads",
                "NotificationConfiguration": {
                    "LambdaConfigurations": [
                        {
                            "Event": "s3:ObjectCreated:*",
                            "Function": {"Fn::GetAtt": ["Recorder", "Arn"]},
                            "Filter": {"S3Key": {"Rules": [{"Name": "prefix", "Value": prefix}]}},
                        }
                    ]
                },
            },
        },
        "Topic": {"Type": "AWS::SNS::Topic", "Properties": {"TopicName": "news"}},
        "Subscription": {
            "Type": "AWS::SNS::Subscription",
            "Properties": {
                "TopicArn": {"Ref": "Topic"},
                "Protocol": "lambda",
                "Endpoint": {"Fn::GetAtt": ["Recorder", "Arn"]},
                "FilterPolicy": {"kind": [wanted]},
            },
        },
        "Alarm": {"Type": "AWS::CloudWatch::Alarm"},
    }
    return json.dumps({"Resources": resources, "Outputs": {"Subscription": {"Value": {"Ref": "Subscription"}}}})


def seeded(colour: str) -> str:
    """A custom resource of a colour, and the function that makes it."""
    properties = {
        "Runtime": RUNTIME,
        "Handler": "index.handler",
        "Role": "arn:aws:iam::000000000000:role/anybody",
        "Code": {"ZipFile": SEEDER},
    }
    resources = {
        "Seeder": {"Type": "AWS::Lambda::Function", "Properties": properties},
        "Seed": {
            "Type": "Custom::Seed",
            "Properties": {
                "ServiceToken": {"Fn::GetAtt": ["Seeder", "Arn"]},
                "Colour": colour,
                "Deep": [{"Yes": True, "Two": 2}],
            },
        },
    }
    outputs = {"Id": {"Value": {"Ref": "Seed"}}, "Length": {"Value": {"Fn::GetAtt": ["Seed", "Length"]}}}
    return json.dumps({"Resources": resources, "Outputs": outputs})
