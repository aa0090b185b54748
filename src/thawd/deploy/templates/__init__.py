"""Evaluates CloudFormation templates. Pure: reads nothing but its arguments, and calls the functions it is given.

`documents` parses a template's text, `preparation` turns the document into resources whose properties can be resolved.
Everything that a template may contain and thawd cannot evaluate is refused, never ignored.
"""
