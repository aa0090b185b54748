"""Other AWS services on thawd's port: passes requests to moto, an emulator; its buckets' events invoke functions."""
