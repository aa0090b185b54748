"""Objects that appear in buckets: folders of this machine, and buckets in object stores elsewhere."""
