"""The command ``thawd``: a module a verb or group of verbs; `program` holds the group and the short verbs.

Heavy imports happen inside the verbs, so that ``thawd --help`` is instant. Nothing imports this package but
`thawd.__main__`.
"""
