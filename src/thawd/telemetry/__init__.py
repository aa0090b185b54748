"""What the platform measures and writes down: metrics (`metrics`), functions' logs (`logs`), its own lines
(`console`).
"""
