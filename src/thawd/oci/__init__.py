"""OCI images: fetched or read, verified, unpacked without privileges, and merged into folders that functions run in.

Reading order: `root` (the result: a folder and its configuration), `images` (the store, which everything else serves),
`references` and `documents` (names and documents of the OCI specifications), `blobs`, `tar_entries`, `unpacking`,
`merging` (from a verified blob to a folder), `layouts` (image files), `registry` and `credentials` (the network),
`layer_writing` (new layers). Calls block: use a thread. No module opens a connection unless the user named a registry.
"""
