"""Models from a store: complete, loaded once, downloads resumed, checked, bounded in memory, not removed while in
use."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import DEADLINE_S, eventually
from tests.integration.emulated import EmulatedAws
from thawd import models

MIB = 1 << 20
OPENER = """
import json, sys
from thawd import models
model = models.open(sys.argv[1], cache=models.Cache(sys.argv[2]))
print(json.dumps([model.origin, model.sha256, [step[2] for step in model.steps if step[0] == "resume"]]), flush=True)
sys.stdin.read()
"""


pytestmark = pytest.mark.usefixtures("aws_credentials")


@pytest.fixture(scope="module")
def aws() -> Iterator[EmulatedAws]:
    with EmulatedAws() as running:
        client = running.client("s3")
        client.create_bucket(Bucket="models")
        client.put_bucket_versioning(Bucket="models", VersioningConfiguration={"Status": "Enabled"})
        client.close()
        yield running


class There:
    """A prefix in the emulated S3 and a model cache, both for one test only."""

    def __init__(self, aws: EmulatedAws, name: str, folder: Path) -> None:
        self.client = aws.client("s3")
        self.prefix, self.parameters = name, f"?endpoint={aws.url}"
        self.cache = models.Cache(str(folder / "cache"))

    def put(self, name: str, data: bytes) -> Any:
        return self.client.put_object(Bucket="models", Key=f"{self.prefix}/{name}", Body=data)

    def address(self, name: str) -> str:
        return f"s3://models/{self.prefix}/{name}{self.parameters}"

    def open(self, name: str, **pins: Any) -> models.Model:
        return models.open(self.address(name), cache=self.cache, **pins)


@pytest.fixture
def there(aws: EmulatedAws, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[There]:
    found = There(aws, request.node.name, tmp_path)
    yield found
    found.client.close()


def some_bytes(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def test_a_model_is_downloaded_once_and_known_by_its_content(there: There) -> None:
    data = some_bytes(3 * MIB)
    there.put("a.bin", data)
    said: list[tuple[str, int, int]] = []
    with there.open("a.bin", progress=lambda *told: said.append(told)) as first:
        assert first.origin == "downloaded"
        assert Path(first.path).read_bytes() == data
        assert first.sha256 == hashlib.sha256(data).hexdigest()
    assert said[-1] == (f"{there.prefix}/a.bin", 3 * MIB, 3 * MIB)
    with there.open("a.bin") as second:
        assert (second.origin, second.path) == ("cache", first.path)


def test_a_replaced_model_is_noticed_and_followed_and_a_pin_stays(there: There) -> None:
    old, new = some_bytes(1000, 1), some_bytes(1000, 2)
    etag = there.put("a.bin", old)["ETag"]
    with there.open("a.bin") as model:
        assert model.is_current()
        version = model.version
        there.put("a.bin", new)
        assert not model.is_current()
    assert Path(there.open("a.bin").path).read_bytes() == new
    assert Path(there.open("a.bin", version=version).path).read_bytes() == old
    with pytest.raises(models.ModelChangedError):
        there.open("a.bin", etag=etag)
    with pytest.raises(models.ModelChangedError):
        there.open("a.bin", sha256=hashlib.sha256(old).hexdigest())
    with pytest.raises(models.ModelNotFoundError):
        there.open("b.bin")


def test_a_pinned_model_of_the_cache_needs_no_store(there: There, tmp_path: Path) -> None:
    data = some_bytes(1000)
    sha256 = hashlib.sha256(data).hexdigest()
    there.put("a.bin", data)
    there.open("a.bin", sha256=sha256).close()
    there.client.delete_object(Bucket="models", Key=f"{there.prefix}/a.bin")
    with there.open("a.bin", sha256=sha256) as model:
        assert Path(model.path).read_bytes() == data


def test_a_damaged_copy_is_found_and_replaced(there: There) -> None:
    data = some_bytes(MIB)
    there.put("a.bin", data)
    path = Path(there.open("a.bin").path)
    path.chmod(0o644)
    path.write_bytes(b"x" + data[1:])
    with there.open("a.bin") as model:
        assert model.origin == "downloaded"
        assert Path(model.path).read_bytes() == data


def test_a_folder_has_its_files_under_their_names(there: There) -> None:
    there.put("net/config.json", b"{}")
    there.put("net/deep/weights.bin", b"1")
    with there.open("net/") as model:
        assert Path(model.path, "config.json").read_bytes() == b"{}"
        assert Path(model.path, "deep/weights.bin").read_bytes() == b"1"
        there.put("net/config.json", b"[]")
        assert not model.is_current()
    with there.open("net/") as model:
        assert Path(model.path, "config.json").read_bytes() == b"[]"


def test_objects_that_stand_for_folders_are_no_files_of_a_folder(there: There) -> None:
    for name, data in (("", b""), ("sub/", b""), ("sub/b.bin", b"b"), ("a.bin", b"a"), ("empty.bin", b"")):
        there.put("parts/" + name, data)
    with there.open("parts/") as folder:
        found = {str(path.relative_to(folder.path)) for path in Path(folder.path).rglob("*") if path.is_file()}
    assert found == {"a.bin", "empty.bin", "sub/b.bin"}


def test_an_index_that_says_nothing_is_written_anew(there: There) -> None:
    there.put("a.bin", b"content")
    there.open("a.bin").close()
    for text in ("[1]", "{}", "nothing"):
        for path in (Path(there.cache.folder) / "index").iterdir():
            path.write_text(text)
        with there.open("a.bin") as model:
            assert Path(model.path).read_bytes() == b"content"


def test_what_the_disk_or_the_surroundings_refuse_is_a_model_error_that_names_it(
    there: There, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there.put("a.bin", b"content")
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(models.ModelError, match=r"a\.bin.*Not a directory; the cache of models is .*/file"):
        models.open(there.address("a.bin"), cache=models.Cache(str(file)))
    with pytest.raises(models.ModelError, match="'ab' is not a SHA-256"):
        there.open("a.bin", sha256="ab")
    monkeypatch.setenv("MODEL_CACHE_MB", "lots")
    with pytest.raises(models.ModelError, match="MODEL_CACHE_MB is 'lots'"):
        models.Cache(str(tmp_path))


def test_eight_processes_at_once_download_once(there: There) -> None:
    data = some_bytes(8 * MIB)
    there.put("a.bin", data)
    command = [sys.executable, "-c", OPENER, there.address("a.bin"), there.cache.folder]
    opening = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    said = [json.loads(process.communicate()[0]) for process in opening]
    assert sorted(origin for origin, _, _ in said) == ["cache"] * 7 + ["downloaded"]
    assert {sha256 for _, sha256, _ in said} == {hashlib.sha256(data).hexdigest()}


def test_the_cache_keeps_to_its_size_and_spares_what_is_in_use(there: There) -> None:
    there.cache = models.Cache(there.cache.folder, most_bytes=3 * MIB)
    for number in range(5):
        there.put(f"{number}.bin", some_bytes(MIB, number))
    held = there.open("0.bin")
    for number in (1, 2, 3, 4):
        there.open(f"{number}.bin").close()
    assert Path(held.path).exists()
    assert there.open("4.bin").origin == "cache"
    assert there.open("1.bin").origin == "downloaded"
    blobs = [path for path in Path(there.cache.folder, "blobs").iterdir() if not path.suffix]
    assert sum(path.stat().st_size for path in blobs) <= 3 * MIB
    held.close()


def test_residents_keep_to_their_size_and_follow_the_store(there: There) -> None:
    for number in range(3):
        there.put(f"{number}.bin", some_bytes(MIB, number))

    def load(model: models.Model) -> models.Loaded:
        return models.Loaded(Path(model.path).read_bytes(), model)

    residents = models.Residents(load, most_bytes=2 * MIB, follow_s=0, cache=there.cache)
    first, second, third = (there.address(f"{number}.bin") for number in range(3))
    for address in (first, second, first, third):
        residents.get(address)
    assert list(residents.sizes()) == [first, third]
    assert (residents.hits, residents.misses) == (1, 3)
    there.put("0.bin", b"new")
    assert residents.get(first).value == b"new"
    assert residents.replaced == 1
    there.client.delete_object(Bucket="models", Key=f"{there.prefix}/2.bin")
    assert residents.get(third).value == some_bytes(MIB, 2)
    assert "2.bin" in (residents.failure or "")


def test_a_model_that_is_replaced_by_a_broken_one_is_served_on(there: There) -> None:
    there.put("a.bin", b"good")
    tried = []

    def load(model: models.Model) -> models.Loaded:
        data = Path(model.path).read_bytes()
        tried.append(data)
        if data.startswith(b"broken"):
            raise ValueError("not a model")
        return models.Loaded(data, model)

    address = there.address("a.bin")
    residents = models.Residents(load, most_bytes=MIB, follow_s=0, cache=there.cache)
    assert residents.get(address).value == b"good"
    there.put("a.bin", b"broken")
    for _ in range(3):
        assert residents.get(address).value == b"good"
        assert residents.failure == "not a model"
    assert tried == [b"good", b"broken", b"good"]  # the broken model is not tried again each time
    there.put("a.bin", b"better")
    assert residents.get(address).value == b"better"
    assert (residents.failure, residents.replaced) == (None, 1)


class Slow(BaseHTTPRequestHandler):
    """An S3 server with one object.

    It sends half of it and waits; it records range requests and answers them completely.
    """

    data = some_bytes(4 * MIB)
    ranges: list[str]
    half_sent: threading.Event

    def _head(self, status: int, size: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(size))
        self.send_header("ETag", '"abc"')
        self.send_header("Last-Modified", "Fri, 20 Nov 2026 12:00:00 GMT")
        if status == 206:
            begin = len(self.data) - size
            self.send_header("Content-Range", f"bytes {begin}-{len(self.data) - 1}/{len(self.data)}")
        self.end_headers()

    def do_HEAD(self) -> None:
        self._head(200, len(self.data))

    def do_GET(self) -> None:
        asked = self.headers["Range"]
        self.ranges.append(asked)
        begin = int(asked.removeprefix("bytes=").partition("-")[0])
        self._head(206, len(self.data) - begin)
        if begin:
            self.wfile.write(self.data[begin:])
            return
        self.wfile.write(self.data[: 2 * MIB])
        self.wfile.flush()
        self.half_sent.set()
        self.connection.recv(1)  # until the client has disconnected

    def log_message(self, *_: Any) -> None:
        pass


def test_a_download_that_is_killed_is_gone_on_with(tmp_path: Path) -> None:
    handler = type("Handler", (Slow,), {"ranges": [], "half_sent": threading.Event()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        address = f"s3://models/a.bin?endpoint=http://127.0.0.1:{server.server_port}"
        command = [sys.executable, "-c", OPENER, address, str(tmp_path)]
        first = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        partial = tmp_path / "partial"
        assert handler.half_sent.wait(DEADLINE_S)
        eventually(lambda: sum(path.stat().st_size for path in partial.glob("*")), what="a part on the disk")
        os.killpg(first.pid, signal.SIGKILL)
        first.communicate()
        done = subprocess.run(command, input="", capture_output=True, text=True)
        origin, sha256, resumed = json.loads(done.stdout)
        assert (origin, sha256) == ("downloaded", hashlib.sha256(Slow.data).hexdigest())
        assert len(resumed) == 1
        begin = int(handler.ranges[-1].removeprefix("bytes=").partition("-")[0])
        assert begin > 0
    finally:
        server.shutdown()
        serving.join()
        server.server_close()
