"""This version takes over the data of earlier versions: everything they accepted, stored and published."""

from __future__ import annotations

import json
import tarfile
import time
import urllib.request
from pathlib import Path

import pytest

from tests.durability.disk import FaultyDisk
from tests.integration.conftest import Project, eventually

EARLIER = sorted(Path(__file__).parent.glob("*.tar.xz"))


@pytest.mark.parametrize("archive", EARLIER, ids=lambda path: path.name.removesuffix(".tar.xz"))
def test_everything_an_earlier_version_held_is_taken_over(tmp_path: Path, archive: Path) -> None:
    # Given the project folder of a server of an earlier version that was killed
    with tarfile.open(archive) as archived:
        archived.extractall(tmp_path, filter="data")
    project = Project(tmp_path / "project")

    def rows() -> dict[str, dict[str, int]]:
        lines = project.command("table", "rows", "--format", "jsonl").stdout.splitlines()
        return {item["_key"]: item for item in map(json.loads, lines)}

    # When this version serves the project, a minute after the server was killed: events grow too old in six hours
    clock = FaultyDisk(tmp_path / "no files", tmp_path / "aside", seed=1)
    killed_s = (tmp_path / "project" / ".thawd" / "thawd.db-wal").stat().st_mtime
    clock.clock_offset_ns = int((killed_s + 60 - time.time()) * 1e9)
    with project.up(environ=clock.environ) as running:
        # Then functions made through the API answer as before, by version, by alias and with the newest code
        functions = running.client()
        assert running.invoke("made", 1) == (["blue", "$LATEST", 1], None)
        assert running.invoke("made", 2, Qualifier="live") == (["green", "1", 2], None)
        arn = functions.get_function(FunctionName="made")["Configuration"]["FunctionArn"]
        assert functions.list_tags(Resource=arn)["Tags"] == {"team": "vision"}
        # and accepted events run, including the one that had started
        assert running.invoke("recorder", {"open": True}) == ({"open": True}, None)
        eventually(lambda: {f"event-{number}" for number in range(5)} <= set(rows()), what="the events that waited")
        # and the dead letter is listed and can be redriven
        (letter,) = [json.loads(line) for line in project.command("dead", "list", "--json").stdout.splitlines()]
        assert letter["function"] == "failing"
        # and buckets are watched (unpacked files count as new ones, because they have other inodes)
        running.s3().put_object(Bucket="uploads", Key="after", Body=b"xxxx")
        eventually(lambda: "after" in rows(), what="the row of a new object")
        sizes = {key: item["size"] for key, item in rows().items() if "size" in item}
        assert sizes == {"before-0": 1, "before-1": 2, "before-2": 3, "after": 4}
        # and the routes and function URLs of thawd.toml are served.
        with urllib.request.urlopen(f"{running.url}/rows/1", timeout=60) as answer:
            assert answer.status == 200
