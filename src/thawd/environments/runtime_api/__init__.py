"""AWS Lambda's Runtime API and Extensions API, for programs other than thawd's own runtime."""
