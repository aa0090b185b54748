"""Other AWS services on the one port: requests passed on to the emulator, notifications of its buckets."""
