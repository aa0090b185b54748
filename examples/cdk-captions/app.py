"""A CDK app: a function in a container image writes a caption for each picture of a bucket into a table."""

import aws_cdk as cdk
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_s3_notifications as notifications


class Captions(cdk.Stack):
    """Bucket, function and table."""

    def __init__(self, scope: cdk.App, name: str) -> None:
        super().__init__(scope, name)
        key = dynamodb.Attribute(name="picture", type=dynamodb.AttributeType.STRING)
        table = dynamodb.Table(self, "Rows", partition_key=key, removal_policy=cdk.RemovalPolicy.DESTROY)
        function = lambda_.DockerImageFunction(
            self,
            "Captioner",
            code=lambda_.DockerImageCode.from_image_asset("captions"),
            memory_size=1024,
            timeout=cdk.Duration.seconds(30),
            environment={"TABLE": table.table_name},
        )
        table.grant_write_data(function)
        alias = lambda_.Alias(
            self, "Live", alias_name="live", version=function.current_version, provisioned_concurrent_executions=2
        )
        bucket = s3.Bucket(self, "Pictures", removal_policy=cdk.RemovalPolicy.DESTROY)
        bucket.grant_read(function)
        bucket.add_event_notification(s3.EventType.OBJECT_CREATED, notifications.LambdaDestination(alias))
        for output, value in {
            "Bucket": bucket.bucket_name,
            "Table": table.table_name,
            "Function": function.function_name,
        }.items():
            cdk.CfnOutput(self, output, value=value)


app = cdk.App()
Captions(app, "Captions")
app.synth()
