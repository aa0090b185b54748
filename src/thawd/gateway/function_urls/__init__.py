"""Function URLs: HTTP addresses that each belong to one function."""
