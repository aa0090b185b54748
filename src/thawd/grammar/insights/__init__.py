"""The query language of CloudWatch Logs Insights: parses queries and runs them over log events."""
