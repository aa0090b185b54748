"""Names files in tracebacks as the user knows them: in the folder of the code, not in the copy that runs."""

from __future__ import annotations

import os

from thawd.environments.version import Version
from thawd.snapshot.disk.places import TASK


def as_user_knows(text: str, version: Version) -> str:
    """Return a traceback with the paths of the user's own files, relative to the current folder if that is shorter.

    Args:
        text: lines of a traceback.
        version: the version whose process wrote them.
    """
    code = str(version.function.code)
    try:
        relative = os.path.relpath(code)
    except FileNotFoundError:  # the server's working folder was removed
        relative = code
    shown = min(code, "" if relative == "." else relative, key=len)
    folder = f"{shown}/" if shown else ""
    for root in (f"{TASK}/", f"{version.code}/"):
        text = text.replace(f'File "{root}', f'File "{folder}')
    return text
