"""Buckets over HTTP, as S3 clients speak it."""
