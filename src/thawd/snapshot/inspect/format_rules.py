"""Checks whether the records of an image obey the format's rules, for example that none points outside the file.

An image is the file that a freeze makes of a process. A thaw builds a process from it in steps, the operations.
`docs/reference/snapshot-format.md` lists the same rules under "Rules". The functions only read their arguments.
Standard library only, Python 3.9 and later.
"""

from __future__ import annotations

from collections.abc import Sequence

from thawd.snapshot.inspect import layout
from thawd.snapshot.inspect.memory import Memory
from thawd.snapshot.inspect.records import Descriptor, Image, ImageError, Operation

# Source: Linux, arch/x86/include/asm/page_64_types.h, TASK_SIZE_MAX with four levels of page tables.
_USER_END = 0x7FFFFFFFF000
_OFFSET_END = 1 << 60  # far below the limit of off_t
_NUMBER_END = 1 << 24  # far above the largest limit of descriptors that the kernel allows
_ZONE = (layout.ZONE_START, layout.ZONE_START + layout.ZONE_BYTES)

_NEEDS_INDEX = {"file": "files", "file_shared": "files", "object": "objects"}


class DamageError(ImageError):
    """An image breaks a rule of its format: freeze did not write it, or it has changed since."""


def names(bits: int, known: dict[int, str], where: str) -> tuple[str, ...]:
    """The names of the bits that are set; raises DamageError for an unknown bit."""
    unknown = bits & ~sum(known)
    if unknown:
        raise DamageError(f"{where}: unknown bits {unknown:#x}")
    return tuple(name for bit, name in known.items() if bits & bit)


def kind(value: int, known: Sequence[str], where: str) -> str:
    """The name of a kind; raises DamageError for an unknown one."""
    if value >= len(known):
        raise DamageError(f"{where}: unknown kind {value}; the known kinds are 0 to {len(known) - 1}")
    return known[value]


def yes_or_no(value: int, where: str) -> bool:
    """Whether `value` is 1 rather than 0; raises DamageError for any other number."""
    if value > 1:
        raise DamageError(f"{where}: is {value}, must be 0 or 1")
    return value == 1


def check(image: Image) -> None:
    """Check the rules that `reader` does not check while it decodes single values.

    Raises:
        DamageError: a rule is broken; the text says which rule, and where.
    """
    if (
        image.anonymous_offset % layout.PAGE_BYTES
        or not image.data_offset <= image.anonymous_offset <= image.file_bytes
    ):
        raise DamageError(
            f"header: anonymous_offset, {image.anonymous_offset}, is not the offset of a page in the image"
        )
    for index, operation in enumerate(image.operations):
        _check_operation(image, operation, f"operation {index} ({operation.kind}) at {operation.address:#x}")
    for index, item in enumerate(image.objects):
        _check_stored(image, item.offset, item.stored_bytes, f"object {index}")
    memory = Memory(image.operations)
    _check_memory(image, memory)
    _check_words(image, memory)
    _check_process(image, memory)
    _check_threads(image, memory)
    _check_descriptors(image)
    _check_sockets_and_rings(image)


def _check_operation(image: Image, operation: Operation, where: str) -> None:
    if operation.address % layout.PAGE_BYTES or operation.length % layout.PAGE_BYTES or not operation.length:
        raise DamageError(f"{where}: {operation.length} bytes at this address are not one or more whole pages")
    if operation.address < layout.PAGE_BYTES or operation.end > _USER_END:
        raise DamageError(
            f"{where}: its start or its end, {operation.end:#x}, is not an address that a process can use"
        )
    process = image.process
    _check_apart(operation, _ZONE, f"{where}: its memory overlaps the address range (zone) that thaw needs for itself")
    for start, size in ((process.vdso_start, process.vdso_bytes), (process.vvar_start, process.vvar_bytes)):
        _check_apart(operation, (start, start + size), f"{where}: its memory overlaps the vDSO")
    if operation.offset % layout.PAGE_BYTES or operation.offset + operation.length > _OFFSET_END:
        raise DamageError(f"{where}: its offset {operation.offset} is not the offset of a page in a file")
    table = _NEEDS_INDEX.get(operation.kind)
    if table is None:
        if operation.index is not None:
            raise DamageError(f"{where}: has the index {operation.index}, but this kind has no index")
        if operation.kind in ("data", "copy"):
            _check_stored(image, operation.offset, operation.length, where)
        return
    count = len(image.files if table == "files" else image.objects)
    if operation.index is None or operation.index >= count:
        raise DamageError(f"{where}: its index is {operation.index}, but there are {count} {table}")


