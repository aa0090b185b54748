"""Carries out the instructions that make layers: COPY, ADD, RUN, and the folder of WORKDIR."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from thawd.deploy.images import added_archives, copy_instructions, run_instruction
from thawd.deploy.images.copy_instructions import Destination, Sources
from thawd.deploy.images.dockerfile.ignoring import Ignored, read_ignored
from thawd.deploy.images.dockerfile.parsing import Dockerfile, Heredoc, Instruction
from thawd.deploy.images.dockerfile.planning import evaluated
from thawd.deploy.images.dockerfile.substitution import split_words
from thawd.deploy.images.run_mounts import RunMount, parse_mount, write_tree
from thawd.deploy.images.stage_state import PATH, StageState
from thawd.deploy.images.step_records import StepRecords
from thawd.errors import ImageError
from thawd.oci.image_paths import resolve_folder
from thawd.oci.image_store import Images
from thawd.oci.layer_writing import EPOCH_S, NewEntry, content_digest
from thawd.oci.removing import remove_tree
from thawd.system import folders

_URL = re.compile(r"(https?|git|ssh)://|git@")
_PACKAGE_MANAGERS = re.compile(r"\b(?:dnf|microdnf|yum|apt-get|apt|apk)\s+(?:-\S+\s+)*(?:install|add|update|upgrade)\b")
# Docker passes these to RUN without a declaration.
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY")


@dataclass(frozen=True, slots=True)
class StepContext:
    """The objects that all steps of a build use.

    Attributes:
        images: the store.
        folder: the build's folder.
        file: the Dockerfile.
        use_cache: whether layers of earlier builds are taken.
        on_line: called with each line of progress.
        not_copied: paths that COPY always leaves out.
    """

    images: Images
    folder: Path
    file: Dockerfile
    use_cache: bool
    on_line: Callable[[str], None]
    not_copied: tuple[Path, ...] = ()


class Steps:
    """The steps of one build.

    Args:
        context: the objects that all steps use.

    Raises:
        ImageError: .dockerignore cannot be read.
    """

    def __init__(self, context: StepContext) -> None:
        self._context = context
        self._images = context.images
        self._records = StepRecords(context.images, use_cache=context.use_cache, on_line=context.on_line)
        self._context_sources = Sources(
            context.folder,
            read_ignored(context.file.path, context.folder, always=[context.images.folder, *context.not_copied]),
            f"the build's folder {context.folder}",
        )

    def copy(self, state: StageState, instruction: Instruction, root: Path | None) -> None:
        """Carry out a COPY.

        Args:
            state: the stage.
            instruction: the instruction.
            root: root of the image that ``--from`` names; None: the build's folder.
        """
        words = self._words(state, instruction)
        destination = self._destination(state, instruction, words[-1])
        entries: dict[str, NewEntry] = {}
        if root is None:
            sources = self._context_sources
        else:
            sources = Sources(root, Ignored(()), f"the image {dict(instruction.flags)['from']}")
        named = [word for word in words[:-1] if not word.startswith("<<")]
        if named:
            entries |= copy_instructions.copied(sources, named, destination)
        if instruction.heredocs:
            entries |= copy_instructions.written(self._texts(state, instruction), destination)
        self._add_layer(state, instruction, entries)

    def add(self, state: StageState, instruction: Instruction) -> None:
        """Carry out an ADD. It differs from COPY in that tar files are unpacked."""
        words = self._words(state, instruction)
        for word in words[:-1]:
            if _URL.match(word):
                raise ImageError(f"ADD {word} would download: fetch the file before the build, and COPY it")
        destination = self._destination(state, instruction, words[-1])
        entries: dict[str, NewEntry] = {}
        with contextlib.ExitStack() as works:
            for word in (word for word in words[:-1] if not word.startswith("<<")):
                archive = self._archive(word)
                if archive is None:
                    entries |= copy_instructions.copied(self._context_sources, [word], destination)
                else:
                    work = self._work("add")
                    works.callback(remove_tree, work)
                    whole = Sources(added_archives.unpack(archive, work), Ignored(()), str(archive))
                    into = replace(destination, path=f"{destination.path.rstrip('/')}/", mode=None)
                    entries |= copy_instructions.copied(whole, [""], into)
            if instruction.heredocs:
                entries |= copy_instructions.written(self._texts(state, instruction), destination)
            self._add_layer(state, instruction, entries)

    def _archive(self, word: str) -> Path | None:
        """Return the tar file that a source of ADD names; None: the source is not a tar file."""
        found = copy_instructions.copied(self._context_sources, [word], Destination(self._empty(), "/x/"))
        contents = [each.content for each in found.values() if each.content is not None]
        if len(contents) == 1 and isinstance(contents[0], Path) and added_archives.is_archive(contents[0]):
            return contents[0]
        return None

    def folder(self, state: StageState, path: str) -> None:
        """Make the folder of a WORKDIR, if the image does not have it."""
        root = self._root(state)
        made = f"WORKDIR {path}"
        destination = Destination(root, path.rstrip("/") + "/", owners=self._images.owners(root))
        state.step("WORKDIR", path)
        if copy_instructions.is_folder(destination):
            state.add(None, made)
            return
        inside = copy_instructions.inside(destination)
        entries = {inside: NewEntry(0o755)}
        copy_instructions.placed(entries, destination)
        state.add(self._records.layer(state.key, lambda: entries), made)

    def run(self, state: StageState, instruction: Instruction, root_of: Callable[[str], Path]) -> None:
        """Carry out a RUN.

        Args:
            state: the stage.
            instruction: the instruction.
            root_of: returns the root of the stage or image that a ``--mount`` names.
        """
        arguments = list(instruction.words) if instruction.words else self._shell_form(state, instruction)
        uid, gid, home = _user(self._root(state), state.config.user or "")
        proxies = {name: value for name, value in os.environ.items() if name.upper() in _PROXIES}
        env = {"PATH": PATH, "HOME": home, "SOURCE_DATE_EPOCH": str(EPOCH_S), **state.args, **state.env}
        working_dir = state.config.working_dir or "/"
        mounts = [parse_mount(value, working_dir) for name, value in instruction.flags if name == "mount"]
        lent = {mount.target: self._lent(mount, root_of) for mount in mounts if mount.kind == "bind"}
        digests = [(target, content_digest(entries)) for target, entries in lent.items()]
        key = state.step("RUN", arguments, sorted(env.items()), working_dir, uid, gid, mounts, digests)

        def changes() -> dict[str, NewEntry]:
            binds = []
            for number, (target, entries) in enumerate(lent.items()):
                write_tree(entries, works[1 + number])
                binds.append((works[1 + number] / "x", target))
            scratch = tuple(mount.target for mount in mounts if mount.kind != "bind")
            command = run_instruction.Command(
                arguments, {**proxies, **env}, working_dir, uid, gid, scratch, tuple(binds)
            )
            root = self._root(state)
            owners = self._images.owners(root)
            try:
                return run_instruction.run(root, works[0], command, self._context.on_line, owners=owners)
            except ImageError as error:
                raise ImageError(f"{error}{_hint(arguments)}") from None

        works = [self._work("run") for _ in range(1 + len(lent))]
        try:
            layer = self._records.layer(key, changes)
        finally:
            for work in works:
                remove_tree(work)
        state.add(layer, f"RUN {instruction.rest}".split("\n")[0])

    def _lent(self, mount: RunMount, root_of: Callable[[str], Path]) -> dict[str, NewEntry]:
        """Return the file or folder of a ``--mount=type=bind`` under the name ``x``."""
        sources = self._context_sources
        if mount.image is not None:
            sources = Sources(root_of(mount.image), Ignored(()), f"the image {mount.image}")
        return copy_instructions.copied(sources, [mount.source], Destination(self._empty(), "/x"))

    def _shell_form(self, state: StageState, instruction: Instruction) -> list[str]:
        text = instruction.rest
        if len(instruction.heredocs) == 1 and re.fullmatch(r"<<-?['\"]?\w+['\"]?", text.split("\n")[0].strip()):
            # The text itself is the script.
            text = instruction.heredocs[0].content
            if text.startswith("#!"):
                raise ImageError("a script with #! is not supported in RUN <<: write RUN PROGRAM <<EOF")
        return [*state.shell, text]

    def _words(self, state: StageState, instruction: Instruction) -> list[str]:
        words = instruction.words
        if words is None:
            words = tuple(split_words(instruction.rest, self._context.file.escape))
        found = [
            word if word.startswith("<<") else evaluated(self._context.file, instruction, word, state.variables)
            for word in words
        ]
        if len(found) < 2:
            raise ImageError(f"{instruction.keyword} needs a source and a destination")
        return found

    def _texts(self, state: StageState, instruction: Instruction) -> list[tuple[str, str]]:
        def text(heredoc: Heredoc) -> str:
            if not heredoc.expands:
                return heredoc.content
            quoted = heredoc.content.replace('"', '\\"').replace("'", "\\'")
            return evaluated(self._context.file, instruction, quoted, state.variables)

        return [(heredoc.name, text(heredoc)) for heredoc in instruction.heredocs]

    def _destination(self, state: StageState, instruction: Instruction, path: str) -> Destination:
        flags = {
            name: evaluated(self._context.file, instruction, value, state.variables)
            for name, value in instruction.flags
            if name in ("chown", "chmod")
        }
        root = self._root(state)
        uid = gid = 0
        if "chown" in flags:
            uid, gid = _owner(root, flags["chown"])
        mode = None
        if "chmod" in flags:
            if not re.fullmatch(r"0?[0-7]{3,4}", flags["chmod"]):
                raise ImageError(f"--chmod={flags['chmod']}: write the mode in octal, such as --chmod=755")
            mode = int(flags["chmod"], 8)
        absolute = path if path.startswith("/") else f"{state.config.working_dir or ''}/{path}"
        if path in (".", "./") or path.endswith("/."):
            absolute += "/"
        return Destination(root, absolute, mode, uid, gid, self._images.owners(root))

    def _root(self, state: StageState) -> Path:
        if not state.layers:
            return self._empty()
        return self._images.tree(state.layer_digests, "the image so far", on_line=self._context.on_line)

    def _empty(self) -> Path:
        return self._images.tree([], "an empty image")

    def _work(self, name: str) -> Path:
        folder = self._images.folder / "new"
        folders.make(folder, mode=0o700)
        return folder / f"{name}-{os.urandom(8).hex()}"

    def _add_layer(self, state: StageState, instruction: Instruction, entries: dict[str, NewEntry]) -> None:
        digest = content_digest(entries)
        key = state.step(instruction.keyword, digest)

        def check() -> None:
            # The layer would be taken for the contents that the files had before, also by later builds.
            if content_digest(entries) != digest:
                raise ImageError("files were changed while they were copied; build again")

        layer = self._records.layer(key, lambda: entries, check=check)
        state.add(layer, f"{instruction.keyword} {instruction.rest}"[:200])


def _hint(arguments: list[str]) -> str:
    """Return what to do if a command needs a package manager, which the base images that thawd makes do not have."""
    if not _PACKAGE_MANAGERS.search(" ".join(arguments)):
        return ""
    return (
        "\nDoes the image have this package manager? The base image that thawd makes has none. Load AWS's own image "
        "first (`docker save` on another machine, `thawd image pull docker-archive:FILE`), and name that file in FROM"
    )


def _owner(root: Path, text: str) -> tuple[int, int]:
    user, _, group = text.partition(":")
    uid, own_group, _ = _user(root, user)
    if not group:
        return uid, uid if user.isdecimal() else own_group
    return uid, int(group) if group.isdecimal() else _named(root, "etc/group", group)[0]


def _user(root: Path, text: str) -> tuple[int, int, str]:
    """Return the ids and the home folder of a USER: numbers, or a name of the image's /etc/passwd."""
    user, _, group = text.partition(":")
    if not user:
        return 0, 0, "/root"
    if user.isdecimal():
        uid, gid, home = int(user), 0, "/"
    else:
        uid, gid, home = _named(root, "etc/passwd", user)
    if group:
        gid = int(group) if group.isdecimal() else _named(root, "etc/group", group)[0]
    return uid, gid, home


def _named(root: Path, path: str, name: str) -> tuple[int, int, str]:
    """Return the number, group and home folder of a line in /etc/passwd or /etc/group of the image."""
    folder, _, last = path.rpartition("/")
    file = Path(resolve_folder(str(root), [folder], what=f"/{path}") or root, last)
    if file.is_file() and not file.is_symlink():
        for line in file.read_text(errors="replace").splitlines():
            fields = line.split(":")
            if fields[0] == name and len(fields) > 2 and fields[2].isdecimal():
                gid = int(fields[3]) if len(fields) > 5 and fields[3].isdecimal() else 0
                return int(fields[2]), gid, fields[5] if len(fields) > 5 else "/"
    if name == "root":
        return 0, 0, "/root"
    raise ImageError(f"/{path} of the image has no {name!r}; use a number")
