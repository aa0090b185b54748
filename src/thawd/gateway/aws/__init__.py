"""Other AWS services on the same port: passes requests to the AWS emulator, and events of its buckets to functions."""
