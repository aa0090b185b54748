"""`thawd up --watch` with functions of container images that are built again."""

from __future__ import annotations

from tests.image_roots import add_image
from tests.integration.conftest import Project, eventually
from thawd.oci.image_store import Images
from thawd.oci.layout_writing import write_archive


def test_watching_publishes_an_image_that_was_built_again_under_its_name_or_in_its_file(project: Project) -> None:
    project.data.mkdir(mode=0o700)
    store = Images(project.data / "images")
    code = "def handler(event, context):\n    return {}\n"

    def made(number: int) -> None:
        add_image(store, "built:1", {"var/task/app.py": code.format(number)})
        digest = add_image(store, "other:1", {"var/task/app.py": code.format(number * 10)})
        write_archive(store, digest, project.root / "built.tar", name=None)

    made(1)
    project.config(
        '[functions.f]\nimage = "built:1"\nsnapshot = false\n'
        '[functions.g]\nimage = "docker-archive:built.tar"\nsnapshot = false\n'
    )
    with project.up("--watch") as running:
        assert (running.invoke("f", {})[0], running.invoke("g", {})[0]) == (1, 10)
        greeting = [line.split() for line in running.output]
        assert ["function", "f", "cold", "built:1"] in greeting
        assert ["function", "g", "cold", "docker-archive:built.tar"] in greeting
        for number in (2, 3):
            made(number)
            eventually(lambda n=number: running.invoke("f", {})[0] == n, what="the name's new image")
            eventually(lambda n=number: running.invoke("g", {})[0] == 10 * n, what="the file's new image")
