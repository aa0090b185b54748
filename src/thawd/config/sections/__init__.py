"""Turns the tables of a parsed ``thawd.toml`` into structs, with one module for each group of sections.

After a mistake, reading continues with the default instead of the wrong value, so that all mistakes are reported
together. `thawd.config.cross_checks` then finds mistakes that involve several tables.
"""
