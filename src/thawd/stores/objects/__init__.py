"""Objects of buckets: the catalog of what each held, folders of this machine, object stores elsewhere."""
