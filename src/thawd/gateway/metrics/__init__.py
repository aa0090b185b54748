"""The CloudWatch metrics API: what thawd measured, as statistics over periods."""
