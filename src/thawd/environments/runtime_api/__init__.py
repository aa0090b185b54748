"""The Runtime API and the Extensions API of AWS Lambda, for programs that are not thawd's own runtime."""
