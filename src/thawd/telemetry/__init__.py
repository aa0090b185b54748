"""Metrics of the platform (`metrics`), logs of the functions (`logs`), and lines for the operator (`console`).

`structured_output`, `line_writer` and `journal` print the same lines as JSON, or as entries of systemd's journal.
"""
