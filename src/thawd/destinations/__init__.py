"""Destinations of asynchronous invocations.

Reading order: `delivery` (makes deliveries and carries them out), `record` (what a destination receives), `slots` (how
many deliveries run at the same time), `aws` and `webhook` (the kinds that leave this machine), `lineage` (ends loops of
functions).
"""
