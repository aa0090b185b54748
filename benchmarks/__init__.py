"""Benchmarks for what thawd promises about speed. They measure ratios in one run on one machine; see `README.md`."""
