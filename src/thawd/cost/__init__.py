"""Estimates what functions would cost on AWS Lambda (`thawd cost`), and finds their best memory size (`thawd tune`)."""