def _check_apart(operation: Operation, other: tuple[int, int], message: str) -> None:
    start, end = other
    if operation.address < end and start < operation.end:
        raise DamageError(f"{message}, {start:#x}-{end:#x}")


def _check_stored(image: Image, offset: int, size: int, where: str) -> None:
    """Check that `size` bytes from `offset` on are pages of the image."""
    if offset % layout.PAGE_BYTES or offset < image.data_offset or offset + size > image.file_bytes:
        raise DamageError(
            f"{where}: its contents, {size} bytes from byte {offset} on, are not within the image's pages, bytes "
            f"{image.data_offset} to {image.file_bytes}, or do not begin with a whole page"
        )


def _check_memory(image: Image, memory: Memory) -> None:
    """Check that stored pages lie in private mappings that earlier operations make."""
    _check_disjoint(memory.mappings, "mappings")
    are_mappings = set(memory.order)
    stored = [(index, item) for index, item in enumerate(image.operations) if item.kind in ("data", "copy")]
    _check_disjoint(sorted((item for _, item in stored), key=lambda item: item.address), "runs of stored pages")
    for index, item in stored:
        if index in are_mappings:
            continue
        where = f"operation {index} ({item.kind}) at {item.address:#x}"
        below = memory.span(item.address, item.end)
        if below is None:
            raise DamageError(f"{where}: {item.length} bytes at this address are not all mapped by other operations")
        for at in below:
            if memory.mappings[at].kind not in ("anonymous", "file"):
                raise DamageError(
                    f"{where}: its pages lie in the mapping of operation {memory.order[at]}, which is not private"
                )
            if memory.order[at] > index:
                raise DamageError(f"{where}: comes before operation {memory.order[at]}, which makes its mapping")


def _check_mapped(memory: Memory, address: int, size: int, where: str) -> None:
    """Check that all of `size` bytes at `address` are mapped."""
    if memory.span(address, address + size) is None:
        raise DamageError(f"{where}: {address:#x} is not mapped by any operation")


def _check_words(image: Image, memory: Memory) -> None:
    """Check that changed words are in the order of their addresses, each in private memory that may be written."""
    last = -1
    end = 0  # of the mapping that contains the last address
    for index, (address, _) in enumerate(image.words):
        if last < address < end and not address % 8:
            last = address
            continue
        where = f"section words, record {index}"
        if address % 8 or address <= last:
            raise DamageError(
                f"{where}: {address:#x} is not a multiple of 8, or not above the previous record's address"
            )
        last = address
        at = memory.at(address)
        if at is None:
            raise DamageError(f"{where}: {address:#x} is not mapped by any operation")
        mapping = memory.mappings[at]
        if mapping.kind not in ("anonymous", "file", "data") or "w" not in mapping.protection:
            raise DamageError(f"{where}: {address:#x} is not in private memory that may be written")
        end = mapping.end


def _check_disjoint(items: Sequence[Operation], what: str) -> None:
    for index in range(1, len(items)):
        if items[index].address < items[index - 1].end:
            raise DamageError(f"operations: two {what} overlap at {items[index].address:#x}")


def _check_process(image: Image, memory: Memory) -> None:
    process = image.process
    # prctl(2), PR_SET_MM_MAP, requires this; see validate_prctl_map_addr in the kernel's kernel/sys.c.
    for name in ("code", "data", "brk", "arguments", "environment"):
        start, end = getattr(process, f"{name}_start"), getattr(process, f"{name}_end")
        if start > end or end > _USER_END:
            raise DamageError(f"process: {name} ends at {end:#x}, before its beginning at {start:#x} or out of bounds")
    for name in ("vdso", "vvar"):
        start, size = getattr(process, f"{name}_start"), getattr(process, f"{name}_bytes")
        if start % layout.PAGE_BYTES or size % layout.PAGE_BYTES or start + size > _USER_END:
            raise DamageError(
                f"process: {name}, {size} bytes at {start:#x}, does not consist of whole pages below {_USER_END:#x}"
            )
    if process.vvar_start + process.vvar_bytes > process.vdso_start:
        raise DamageError(f"process: vvar at {process.vvar_start:#x} does not end before the vDSO")
    if not process.vdso_bytes:
        raise DamageError("process: it has no vDSO, and freeze refuses such a process")
    if len(image.vdso) != process.vdso_bytes or layout.checksum(image.vdso) != process.vdso_hash:
        raise DamageError("process: the size or hash of the vDSO does not match the section vdso")
    if process.umask > 0o777:
        raise DamageError(f"process: umask {process.umask:#o} is above 0o777")
    _check_mapped(memory, process.stack_start, 1, "process: stack_start")
    _check_mapped(memory, process.landing, 1, "process: landing")
    if process.landing % 8 or process.parcel % layout.PAGE_BYTES or process.parcel_bytes % layout.PAGE_BYTES:
        raise DamageError(f"process: landing {process.landing:#x} or parcel {process.parcel:#x} is not aligned")
    _check_mapped(memory, process.parcel, max(process.parcel_bytes, 1), "process: parcel")
    if len(image.signals) != layout.SIGNALS:
        raise DamageError(f"section signals: has {len(image.signals)} records instead of {layout.SIGNALS}")
    if not image.host.glibc:
        raise DamageError("header: the version of glibc is missing")


