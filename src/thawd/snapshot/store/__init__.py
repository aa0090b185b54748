"""The platform's store of the images of frozen functions: `images` keeps, leases and evicts them."""
