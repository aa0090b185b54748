"""Estimates the cost of functions on AWS Lambda (``thawd cost``) and finds their best memory size (``thawd tune``)."""
