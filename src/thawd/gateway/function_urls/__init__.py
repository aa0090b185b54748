"""Function URLs: a function's own HTTP address."""
