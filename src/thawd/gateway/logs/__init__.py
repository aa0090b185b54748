"""The operations of the CloudWatch Logs API that read functions' logs."""
