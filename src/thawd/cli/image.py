"""The commands ``thawd image …``: build, fetch, push, list, show and remove container images, without Docker."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from thawd.cli.exits import VerbGroup, fail
from thawd.cli.options import check_writable, config_option, data_folder, examples, load
from thawd.cli.output import print_text
from thawd.errors import ImageError
from thawd.system.suggestions import did_you_mean

if TYPE_CHECKING:
    from thawd.oci.image_store import Images

_OUTPUTS = ("oci:", "tar:")


@click.group(
    name="image",
    cls=VerbGroup,
    epilog=examples(
        "thawd image build -t captions:1 .",
        "thawd image build --function classify -o tar:classify.tar",
        "thawd image build --function classify --with-snapshot -t classify:thawed",
        "thawd image push captions:1 localhost:5000/captions:1",
        "thawd image ls",
    ),
)
def group() -> None:
    """Build, fetch, push and list container images, without Docker.

    Images are kept in the folder `images` of the data folder. A function runs in one with `image = "NAME"` in
    thawd.toml, or with `--package-type Image` in the Lambda API. Images from registries need the extra images:
    pip install 'thawd[images]'.
    """


@group.command(epilog=examples("thawd image build -t captions:1 .", "thawd image build --function classify -o oci:out"))
@click.argument("context", metavar="[FOLDER]", default=".", type=click.Path(path_type=Path))
@click.option("-t", "--tag", "names", metavar="NAME", multiple=True, help="Name of the image, such as captions:1.")
@click.option("-f", "--file", type=click.Path(path_type=Path), help="The Dockerfile.  [default: FOLDER/Dockerfile]")
@click.option("--target", metavar="STAGE", help="Build this stage of the Dockerfile, not the last one.")
@click.option("--build-arg", "build_args", metavar="NAME=VALUE", multiple=True, help="Value for an ARG.")
@click.option("--no-cache", is_flag=True, help="Carry out every instruction again.")
@click.option("--function", metavar="FUNCTION", help="Make an image of this function of thawd.toml; no Dockerfile.")
@click.option(
    "--with-snapshot",
    is_flag=True,
    help="With --function: add thawd, and a snapshot of the function, frozen now.",
)
@click.option("-o", "--output", metavar="oci:FOLDER|tar:FILE", help="Also write the image into an OCI layout or file.")
@config_option
def build(  # noqa: PLR0913, PLR0917 - an option each
    context: Path,
    names: tuple[str, ...],
    file: Path | None,
    target: str | None,
    build_args: tuple[str, ...],
    no_cache: bool,
    function: str | None,
    with_snapshot: bool,
    output: str | None,
    config_path: Path,
) -> None:
    """Build an image from FOLDER/Dockerfile, or of a function.

    Instructions that were carried out before are not carried out again, unless their inputs have changed. FROM takes
    images of the store, image files, and images of registries that it names. For public.ecr.aws/lambda/python, an image
    with the same layout is made from an interpreter of this machine, if the store does not have AWS's.

    With --with-snapshot, the image contains thawd, which serves the function on port 8350 and thaws it there. It
    contains the memory and the environment variables of the initialised function: keep it as secret as those.
    """
    from thawd.deploy.images.building import BuildRequest
    from thawd.deploy.images.building import build as build_dockerfile
    from thawd.oci import references

    _check_output(output)
    if with_snapshot and function is None:
        fail("--with-snapshot needs --function; a snapshot of a container image's function is made where it is served")
    data = data_folder(config_path)
    # The next build would copy what this one writes.
    not_copied = (data, *((Path(output.partition(":")[2]).resolve(),) if output is not None else ()))
    images = _images(data)
    tags = [str(references.parse(name)) for name in names]
    if function is not None:
        with _disk(images):
            digest = _build_function(images, function, config_path, not_copied, with_snapshot=with_snapshot)
        tags = tags or [str(references.parse(function.lower()))]
    else:
        request = BuildRequest(
            context=context.resolve(),
            dockerfile=(context / "Dockerfile" if file is None else file).resolve(),
            target=target,
            build_args=_build_args(build_args),
            environ=os.environ,
            environments=data / "environments",
            use_cache=not no_cache,
            not_copied=not_copied,
        )
        with _disk(images):
            digest = build_dockerfile(images, request, _progress)
    with images.adding():
        for tag in tags:
            images.set_name(tag, digest)
    if output is not None:
        _write(images, digest, output, tags[0] if tags else None)
    click.echo(f"{', '.join(tags) or output or 'the image has no name (-t)'}  {digest}")


@group.command()
@click.argument("image")
@config_option
def pull(image: str, config_path: Path) -> None:
    """Fetch IMAGE from its registry, or read it from a file: oci:PATH or docker-archive:PATH."""
    from thawd.oci import image_lookup

    images = _images(data_folder(config_path))
    with _disk(images):
        digest = image_lookup.obtain(
            images, image, folder=Path.cwd(), environ=os.environ, on_line=_progress, refresh=True
        )
    click.echo(f"{image}  {digest}")


@group.command()
@click.argument("image")
@click.argument("target", required=False)
@config_option
def push(image: str, target: str | None, config_path: Path) -> None:
    """Push IMAGE to a registry.

    TARGET is the name there, such as localhost:5000/captions:1; without it, IMAGE itself must name its registry. The
    password is that of `docker login` or `podman login`.
    """
    from thawd.oci import image_lookup, references

    images = _images(data_folder(config_path))
    digest = _named(images, image)
    reference = references.parse(target or image)
    image_lookup.push(images, digest, reference, os.environ)
    click.echo(f"{reference}  {digest}")


@group.command("ls")
@config_option
def list_(config_path: Path) -> None:
    """List the images of the store."""
    data = data_folder(config_path)
    images = _images(data)
    rows = []
    for name, digest in sorted(images.names().items()):
        if name.startswith(f"{data}/functions/"):  # a server keeps the image of a version by such a name
            continue
        image = images.image(digest)
        size = f"{image.size_bytes / 1e6:.1f} MB"
        rows.append({"name": name, "digest": digest[:19], "layers": str(len(image.manifest.layers)), "size": size})
    if rows:
        print_text(rows, key_name="name")
    else:
        click.echo(f"no images in {images.folder}: build one with `thawd image build -t NAME`")


@group.command()
@click.argument("names", metavar="IMAGE...", nargs=-1)
@config_option
def rm(names: tuple[str, ...], config_path: Path) -> None:
    """Remove the names IMAGE..., and everything that no name needs any more.

    Without a name, only what is unused is removed. The root of a function that runs stays until the function ends.
    Layers of builds of the last seven days stay, too.
    """
    from thawd.deploy.images.step_records import recent
    from thawd.oci import image_lookup, references

    images = _images(data_folder(config_path))
    for name in names:
        stored = name if image_lookup.is_path(name) else str(references.parse(name))
        if not images.remove_name(stored):
            fail(f"there is no image {name}; `thawd image ls` lists them")
    freed = images.collect(keep=recent(images))
    click.echo(f"{freed / 1e6:.1f} MB of layers removed")


@group.command()
@click.argument("image")
@config_option
def inspect(image: str, config_path: Path) -> None:
    """Print an image's digest, configuration and layers as JSON."""
    import msgspec

    images = _images(data_folder(config_path))
    found = images.image(_named(images, image))
    document = {"digest": found.digest, "manifest": found.manifest, "config": found.config}
    click.echo(msgspec.json.format(msgspec.json.encode(document)).decode())


