"""Deployment: reads what other tools deploy from, and deploys to AWS.

- `projects`: reads projects of SAM, CDK and the Serverless Framework, and makes their stacks in a running server
- `templates`: evaluates CloudFormation templates; the CloudFormation API is in `thawd.server.emulator.cloudformation`
- `images`: builds container images from Dockerfiles and from functions
- `packages`: makes deployment packages (``thawd package``)
- `aws`: deploys to AWS (``thawd deploy aws``)
"""
