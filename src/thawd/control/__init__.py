"""The control plane: functions, versions, aliases, layers and their settings, as the Lambda API manages them.

This package stores these resources and carries out changes to them. It contains no HTTP code. It notifies `Deployments`
of every change that affects which versions serve.
"""
