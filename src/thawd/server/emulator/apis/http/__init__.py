"""HTTP APIs (API Gateway version 2)."""
