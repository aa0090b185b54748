"""The ready file: a file that a server writes when it is ready. It tells scripts the server's URL and process id."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from thawd.system import folders


@dataclass(frozen=True, slots=True)
class ReadyFile:
    """A JSON document with ``url`` and ``pid``, which a server writes once.

    Attributes:
        path: path of the file.
        after_publication: whether it is written when all functions have been published, or have failed, and event
            sources run. If false, it is written as soon as the port answers. A request for a function that is not yet
            published waits for that function.
    """

    path: Path
    after_publication: bool = False

    def write(self, url: str) -> None:
        """Write the file in one step, so that no reader sees only a part of it.

        Raises:
            OSError: the file cannot be written.
        """
        staged = self.path.with_name(self.path.name + ".new")
        folders.written_about.update({self.path.absolute(), staged.absolute()})
        staged.write_bytes(msgspec.json.encode({"url": url, "pid": os.getpid()}))
        staged.replace(self.path)
