"""Other AWS services: passes their requests to moto, an emulator, and invokes functions for events of its buckets."""
