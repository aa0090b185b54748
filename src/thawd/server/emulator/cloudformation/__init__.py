"""Makes, changes and deletes CloudFormation stacks, and serves CloudFormation's API. In the emulator's own process.

`api` answers requests, and `change_sets` those about change sets. `engine` runs operations on stacks in the background.
It evaluates a template with `thawd.deploy.templates`; then it makes, changes and deletes the resources in the order of
their dependencies with `providers`, which has one kind for each resource type. `records` are what is known about a
stack; `store` keeps them in files, so that an operation that was interrupted is rolled back or completed after a
restart.
"""
