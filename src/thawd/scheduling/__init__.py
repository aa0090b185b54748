"""Which invocation runs when, and in which environment.

Reading order: `dispatcher` (which version, may it run), `pool` (which environment), `room` (how many environments fit
this machine), `keep_alive` and `provisioned` (how long they stay). Starts environments through `thawd.environments`.
"""
