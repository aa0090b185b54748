"""Deployment: reads what other tools deploy from, and deploys to AWS.

`templates` evaluates CloudFormation, `projects` reads what other tools deploy, `images` builds images,
`packages` makes deployment packages, `aws` deploys.
"""
