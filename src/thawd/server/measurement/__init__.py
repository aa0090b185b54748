"""Private servers, each for one measurement: the programs `bench` and `tune`, and `serving`, which both use."""
