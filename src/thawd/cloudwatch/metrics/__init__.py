"""Metrics: what thawd measured and what functions report, minute by minute, and statistics over it."""
