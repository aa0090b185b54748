"""Deployment to AWS: makes a CloudFormation template of a configuration, shows what it changes, carries it out.

Three steps, each of which knows only the one before:

1. The model, `template`: a configuration becomes a template, as data. It is pure: the same configuration and code give
   the same bytes. What AWS cannot do is listed, never left out silently.
2. The plan, `plan`: the differences between the deployed template and the new one, as data.
3. The execution, `execution`: the only module that calls AWS. It uploads code and runs change sets.

`uses` finds out which buckets and tables a function's code uses, so that its role allows these only. `assets` makes the
archives of code, and the layer with the package ``thawd`` that handlers import on AWS.
"""
