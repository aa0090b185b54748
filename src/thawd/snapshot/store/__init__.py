"""The platform's store of the images of frozen functions: `images` adds and finds them, and removes unused ones."""
