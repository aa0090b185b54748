def set_child_subreaper() -> None:
    """Make this process the parent of every orphaned descendant, so that it can reap or kill it.

    Raises:
        OSError: the kernel refused, or the system has no such call (ENOSYS).

    Source: prctl(2), PR_SET_CHILD_SUBREAPER, Linux 3.4.
    """
