"""Typed functions: `thawd.function` makes an HTTP endpoint of a function with annotations.

The package runs in functions' processes: it uses only the standard library of Python 3.9 and later. NumPy, Pillow,
pydantic and msgspec are used only if the function has imported them.

`function` (the decorator), `parameters` (what a function takes, and from where), `conversion` (JSON to annotated types,
with all errors), `constraints` (limits in annotations), `kinds` (which values are bodies of their own), `bodies` (forms
and multipart bodies), `answers` (return values to bytes), `schemas` (JSON schemas), `openapi` (the OpenAPI document),
`page` (the page to try a function).
"""
