"""The layout exists three times: ``image.h``, the decoder and ``docs/reference/snapshot-format.md`` agree on every
byte."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from collections.abc import Callable
from fcntl import F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_WRITE
from mmap import PROT_EXEC, PROT_READ, PROT_WRITE
from pathlib import Path

import pytest

from tests.architecture import image_header
from tests.architecture.image_header import Header, parse
from tests.unit import snapshot_images
from thawd.snapshot.inspect import layout, reader

# Collapse runs of spaces, so that a change of alignment has no effect.
SOURCE = re.sub(r"(?<=\S) +", " ", image_header.HEADER.read_text())
PAGE = (image_header.HEADER.parents[1] / "docs" / "reference" / "snapshot-format.md").read_text()

# Constants of the header, and their names in the decoder.
CONSTANTS = {
    "IMAGE_MAGIC": layout.MAGIC.decode(),
    "IMAGE_LAYOUT": layout.LAYOUT,
    "IMAGE_ARCHITECTURE_X86_64": layout.ARCHITECTURE_X86_64,
    "IMAGE_PAGE": layout.PAGE_BYTES,
    "ZONE_START": layout.ZONE_START,
    "ZONE_BYTES": layout.ZONE_BYTES,
    "NO_INDEX": layout.NO_INDEX,
    "TIMER_CANCELLED_BY_SET": layout.TIMER_CANCELLED_BY_SET,
    "SOCKET_ADDRESS_BYTES": layout.SOCKET_ADDRESS_BYTES,
    "SOCKET_OPTION_BYTES": layout.SOCKET_OPTION_BYTES,
}

# For each enum: the prefix of its names, the name of the last enumerator if that counts the others (else None), and the
# decoder's table.
ENUMS: dict[str, tuple[str, str | None, dict[int, str]]] = {
    "section": ("SECTION_", "SECTION_COUNT", dict(enumerate(layout.SECTIONS))),
    "image_flag": ("IMAGE_", None, layout.IMAGE_FLAGS),
    "operation_kind": ("OPERATION_", "OPERATION_KINDS", dict(enumerate(layout.OPERATION_KINDS))),
    "advice": ("ADVICE_", None, layout.ADVICE),
    "operation_flag": ("OPERATION_", None, layout.OPERATION_FLAGS),
    "socket_revival": ("SOCKET_", "SOCKET_REVIVALS", dict(enumerate(layout.SOCKET_REVIVALS))),
    "descriptor_kind": ("DESCRIPTOR_", "DESCRIPTOR_KINDS", dict(enumerate(layout.DESCRIPTOR_KINDS))),
}


def enumerators(header: Header, enum: str) -> dict[str, int]:
    """Return the enumerators of an enum without the one that counts them."""
    return {
        name: value for name, value in header.enums[enum].items() if name not in [end for _, end, _ in ENUMS.values()]
    }


def decoder_mismatches(header: Header) -> list[str]:
    """Return the differences between the decoder and the header."""
    found = [f"constant {name}" for name in header.constants.keys() ^ CONSTANTS.keys()]
    found += [f"constant {name}" for name, value in CONSTANTS.items() if header.constants.get(name) != value]
    found += [f"enum {name}" for name in header.enums.keys() ^ ENUMS.keys()]
    for enum, (prefix, count, known) in ENUMS.items():
        named = {value: name.removeprefix(prefix).lower() for name, value in enumerators(header, enum).items()}
        if named != known or (count and header.enums[enum].get(count) != len(known)):
            found.append(f"enum {enum}")
    found += [f"struct {name}" for name in header.structs.keys() ^ layout.FIELDS.keys()]
    for struct in layout.FIELDS:
        theirs = [(item.name, item.offset, item.code, item.size_bytes) for item in header.structs.get(struct, ())]
        ours = [
            (item.name, item.offset, item.code + (f"*{item.repeat}" if item.repeat > 1 else ""), item.size_bytes)
            for item in layout.fields(struct)
        ]
        if theirs != ours or header.size_of(struct) != layout.size_of(struct):
            found.append(f"struct {struct}")
    records = {name.removeprefix("SECTION_").lower(): struct for name, struct in header.records.items() if struct}
    if records != layout.RECORDS or len(header.records) != len(layout.SECTIONS):
        found.append("records of the sections")
    return found


def page_mismatches(header: Header, page: str) -> list[str]:
    """Return the differences between the page and the header."""
    found = [f"struct {name}" for name in set(re.findall(r"^### `struct (\w+)`", page, re.M)) ^ header.structs.keys()]
    found += [f"enum {name}" for name in set(re.findall(r"^### `enum (\w+)`", page, re.M)) ^ header.enums.keys()]
    for struct, fields in header.structs.items():
        rows = [[str(item.offset), str(item.size_bytes), f"`{item.c_type}`", f"`{item.name}`"] for item in fields]
        heading = f"### `struct {struct}`, {header.size_of(struct)} bytes"
        if [row[:4] for row in table(page, heading)] != rows:
            found.append(f"struct {struct}")
    for enum in header.enums:
        rows = [[str(value), f"`{name}`"] for name, value in enumerators(header, enum).items()]
        if [row[:2] for row in table(page, f"### `enum {enum}`")] != rows:
            found.append(f"enum {enum}")
    constants = {row[0].strip("`"): row[1].strip("`") for row in table(page, "| constant | value | meaning |")}
    if constants.keys() != header.constants.keys():
        found.append("constants")
    for name, value in constants.items():
        if (value if value == "THAWDIMG" else int(value, 0)) != header.constants.get(name):
            found.append(f"constant {name}")
    return found


def table(page: str, heading: str) -> list[list[str]]:
    """Return the rows of the table below a line or a heading; none if the line is missing."""
    _, there, after = page.partition(heading + "\n")
    lines = after.lstrip("\n").splitlines() if there else []
    rows: list[list[str]] = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    rulers = [index for index, row in enumerate(rows) if set(row[0]) == {"-"}]
    return rows[rulers[0] + 1 :] if rulers else []


def test_the_decoder_has_the_layout_of_the_header() -> None:
    assert decoder_mismatches(parse(SOURCE)) == []


def test_the_page_has_the_layout_of_the_header() -> None:
    assert page_mismatches(parse(SOURCE), PAGE) == []


# Changes of the header, and for each the differences that must be found.
CHANGES = {
    "a field is renamed": ("int32_t tid; ", "int32_t id; ", "struct thread_state"),
    "two fields change places": ("fs_base, gs_base;", "gs_base, fs_base;", "struct thread_state"),
    "a field gets another type": ("int64_t modified_ns;", "uint64_t modified_ns;", "struct file_identity"),
    "a text gets longer": ("char boot_id[40];", "char boot_id[48];", "struct host_key"),
    "a field is added": ("uint32_t seals;", "uint32_t seals; uint64_t owner;", "struct memory_object"),
    "a field goes": ("    uint64_t position;\n", "", "struct descriptor"),
    "a kind is added": ("    OPERATION_KINDS\n", "    OPERATION_HOLE,\n    OPERATION_KINDS\n", "enum operation_kind"),
    "two kinds change places": ("DESCRIPTOR_EVENTFD,", "DESCRIPTOR_EPOLL_,", "enum descriptor_kind"),
    "a flag gets another bit": ("OPERATION_STACK = 2,", "OPERATION_STACK = 4,", "enum operation_flag"),
    "advice goes": ("    ADVICE_RANDOM = 256,\n", "", "enum advice"),
    "a section is added": ("    SECTION_COUNT\n", "    SECTION_NOTES, // bytes\n    SECTION_COUNT\n", "enum section"),
    "a constant changes": ("UINT64_C(0x3f0000000000)", "UINT64_C(0x3e0000000000)", "constant ZONE_START"),
    "the layout's version changes": ("#define IMAGE_LAYOUT 4", "#define IMAGE_LAYOUT 5", "constant IMAGE_LAYOUT"),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_no_change_of_the_header_goes_unnoticed(change: tuple[str, str, str]) -> None:
    old, new, noticed = change
    assert SOURCE.count(old) == 1
    changed = parse(SOURCE.replace(old, new))
    assert noticed in decoder_mismatches(changed)
    assert noticed in page_mismatches(changed, PAGE)


def test_a_section_that_holds_other_records_is_noticed() -> None:
    changed = parse(SOURCE.replace("SECTION_FILES, // struct file_identity", "SECTION_FILES, // struct memory_object"))
    assert "records of the sections" in decoder_mismatches(changed)


PAGE_CHANGES: dict[str, Callable[[str], str]] = {
    "an offset": lambda page: page.replace("| 48 | 4 | `int32_t` | `tid` |", "| 44 | 4 | `int32_t` | `tid` |"),
    "a type": lambda page: page.replace("`int32_t` | `tid` |", "`uint32_t` | `tid` |"),
    "a row less": lambda page: re.sub(r"\| 4 \| `ADVICE_HUGEPAGE` .*\n", "", page),
    "a table less": lambda page: re.sub(r"### `struct descriptor`(.|\n)*?\n### ", "### ", page),
    "a table more": lambda page: page + "\n### `struct ghost`, 8 bytes\n",
    "a constant": lambda page: page.replace("| `NO_INDEX` | 0xffffffff |", "| `NO_INDEX` | 0 |"),
    "the size of a struct": lambda page: page.replace("`struct descriptor`, 48 bytes", "`struct descriptor`, 56 bytes"),
}


@pytest.mark.parametrize("change", PAGE_CHANGES.values(), ids=PAGE_CHANGES.keys())
def test_no_change_of_the_page_goes_unnoticed(change: Callable[[str], str]) -> None:
    assert change(PAGE) != PAGE
    assert len(set(page_mismatches(parse(SOURCE), change(PAGE)))) == 1


def test_bits_that_the_system_defines_are_the_systems() -> None:
    assert layout.PROTECTION == {PROT_READ: "read", PROT_WRITE: "write", PROT_EXEC: "exec"}
    seals = {F_SEAL_SEAL: "seal", F_SEAL_SHRINK: "shrink", F_SEAL_GROW: "grow", F_SEAL_WRITE: "write"}
    # Source: include/uapi/linux/fcntl.h. Python has names for these two seals only from 3.13 on, or not at all.
    assert {**seals, 0x10: "future_write", 0x20: "exec"} == layout.SEALS


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile a program that prints the compiler's layout of the header and the checksum of the program's input."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    header = parse(SOURCE)
    lines = [
        f'printf("{struct}.{item.name} %zu %zu\\n", offsetof(struct {struct}, {item.name}), '
        f"sizeof((struct {struct} *)0)->{item.name});"
        for struct, fields in header.structs.items()
        for item in fields
    ]
    numbers = [name for enum in header.enums.values() for name in enum]
    numbers += [name for name, value in header.constants.items() if isinstance(value, int)]
    numbers += [f"sizeof(struct {struct})" for struct in header.structs]
    lines += [f'printf("{name} 0 %llu\\n", (unsigned long long){name});' for name in numbers]
    folder = tmp_path_factory.mktemp("compiled")
    (folder / "say.c").write_text(
        '#include "image.h"\n#include <stdio.h>\n'
        "static unsigned char data[1 << 16];\n"
        "int main(int count, char **arguments) {\n    (void)arguments;\n"
        "    if (count > 1) {\n"
        '        printf("%llx\\n", (unsigned long long)checksum(data, fread(data, 1, sizeof data, stdin)));\n'
        "        return 0;\n    }\n    " + "\n    ".join(lines) + "\n    return 0;\n}\n"
    )
    command = [compiler, "-std=gnu11", "-I", str(image_header.HEADER.parent), "-o", "say", "say.c"]
    subprocess.run(command, cwd=folder, check=True, timeout=300)
    return folder / "say"


def test_the_compiler_reads_the_header_as_this_parser_does(compiled: Path) -> None:
    header = parse(SOURCE)
    expected = {
        f"{struct}.{item.name} {item.offset} {item.size_bytes}"
        for struct, fields in header.structs.items()
        for item in fields
    }
    expected |= {f"sizeof(struct {struct}) 0 {header.size_of(struct)}" for struct in header.structs}
    expected |= {f"{name} 0 {value}" for enum in header.enums.values() for name, value in enum.items()}
    expected |= {f"{name} 0 {value}" for name, value in header.constants.items() if isinstance(value, int)}
    said = subprocess.run([compiled], capture_output=True, text=True, check=True, timeout=300).stdout.splitlines()
    assert set(said) == expected


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 64, 1001, 65536])
def test_all_checksums_are_the_compilers(compiled: Path, size: int) -> None:
    data = random.Random(size).randbytes(size)
    done = subprocess.run([compiled, "checksum"], input=data, capture_output=True, check=True, timeout=300)
    assert int(done.stdout, 16) == layout.checksum(data) == snapshot_images.checksum(data)


def test_the_page_names_every_key_of_a_description(tmp_path: Path) -> None:
    image = reader.read(snapshot_images.whole().write(tmp_path / "image"))
    rows = table(PAGE, "| key | holds |")
    described = reader.describe(image)
    documented = {key: row[1] for row in rows for key in re.findall(r"`(\w+)`", row[0])}
    assert documented.keys() == described.keys()
    for key in (
        "file",
        "memory",
        "process",
        "kinds",
        "largest",
        "files",
        "mappings",
        "objects",
        "threads",
        "descriptors",
    ):
        inner = described[key] if isinstance(described[key], dict) else described[key][0]
        words = set(re.findall(r"`(\w+)`", " ".join(documented[name] for name in (key, "mappings"))))
        assert inner.keys() <= words, key
