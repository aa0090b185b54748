"""HTTP routes that work like API Gateway's: matching, payload formats 1.0 and 2.0, responses."""
