"""What measurements say: how fast functions are, what they cost, how much memory suits them. Reads; serves nothing."""