def write_function_image(config_path: Path, function: str, file: Path, not_copied: tuple[Path, ...]) -> str:
    """Make the image of a function, with the function's name, and write it into a tar file. Return its digest. Blocks.

    Args:
        config_path: the configuration file.
        function: a function that it declares.
        file: the tar file, which is replaced as a whole.
        not_copied: paths that are no part of the function's code.

    Raises:
        ThawdError: the image cannot be made.
        OSError: the file cannot be written.
    """
    from thawd.oci import references

    images = _images(data_folder(config_path))
    digest = _build_function(images, function, config_path, not_copied)
    name = str(references.parse(function.lower()))
    with images.adding():
        images.set_name(name, digest)
    _write(images, digest, f"tar:{file}", name)
    return digest


def _build_function(
    images: Images, name: str, config_path: Path, not_copied: tuple[Path, ...], *, with_snapshot: bool = False
) -> str:
    from thawd.deploy.images.function_image import FunctionImageRequest, build_function
    from thawd.deploy.images.snapshot_image import SnapshotImageRequest, build_with_snapshot

    settings = load(config_path)
    function = settings.functions.get(name)
    if function is None:
        fail(f"there is no function {name!r}; {did_you_mean(name, settings.functions)}")
    request = FunctionImageRequest(
        function=function,
        folder=config_path.resolve().parent,
        data=settings.server.data,
        not_code=[*settings.not_code(), *not_copied],
        environ=os.environ,
    )
    if with_snapshot:
        return build_with_snapshot(images, SnapshotImageRequest.of(request, config_path, _progress), _progress)
    return build_function(images, request, _progress)


def _build_args(texts: tuple[str, ...]) -> dict[str, str]:
    """Parse NAME=VALUE; NAME alone takes the value of the environment variable, as with Docker."""
    values: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if equals:
            values[name] = value
        elif name in os.environ:
            values[name] = os.environ[name]
    return values


def _check_output(output: str | None) -> None:
    """End the command if the output cannot be written, before the image is built."""
    if output is None:
        return
    kind, _, path = output.partition(":")
    if not output.startswith(_OUTPUTS) or not path:
        fail(f"--output {output}: write oci:FOLDER or tar:FILE")
    if kind == "tar":
        check_writable(Path(path))


@contextlib.contextmanager
def _disk(images: Images) -> Iterator[None]:
    """End the command if the disk of the store fails or is full, and name the store."""
    try:
        yield
    except OSError as error:
        fail(f"{error.filename or images.folder}: {error.strerror or error}; the images are in {images.folder}")


def _write(images: Images, digest: str, output: str, name: str | None) -> None:
    from thawd.oci.layout_writing import write_archive, write_folder

    kind, _, path = output.partition(":")
    write: Callable[..., None] = write_folder if kind == "oci" else write_archive
    write(images, digest, Path(path), name=name)


def _named(images: Images, text: str) -> str:
    """Return the digest of an image of the store by its name or digest."""
    from thawd.oci import image_lookup, references

    names = images.names()
    if text.startswith("sha256:"):
        return images.image(text).digest
    digest = names.get(text if image_lookup.is_path(text) else str(references.parse(text)))
    if digest is None:
        raise ImageError(f"there is no image {text} in {images.folder}; there: {', '.join(names) or 'none'}")
    return digest


def _images(data: Path) -> Images:
    from thawd.oci.image_store import Images

    return Images(data / "images")


def _progress(line: str) -> None:
    click.echo(line, err=True)
