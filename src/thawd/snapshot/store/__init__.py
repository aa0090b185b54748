"""The images of frozen functions on the platform's side: `images` keeps, leases and evicts them."""
