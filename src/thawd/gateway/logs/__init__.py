"""CloudWatch Logs' read operations over functions' logs."""
