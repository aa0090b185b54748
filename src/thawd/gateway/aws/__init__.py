"""Other AWS services on the same port: passes requests to moto, an emulator; events of its buckets invoke functions."""
