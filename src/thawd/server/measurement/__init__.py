"""Private servers for measurements: the programs `bench` and `tune`, and the module `serving`, which both use."""
