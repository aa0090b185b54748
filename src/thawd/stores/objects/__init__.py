"""Objects of buckets: `catalog` (the objects that were recorded), `folder` (buckets of this machine), `remote` (object
stores elsewhere), `listings` (how far the listings of remote buckets are).
"""
