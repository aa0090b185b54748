"""The kinds of resources: how each type's resources are made, changed and deleted.

Resources of Lambda, Logs, API Gateway and Scheduler are made through thawd's own API, most others through the APIs of
the emulated services, and the rest by moto's classes (`moto_models`).

- `resource_kind`: the struct that describes a kind
- `kinds_by_type`: finds the kind of a type
- `aws_clients`: calls operations of AWS's services
- `functions`: AWS::Lambda
- `buckets`, `tables`, `queues_and_topics`: AWS::S3, AWS::DynamoDB, AWS::SQS and AWS::SNS
- `event_rules`, `schedules`: AWS::Events and AWS::Scheduler
- `http_apis`, `rest_apis`: AWS::ApiGatewayV2 and AWS::ApiGateway
- `documents_in_s3`: definitions of APIs and state machines that a template keeps in S3
- `log_groups`: AWS::Logs
- `roles_and_policies`, `security_groups`: AWS::IAM; rules of AWS::EC2 security groups
- `parameters_and_secrets`: AWS::SSM and AWS::SecretsManager
- `plain_apis`: types whose properties are an operation's parameters
- `moto_models`, `moto_deletions`: types that moto's own classes make
- `types_without_effect`: types that are accepted and have no effect, for example alarms
- `custom_resources`, `callback_server`: resources made by a function of thawd, and the server that gets its answers
- `wait_conditions`: wait conditions, and the handles that get their signals
- `cdk_handlers`, `cdk_calls`, `cdk_providers`: CDK's own custom resources, without running CDK's functions
"""
