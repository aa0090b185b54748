"""Makes, changes and deletes CloudFormation stacks, and serves CloudFormation's API.

This package runs in the emulator's own process. `api` and `change_sets` answer requests. `engine` runs each operation
on a stack in the background: `template_plans` evaluates the template with `thawd.deploy.templates`, `resource_changes`
makes, changes and deletes the resources in the order of their dependencies, and `providers` has the code for each
resource type. An operation that was interrupted is rolled back or completed after a restart.

- `api`: operations that create, change, delete and show stacks
- `change_sets`: operations on change sets
- `request_parameters`, `capabilities`: read the parameters of both; check ``Capabilities``
- `api_answers`: the documents that both answer
- `templates_shown`: GetTemplateSummary and ValidateTemplate
- `engine`: creation, update, deletion and rollback of a whole stack
- `resource_changes`: creation, update, replacement and deletion of one resource
- `replacement`: decides whether a resource is replaced or updated in place
- `change_preview`: what an update would change, for change sets
- `template_plans`, `template_urls`: evaluates stacks' templates; reads templates from S3
- `graph_order`: works through a graph of dependencies, several nodes at the same time
- `providers`: each resource type: how its resources are made, changed and deleted
- `nested_stacks`: resources of the type AWS::CloudFormation::Stack
- `known_types`: the resource types that stacks can have, without an emulator
- `generated_names`: names of resources that the template does not name
- `stack_records`, `stack_files`: what is stored about a stack; the files with these records
- `saved_moto_stacks`: takes over the stacks of earlier versions of thawd
- `installation`: puts this package in the place of moto's CloudFormation
- `errors`: errors of the API and of resources
"""
