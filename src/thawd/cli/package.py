"""The command ``thawd package``: make deployment packages for AWS Lambda."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from thawd.cli.exits import fail
from thawd.cli.options import check_page, config_option, examples, load
from thawd.cli.output import print_text
from thawd.system.suggestions import did_you_mean

if TYPE_CHECKING:
    from thawd.deploy.packages.making import Order, Packages
    from thawd.deploy.packages.preparing import Prepared

_PATH = click.Path(path_type=Path)


@click.command(
    epilog=examples(
        "thawd package                                      # the plan for all functions",
        "thawd package classify -o packages --python 3.13   # make the archives",
        "thawd package --architecture arm64 --explain",
        "thawd package classify --html size.html            # what is large, and why",
    )
)
@click.argument("functions", nargs=-1, metavar="[FUNCTION]...")
@click.option(
    "-o", "--output", type=_PATH, help="Write the archives and packages.json into this folder. Default: only plan."
)
@click.option(
    "--architecture",
    type=click.Choice(["x86_64", "arm64"]),
    default="x86_64",
    show_default=True,
    help="Processor architecture of the functions on Lambda.",
)
@click.option(
    "--python", metavar="VERSION", help="Python version on Lambda, such as 3.13. Default: that of the function."
)
@click.option(
    "--as",
    "form",
    type=click.Choice(["auto", "zip", "layers", "split", "image"]),
    default="auto",
    show_default=True,
    help="Form of the packages: one zip file; code and layers; a zip file and a part that the function fetches from "
    "S3; a container image. auto: the first of them that fits.",
)
@click.option(
    "--parts-url",
    metavar="URL",
    default="",
    help="Where the part of a split package will be, such as s3://bucket/prefix. Default: as the environment variable "
    "PACKAGE_PARTS_URL of the function says.",
)
@click.option("--untried", is_flag=True, help="Do not import the handlers from the finished archives.")
@click.option("--explain", is_flag=True, help="Also show what was left out of the packages, by rule.")
@click.option(
    "--html",
    "html_path",
    type=_PATH,
    help="Write a page with a picture of what is large into this file. Needs thawd[bench].",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@config_option
def package(**options: Any) -> None:
    """Make deployment packages of FUNCTIONs for AWS Lambda. Without FUNCTION, of all functions.

    Requirements are installed from wheels for Lambda's operating system, not for this machine's. Files that a function
    does not need when it runs are left out: tests, type stubs, symbol tables and so on. The command plans which form
    each package has. With --output, it writes the archives, then imports each handler from them in a process that sees
    nothing else. The same files always give the same archives.
    """
    from thawd.deploy.packages import making
    from thawd.deploy.packages.targets import python_version
    from thawd.errors import ThawdError

    settings = load(options["config_path"])
    names: tuple[str, ...] = tuple(dict.fromkeys(options["functions"])) or tuple(settings.functions)
    for name in names:
        if name not in settings.functions:
            fail(f"there is no function {name!r}; {did_you_mean(name, settings.functions)}")
    if not names:
        fail(f"{settings.path} has no functions")
    check_page(options["html_path"])
    if options["output"] is not None and options["output"].exists() and not options["output"].is_dir():
        fail(f"{options['output']} is no folder; name a folder for the archives")
    try:
        order = making.Order(
            output=options["output"],
            architecture=options["architecture"],
            python=None if options["python"] is None else python_version(options["python"]),
            form=options["form"],
            parts_url=options["parts_url"],
            tries_imports=not options["untried"],
        )
        made = making.make(settings, names, order, lambda line: click.echo(line, err=True))
        images, failed = _write_images(made, order, options["config_path"])
    except ThawdError as error:
        fail(error.message)
    if options["as_json"]:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(made.document())).decode())
    else:
        _print(made, images, explain=options["explain"], output=options["output"])
    if options["html_path"] is not None:
        from thawd.deploy.packages.page import page

        options["html_path"].write_text(page(made))
    if failed:
        fail("\n".join(failed))


def _print(made: Packages, images: Mapping[str, str], *, explain: bool, output: Path | None) -> None:
    from thawd.deploy.packages.planning import mb

    rows = []
    for each, ready in zip(made.plan.functions, made.prepared, strict=True):
        archive = made.files.get(each.function)
        packed = ready.contents.packed_bytes
        rows.append(
            {
                "function": each.function,
                "form": each.form,
                "for": f"{each.runtime or 'image'} {each.architecture}",
                "all files": mb(ready.before_bytes),
                "without unneeded": "-" if each.form == "image" else mb(each.unpacked_bytes),
                "packed": "-" if packed is None else mb(packed),
                "zip file": "-" if archive is None else mb(archive.size_bytes),
                "upload": "-" if each.form == "image" else "request" if each.direct else "S3",
                "import": made.trials[each.function].state,
            }
        )
    print_text(rows, key_name="function")
    _print_layers(made)
    for each, ready in zip(made.plan.functions, made.prepared, strict=True):
        image = [images[each.function]] if each.function in images else []
        for line in (*_said(made, each.function), *image, *ready.notes):
            click.echo(f"{each.function}: {line}")
    if explain:
        _explain(made)
    if output is None:
        click.echo("nothing was written; -o FOLDER writes the archives")


def _print_layers(made: Packages) -> None:
    from thawd.deploy.packages.planning import mb

    rows = [
        {
            "layer": layer.name,
            "of": ", ".join(layer.functions),
            "unpacked": mb(layer.unpacked_bytes),
            "packed": mb(layer.packed_bytes),
            "upload": "request" if layer.direct else "S3",
            "distributions": ", ".join(layer.distributions),
        }
        for layer in made.plan.layers
    ]
    if rows:
        click.echo("")
        print_text(rows, key_name="layer")


def _said(made: Packages, name: str) -> list[str]:
    """Return what a user must know about a function's package, a line for each."""
    from thawd.deploy.packages.writing import part_key

    each = next(each for each in made.plan.functions if each.function == name)
    lines = list(each.why)
    if each.form == "split":
        part = made.files.get(part_key(name))
        where = "" if part is None else f" ({part.file})"
        lines.append(f"the part{where} contains {', '.join(each.part)}; upload it to S3, and set PACKAGE_PARTS_URL")
        lines.append(f"on Lambda, its handler is {each.handler}")
    trial = made.trials[name]
    if trial.detail and made.files:
        lines.append(f"import: {trial.state}: {trial.detail}")
    return lines


