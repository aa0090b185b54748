"""A small base image with a shell, made from programs of this machine, for tests of builds."""

from __future__ import annotations

from pathlib import Path

from thawd.deploy.images.host_files import HostFiles
from thawd.deploy.images.stage_state import StageState, store
from thawd.oci import documents
from thawd.oci.image_store import Images
from thawd.oci.layer_writing import NewEntry, add_parents, write_layer

NAME = "small:latest"
_PROGRAMS = (
    *(
        "sh",
        "cat",
        "ls",
        "rm",
        "mkdir",
        "ln",
        "chmod",
        "chown",
        "mv",
        "touch",
        "id",
        "sleep",
        "stat",
        "readlink",
        "env",
    ),
)


def add_small_base(images: Images) -> str:
    """Put the image into a store under `NAME`; returns its digest."""
    host = HostFiles()
    for link in ("/bin", "/lib", "/lib64"):
        if Path(link).is_symlink():
            host.add(Path(link))
    host.add_programs(_PROGRAMS)
    host.entries["etc/passwd"] = NewEntry(0o644, b"root:x:0:0::/root:/bin/sh\napp:x:7:8::/home/app:/bin/sh\n")
    host.entries["etc/group"] = NewEntry(0o644, b"root:x:0:\ngroup:x:9:\n")
    host.entries["etc/removed"] = NewEntry(0o644, b"of the base")
    add_parents(host.entries, list(host.entries))
    state = StageState(env={"PATH": "/usr/bin:/bin", "BASE": "1"})
    with images.adding():
        state.add(write_layer(images.blobs, host.entries), "a shell")
        digest = store(images, state, architecture=documents.machine_architecture())
        images.set_name(NAME, digest)
    return digest
