"""Destinations of asynchronous invocations.

Reading order: `delivery` (makes deliveries and carries them out), `record` (the documents that destinations receive),
`slots` (limits how many deliveries run at the same time), `aws` and `webhook` (destinations outside this machine).
"""
