"""Builds a server from its settings: a module for each subsystem, and `platform`, which connects the subsystems."""
