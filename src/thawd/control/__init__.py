"""The control plane: functions, versions, aliases, layers and their settings, as the Lambda API manages them.

Owns the resources and their changes; knows nothing of HTTP. It notifies `Deployments` of every change that affects
which versions serve.
"""