def _write_images(made: Packages, order: Order, config_path: Path) -> tuple[dict[str, str], list[str]]:
    """Make the images of functions whose form is an image. Return what to say about each of them, and what failed."""
    from thawd.cli import image

    said: dict[str, str] = {}
    failed = []
    for each, ready in zip(made.plan.functions, made.prepared, strict=True):
        if each.form != "image":
            continue
        if order.output is None:
            said[each.function] = "-o FOLDER makes the image"
        elif (obstacle := _obstacle_to_image(ready, order)) is not None:
            failed.append(f"the image of {each.function} was not made: {obstacle}")
        else:
            file = order.output / f"{each.function}.tar"
            digest = image.write_function_image(config_path, each.function, file, (order.output.resolve(),))
            said[each.function] = (
                f"its image is {file} ({digest}); push it with: thawd image push {each.function.lower()} REGISTRY/NAME"
            )
    return said, failed


def _obstacle_to_image(ready: Prepared, order: Order) -> str | None:
    """Return why `thawd image build` would make another image than the one that was planned."""
    if not ready.target.is_of_this_machine():
        return f"images are made for this machine's architecture, not for {ready.target.architecture}"
    if order.python is not None:
        return "images have the Python version that thawd.toml declares; leave out --python, and declare runtime"
    if ready.contents.pieces and ready.function.requirements is None:
        return "images have the requirements that thawd.toml declares; declare requirements"
    return None


def _explain(made: Packages) -> None:
    from thawd.deploy.packages.removal import RULES

    for each, ready in zip(made.plan.functions, made.prepared, strict=True):
        click.echo(f"\n{ready.function.name}: left out")
        if each.form == "image":
            click.echo("nothing: an image contains all files")
        else:
            _print_rules(ready)
    click.echo("")
    for rule, meaning in RULES.items():
        click.echo(f"{rule}: {meaning}")


def _print_rules(ready: Prepared) -> None:
    from thawd.deploy.packages.removal import RULES

    rows = []
    for rule in RULES:
        taken = sorted((it for it in ready.removed if it.rule == rule), key=lambda it: -it.size_bytes)
        if not taken:
            continue
        rows.append(
            {
                "rule": rule,
                "files": f"{sum(it.files for it in taken):,}",
                "bytes": f"{sum(it.size_bytes for it in taken):,}",
                "most in": ", ".join(f"{it.distribution} {it.size_bytes:,}" for it in taken[:3]),
            }
        )
    if rows:
        print_text(rows, key_name="rule")
    else:
        click.echo("nothing")
