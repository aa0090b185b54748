"""The server's terminal, for pdb.

While pdb has its prompt, the process's standard input and output are the terminal, so that readline edits lines, and
pdb's commands that ask questions ask there. Otherwise they are what they always are: output goes to the log.
"""

import fcntl
import os
import sys
from contextlib import contextmanager
from typing import Iterator, Optional


class Terminal:
    """The server's terminal, opened by its path.

    Args:
        path: path of the terminal.
        kind: value of ``TERM``, which readline needs; None: not known.

    Raises:
        OSError: the terminal cannot be opened.
    """

    def __init__(self, path: str, kind: Optional[str]) -> None:
        # O_NOCTTY: Ctrl-C must reach the server, not this process.
        fd = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        self._fd = fd
        self._kind = kind
        self._prompts = 0
        self.reader = os.fdopen(fd, "r")
        self.writer = os.fdopen(os.dup(fd), "w")

    @contextmanager
    def as_standard_streams(self) -> Iterator[None]:
        """Let standard input and output be the terminal in the ``with`` block.

        The descriptors 0 and 1 change, too: ``input`` uses readline only for them.
        """
        before = sys.stdin, sys.stdout, sys.stderr
        for stream in before[1:]:
            if stream is not None:
                stream.flush()
        saved = [os.dup(0), os.dup(1)]
        names_kind = self._kind is not None and "TERM" not in os.environ
        if names_kind:
            os.environ["TERM"] = str(self._kind)
        try:
            os.dup2(self._fd, 0)
            os.dup2(self._fd, 1)
            sys.stdin = os.fdopen(0, closefd=False)
            sys.stdout = os.fdopen(1, "w", closefd=False)
            sys.stderr = self.writer
            yield
            sys.stdout.flush()
        finally:
            if names_kind:
                os.environ.pop("TERM", None)
            sys.stdin, sys.stdout, sys.stderr = before
            for fd, old in enumerate(saved):
                os.dup2(old, fd)
                os.close(old)

    @contextmanager
    def for_prompt(self) -> Iterator[None]:
        """Have the terminal for a prompt in the ``with`` block: as standard streams, and locked.

        While it is locked, the server prints no lines on it, and another debugged function waits with its prompt. The
        kernel releases the lock if this process ends.

        Source: flock(2).
        """
        with self.as_standard_streams():
            if self._prompts == 0:  # pdb's command ``debug`` has a prompt within a prompt
                fcntl.flock(self._fd, fcntl.LOCK_EX)
            self._prompts += 1
            try:
                yield
            finally:
                self._prompts -= 1
                if self._prompts == 0:
                    self.writer.flush()
                    sys.stdout.flush()
                    fcntl.flock(self._fd, fcntl.LOCK_UN)
