"""The control plane: functions, versions, aliases, layers and what belongs to them, made through the Lambda API.

Owns what the resources are and how they change; knows nothing of HTTP. What serves is told to the `Deployments`.
"""
