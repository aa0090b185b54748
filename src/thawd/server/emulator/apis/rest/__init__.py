"""REST APIs (API Gateway version 1)."""
