"""Projects of other tools: a template of SAM or CloudFormation, a cloud assembly of CDK, or serverless.yml.

- `discovery`: finds the project in a folder
- `reading`: reads a project of any kind
- `template_files`: reads templates of SAM and CloudFormation, and samconfig.toml
- `assemblies`: reads cloud assemblies of CDK (``cdk.out``)
- `serverless_files`: turns serverless.yml into a template of SAM, with these modules:
- `serverless_variables`, `serverless_properties`: variables; properties that thawd does not have
- `serverless_functions`, `serverless_packages`: the sections ``functions`` and ``package``
- `serverless_events`, `serverless_apis`: events; HTTP APIs and authorizers
- `serverless_lambda_methods`, `serverless_extensions`: the integration ``lambda``; ``resources.extensions``
- `stacks`: the stacks that a project consists of
- `artifacts`, `zip_files`: package the local code of a template
- `npm_packages`, `esbuild`: install the packages of Node functions, bundle them
- `foreign_layers`: replaces layers of other AWS accounts
- `project_images`: builds the container images of a project's functions
- `deployment`: makes the stacks in a running server
- `stack_updates`: keeps the stacks as the project's files say while the server runs
- `checking`, `template_lint`: check a project without a server; run cfn-lint
"""
