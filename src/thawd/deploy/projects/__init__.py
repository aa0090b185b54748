"""Projects of other tools: a template of SAM or CloudFormation, a cloud assembly of CDK, or serverless.yml.

`discovery` finds a project in a folder, `reading` turns it into stacks, `artifacts` packages their local code, and
`deployment` makes the stacks in a running server through its CloudFormation API.
"""
