"""What the platform measures and writes down: metrics (`metrics`) and functions' logs (`logs`)."""
