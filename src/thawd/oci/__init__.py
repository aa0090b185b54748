"""OCI images: fetched or read, verified, unpacked without privileges, and merged into folders that functions run in.

Calls block: use a thread. No module opens a connection unless the user named a registry.

- `image_lookup`: from the name that a user gives to an image in the store: looks in the store, a file or a registry
- `image_store`: the store: verified blobs, unpacked layers and roots, with names
- `root`: a root, the result: the folder that a function runs in, and the image's configuration
- `registry`, `credentials`: the client of registries, and its user names and passwords
- `blobs`: files named by their SHA-256; verifies each blob's digest while it is written
- `unpacking`, `tar_entries`, `compression`: unpack a layer with its whiteouts into a folder of its own
- `merging`: merges unpacked layers into one folder, and applies their whiteouts
- `removing`: removes folders of images
- `layout_reading`, `layout_writing`: image files: OCI layouts, and those of ``docker save``
- `layer_writing`: writes new layers
- `references`, `documents`: names of images; the JSON documents of the OCI specification
- `image_paths`: follows symbolic links inside an image
"""
