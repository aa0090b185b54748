"""Prepares the memory of a process that will be frozen as a base, so that the copies write to few of its pages.

All copies of a base, and all copies of the images over it, share the base's pages. A page that a copy writes to becomes
the copy's own. A running interpreter writes to many pages only because of where something is: new objects fill gaps
between old ones, and each reference to an object is counted in the object. The functions here reduce such writes; they
change nothing that Python code can see, except counts of references and of allocated blocks.
"""

import ctypes
import os
import re
import sys
from types import FrameType
from typing import Any, List, Optional, Tuple

# Objects that must not be freed in copies: freeing an object writes to its page.
_kept: List[Any] = []
# A line of the table that sys._debugmallocstats prints: class, size of its blocks, pools, used blocks, free blocks.
_CLASS = re.compile(rb"^ *\d+ +(\d+) +\d+ +\d+ +(\d+) *$", re.MULTILINE)


def keep(value: object) -> None:
    """Never free `value`."""
    _kept.append(value)


def keep_locals() -> None:
    """Never free what the local variables of the callers refer to now.

    Otherwise each copy would free these objects when the callers return.
    """
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None:
        _kept.append(list(frame.f_locals.values()))
        frame = frame.f_back


def forget_lookups() -> None:
    """Clear the interpreter's cache of attributes that were looked up in types.

    Each entry of the cache holds a reference to an attribute's name. If a copy looks up other attributes, a new entry
    replaces an old one, and the counts of both names change, on two pages. From Python 3.12 on, these counts are
    constant.
    """
    if sys.version_info < (3, 12):
        sys._clear_type_cache()


def fill_free_blocks() -> int:
    """Allocate all free blocks between Python's objects, for good. New objects then get pages of their own.

    Otherwise the few objects of a copy's function would be spread over all pages that have a free block. The memory of
    the blocks is part of the base in any case. Returns the number of blocks; 0 if the interpreter does not use
    `PyObject_Malloc`'s own allocator (pymalloc) or does not report its free blocks.
    """
    allocate = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(("PyObject_Malloc", ctypes.pythonapi))
    filled = 0
    for block_bytes, count in free_blocks():
        for _ in range(count):
            allocate(block_bytes)
        filled += count
    return filled


def free_blocks() -> List[Tuple[int, int]]:
    """The numbers of free blocks between Python's objects: pairs of a block's size in bytes and the number.

    Source: CPython, Objects/obmalloc.c, _PyObject_DebugMallocStats.
    """
    report: Any = getattr(sys, "_debugmallocstats", None)
    if report is None:
        return []
    file, kept = os.memfd_create("blocks"), os.dup(2)
    try:
        # The interpreter can write the report only to standard error.
        os.dup2(file, 2)
        try:
            report()
        finally:
            os.dup2(kept, 2)
        text = os.pread(file, os.fstat(file).st_size, 0)
    finally:
        os.close(file)
        os.close(kept)
    return [(int(line[1]), int(line[2])) for line in _CLASS.finditer(text)]
