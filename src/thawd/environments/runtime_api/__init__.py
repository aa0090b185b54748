"""AWS Lambda's Runtime API and Extensions API: HTTP interfaces for Node, for a ``bootstrap`` and for extensions."""
