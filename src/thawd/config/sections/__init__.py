"""From the tables of a parsed document to structs, a module for each group of sections.

A mistake is noted and reading goes on with the default in place of the wrong value, so that one run reports every
mistake. Mistakes between tables are found afterwards, by `thawd.config.cross_checks`.
"""
