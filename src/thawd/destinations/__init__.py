"""Where the outcome of an asynchronous invocation goes: `delivery` makes and carries out deliveries, `aws` and
`webhook` are the kinds that leave this machine.
"""
