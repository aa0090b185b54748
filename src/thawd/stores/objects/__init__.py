"""Objects of buckets.

`catalog` stores which objects were recorded, `folder` handles buckets that are folders, `remote` accesses buckets in
remote object stores, and `listings` stores the progress of listing remote buckets.
"""
