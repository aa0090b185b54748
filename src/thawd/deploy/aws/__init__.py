"""Deployment to AWS: makes a CloudFormation template of a configuration, shows what it changes, carries it out.

Three steps, each of which knows only the one before: `template` turns a configuration into a template, as data (the
same configuration and code give the same bytes). `plan` compares the deployed template with the new one.
`stack_deployment` runs change sets. What AWS cannot do is listed, never left out silently.

- `template`: the whole template
- `stack`: the stack while it is made: its resources so far, and what it will lack
- `functions`: functions with their layers and log groups
- `web_applications`: the layer that makes ASGI and WSGI applications callable
- `roles`: the role of a function, with the statements that allow what its code and its settings use
- `used_stores`: reads a function's code to find the buckets and tables that it uses
- `versions_and_aliases`: versions, aliases, gradual rollouts and provisioned concurrency
- `routes_and_urls`: the HTTP API for routes; function URLs
- `queues_and_schedules`: event source mappings and schedules
- `buckets_and_tables`: buckets with their notifications, tables
- `destinations`: destinations, retries and dead-letter queues of asynchronous invocations
- `alarms_and_dashboard`: alarms and the dashboard
- `naming`: logical ids and names of resources
- `plan`: what a deployment changes
- `assets`: the archives to upload: functions' code, and the layer with the package ``thawd``
- `account`: clients, credentials and signatures of an account and region; the only module that imports boto3
- `artifact_bucket`: uploads archives
- `function_images`, `image_repository`: container images of functions; pushes them to the account's registry
- `change_sets`, `stack_events`: create and execute change sets; follow them, and find the cause of a failure
- `stack_deployment`: reads, changes and deletes stacks
- `project_packages`, `project_plan`: a template of another tool: its code and images, and the changes that
  CloudFormation's change set announces
- `deployed_functions`: calls deployed functions and reads their logs
- `estimate`: estimates what the deployed functions cost
"""
