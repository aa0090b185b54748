"""ephemeral_storage_mb: an environment with more in its temporary folder is ended, and the reason is reported."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.integration.conftest import Project, eventually
from thawd.snapshot.engine import unavailable

CODE = """
    import os, tempfile, time

    def fill(name, mb):
        with open(os.path.join(tempfile.gettempdir(), name), "wb") as file:
            os.posix_fallocate(file.fileno(), 0, mb << 20)

    if os.path.exists("big"):
        fill("init", 400)

    def handler(event, context):
        if event["mb"]:
            fill(event.get("name", "file"), event["mb"])
        time.sleep(event.get("s", 0))
        return os.getpid()
"""
SAID = "more than ephemeral_storage_mb = 512"


@pytest.mark.parametrize("options", ["", "snapshot = false\n"])
def test_an_invocation_that_writes_too_much_ends_and_is_told_why(project: Project, options: str) -> None:
    project.code(CODE)
    project.config(f'[functions.f]\nhandler = "app.handler"\n{options}')
    with project.up() as server:
        within, _ = server.invoke("f", {"mb": 400})
        document, error = server.invoke("f", {"mb": 600, "s": 30})
        assert error == "Unhandled"
        assert document["errorType"] == "Runtime.ExitError"
        assert document["errorMessage"].endswith(f"its temporary folder (/tmp) holds 600 MB, {SAID}")
        eventually(lambda: SAID in project.command("logs", "f", "--raw").stdout, what="the reason in the log")
        assert server.invoke("f", {"mb": 0})[0] != within
        eventually(lambda: not list((project.data / "tmp").glob("*/file")), what="the end of the folder")


def test_one_that_wrote_too_much_and_answered_is_not_used_for_long(project: Project) -> None:
    project.code(CODE)
    project.config('[functions.f]\nhandler = "app.handler"\n')
    with project.up() as server:
        # An environment whose folder is measured during the invocation ends with that invocation, so try again.
        answered = eventually(lambda: (found := server.invoke("f", {"mb": 600}))[1] is None and found, what="an answer")
        first = answered[0]
        eventually(lambda: not any(server.function("f")["environments"].values()), what="its end")
        assert server.invoke("f", {"mb": 0})[0] != first


@pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
def test_what_init_left_counts_and_more_may_be_allowed(project: Project) -> None:
    project.code(CODE)
    project.code("", "big")
    project.config(
        '[functions.f]\nhandler = "app.handler"\n'
        '[functions.large]\nhandler = "app.handler"\nephemeral_storage_mb = 1024\n'
    )
    with project.up() as server:
        event = {"mb": 200, "name": "more", "s": 5}
        assert server.invoke("large", event)[1] is None
        document, error = server.invoke("f", event)
        assert (error, SAID in document["errorMessage"]) == ("Unhandled", True)
        assert server.function("f")["starts"].keys() == {"thaw"}


def test_folders_that_cannot_be_measured_end_their_environment_and_no_others_watch(project: Project) -> None:
    project.code("""
        import os, tempfile, time

        def handler(event, context):
            os.chdir(tempfile.gettempdir())
            if event["deep"]:
                for _ in range(30):
                    os.mkdir("x" * 200)
                    os.chdir("x" * 200)
            else:
                with open("file", "wb") as file:
                    os.posix_fallocate(file.fileno(), 0, 600 << 20)
            time.sleep(30)
    """)
    project.config('[functions.f]\nhandler = "app.handler"\n[functions.g]\nhandler = "app.handler"\n')
    with project.up() as server, ThreadPoolExecutor() as pool:
        deep = [pool.submit(server.invoke, name, {"deep": True}) for name in ("f", "g")]
        large = pool.submit(server.invoke, "g", {"deep": False})
        for ended in deep:
            message = ended.result()[0]["errorMessage"]
            assert message.endswith("its temporary folder (/tmp) has paths that are too long to read its size")
        assert SAID in large.result()[0]["errorMessage"]
        eventually(lambda: not list((project.data / "tmp").glob(".old-*")), what="the end of the folders")
