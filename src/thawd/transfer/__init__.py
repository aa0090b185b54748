"""Snapshots that travel: sends them to a store of chunks, and receives them on other machines.

A snapshot is cut into chunks. Each is named by its content, compressed, encrypted and stored once, however many
snapshots contain it. A record lists the chunks of one snapshot; it is encrypted with the key of the snapshot's
function. docs/reference/chunk-format.md describes every field.

- `sending`: cuts a snapshot into chunks and uploads those that are missing
- `receiving`: fetches a snapshot, checks it, and puts it into this machine's store of snapshots
- `programs`: both, for images of programs that froze themselves
- `program_runs`: runs the image of a program while it arrives
- `arriving_snapshots`: snapshots of functions that are thawed while their images arrive
- `arriving_files`: a file whose contents arrive while it is read
- `arriving_images`: an image in such a file, with tables that name this machine's files
- `first_use`: which chunks a program or a function needed first
- `fuse_files`: serves such a file to the kernel
- `exchange`: does both while a server runs
- `sender_process`: sends in a process of its own
- `upkeep`: verifies a store, and removes chunks that no record lists
- `chunk_format`: the bytes of a chunk and of a record
- `record_body`: what a record says
- `cutting`: where images and files are cut
- `folder_trees`: folders as entries of a record, and back
- `container_roots`: the container image that a snapshot's process has as its root
- `store_keys`: the keys
- `store_layout`: under which keys a store keeps its objects
- `registry_place`: a registry of container images as a store of chunks
- `chunk_uploads`, `chunk_downloads`: many chunks at a time
- `chunk_cache`: chunks that this machine keeps

Other places of chunks are the business of `thawd.stores.chunk_places`. All functions block.
"""
