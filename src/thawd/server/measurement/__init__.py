"""Servers that `thawd bench` and `thawd tune` start, each for one measurement.

`bench.py` and `tune.py` are the programs of these servers. Both use `serving.py`.
"""
