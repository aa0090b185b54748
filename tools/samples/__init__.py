"""Serves 60 public samples with ``thawd up`` and judges the first answer of each.

The samples are in repositories of AWS and of Serverless. `listing` names them with their commits; nothing of them is in
this repository. The modules `apis`, `functions` and `frameworks` say
what each sample has to answer, by its README or its code. `served` runs the server. ``python -m tools.samples --help``.
"""
