"""Evaluates CloudFormation templates. Pure: reads nothing but its arguments, and calls the functions it is given.

Everything that a template may contain and thawd cannot evaluate is refused, never ignored.

- `template_parsing`: parses a template's text (JSON, YAML with short forms)
- `preparation`: runs transforms, checks parameters, and offers the resources with their properties
- `parameters`, `conditions`: the sections ``Parameters``, ``Conditions`` and ``Rules``
- `intrinsic_functions`: Ref, Fn::GetAtt, Fn::Sub, Fn::If and the others that refer to the template or the stack
- `context_free_functions`: Fn::Join, Fn::Split and the others whose result depends only on their arguments
- `dynamic_references`, `includes`: ``{{resolve:...}}``; the macro AWS::Include
- `sam_transform`, `language_extensions`: the transforms AWS::Serverless-2016-10-31 and AWS::LanguageExtensions
- `references`: finds what a part of a template refers to
- `values`: the values that templates evaluate to
- `refusals`: the error for templates that cannot be evaluated
"""
