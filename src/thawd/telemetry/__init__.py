"""Metrics of the platform (`metrics`), logs of the functions (`logs`), and lines for the operator (`console`)."""
