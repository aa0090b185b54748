"""Implements ``thawd up --aws``: an emulator of other AWS services, in a separate process.

The process runs moto, a library that emulates AWS services in memory. What is not here is in moto: moto evaluates the
condition, filter and update expressions of DynamoDB, and it interprets the states of Step Functions (Map, Choice,
Parallel and the others). The modules here start moto, change it where it differs from AWS, and connect it with thawd's
functions.

- `spawning`, `starting`: start the emulator's process, connect it and stop it; run in thawd's process
- `moto_program`: the program of the emulator's process
- `cloudformation`: CloudFormation's API and stacks, in place of moto's
- `api_gateway`: requests to REST and HTTP APIs; moto only stores their definitions
- `eventbridge_rules`: which rules match an event, and what their targets get
- `eventbridge_schedules`: runs scheduled rules and EventBridge Scheduler's schedules
- `eventbridge_targets`: delivers events to the targets of rules and schedules
- `sns_to_functions`: SNS topics invoke thawd's functions; the connection to thawd's Lambda API
- `lambda_backend`: thawd's functions in place of moto's, for moto's services that invoke functions
- `state_machines`: changes to moto's Step Functions: definitions, names of executions, Lambda tasks
- `dynamodb_streams`, `long_polls`, `bucket_policies`, `object_contents`: changes to moto's DynamoDB streams, SQS and S3
- `kinesis_destinations`: changes of a table's items become records of Kinesis streams
- `error_answers`: error documents for operations that moto does not have, and for failures inside moto
- `trace_headers`: passes the X-Ray trace header of a request on
- `inline_modules`, `template_values`: modules and conversions for resources of templates
- `state`, `trial_load`: saves moto's state on disk, and loads it
- `state_saving`: decides when the state is saved
- `module_changes`: changes moto's modules when they are first imported
- `deferred_imports`, `imports_ahead`: when the emulator imports what its services need
- `service_models`: lets the sessions of botocore, of which moto makes many, share what they read
"""
