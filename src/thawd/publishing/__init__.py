"""From a declared function to a version that can be started: interpreter, requirements, package."""
