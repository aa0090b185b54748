"""Objects of buckets: files in a bucket's folder, or objects in a remote object store such as S3.

`catalog` stores which objects were recorded, `folder` handles buckets that are folders, `remote` accesses buckets in
remote object stores, and `listings` stores the progress of listing remote buckets.
"""
