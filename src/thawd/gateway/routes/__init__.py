"""HTTP routes as API Gateway has them: matching, payload formats 1.0 and 2.0, responses."""
