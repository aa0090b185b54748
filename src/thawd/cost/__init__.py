"""Estimates what functions would cost on AWS Lambda (``thawd cost``), finds their best memory size (``thawd tune``)."""
