"""Private servers for measurements: the programs `bench` and `tune`, and `serving`, which both use."""
