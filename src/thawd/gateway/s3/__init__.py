"""Serves buckets to S3 clients over HTTP."""
