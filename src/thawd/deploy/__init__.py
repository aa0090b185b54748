"""Deployment: reads what other tools deploy from. `templates` evaluates CloudFormation, `images` builds images."""
