"""Other AWS services on the same port: passes requests on to the emulator, fires its buckets' notifications."""
