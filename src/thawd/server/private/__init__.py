"""Servers that measurements start for themselves: `bench` and `tune` are programs, `serving` is what they share."""