def _check_threads(image: Image, memory: Memory) -> None:
    if not image.threads:
        raise DamageError("section threads: is empty, but a process has at least one thread")
    seen: set[int] = set()
    for index, thread in enumerate(image.threads):
        where = f"thread {index}"
        if thread.tid < 1 or thread.tid in seen:
            raise DamageError(f"{where}: its id {thread.tid} is not valid, or another thread has the same id")
        seen.add(thread.tid)
        if thread.context % 8:
            raise DamageError(f"{where}: its context, {thread.context:#x}, is not aligned")
        _check_mapped(memory, thread.context, 1, f"{where}: context")
        for name in ("clear_child_tid", "robust_list", "rseq"):
            address = getattr(thread, name)
            if address:
                _check_mapped(memory, address, 1, f"{where}: {name}")


def _check_descriptors(image: Image) -> None:
    known: dict[int, Descriptor] = {}
    for index, item in enumerate(image.descriptors):
        where = f"descriptor {index} ({item.kind}), number {item.number}"
        if not 0 <= item.number < _NUMBER_END or (known and item.number <= next(reversed(known))):
            raise DamageError(f"{where}: its number is not above the number of the record before it, or is not valid")
        if item.kind == "copy" and item.index >= index:
            raise DamageError(f"{where}: is a copy of record {item.index}, which is not an earlier record")
        known[item.number] = item
        _check_contents(image, item, where)
    for item in known.values():
        other = known.get(item.index)
        if item.kind == "socketpair" and (not other or other.kind != "socketpair" or other.index != item.number):
            raise DamageError(
                f"descriptor {item.number}: its other end, descriptor {item.index}, does not belong to the same socket "
                "pair"
            )
    for index, watch in enumerate(image.epoll):
        if watch.epoll not in known or known[watch.epoll].kind != "epoll":
            raise DamageError(f"section epoll, record {index}: descriptor {watch.epoll} is not an epoll descriptor")
        if watch.number not in known:
            raise DamageError(f"section epoll, record {index}: watches descriptor {watch.number}, which is not open")


def _check_sockets_and_rings(image: Image) -> None:
    for index, socket in enumerate(image.sockets):
        if socket.first_option + socket.option_count > len(image.options):
            raise DamageError(f"section sockets, record {index}: its options are not all in the image")
    for index, ring in enumerate(image.rings):
        for at, size in ((ring.rings, ring.rings_bytes), (ring.requests, ring.requests_bytes)):
            if not at or at % layout.PAGE_BYTES or not size or size % layout.PAGE_BYTES or not ring.entries:
                raise DamageError(f"section rings, record {index}: its mappings are empty or not whole pages")


def _check_contents(image: Image, item: Descriptor, where: str) -> None:
    """Check a descriptor's `index`, `value` and `data` by its kind."""
    limits = {
        "file": len(image.files),
        "device": len(image.files),
        "object": len(image.objects),
        "eventfd": 2,
        "socket": len(image.sockets),
        "ring": len(image.rings),
    }
    if item.index >= limits.get(item.kind, item.index + 1):
        raise DamageError(f"{where}: its index {item.index} is not below {limits[item.kind]}")
    if not item.data_bytes:
        return
    if item.kind not in ("pipe_read", "socketpair") or (item.kind == "pipe_read" and item.data_bytes > item.value):
        raise DamageError(
            f"{where}: holds {item.data_bytes} bytes; only an end of a socket pair, or the reading end of a pipe up to "
            "its capacity, may hold data"
        )
    _check_stored(image, item.data_offset, item.data_bytes, where)
