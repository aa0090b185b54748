"""The command ``thawd``: a module for each verb or group of verbs; `program` puts them together.

Beside the verbs: `client` calls the running server, `options` and `exits` hold what verbs have in common, `output`
prints. Heavy imports happen inside the verbs, so that ``thawd --help`` is instant. Only `thawd.__main__` imports this
package.
"""
