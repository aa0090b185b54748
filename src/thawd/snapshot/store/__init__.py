"""The platform's store of the images of frozen functions: `images` stores, leases and evicts them."""
