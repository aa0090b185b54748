"""A registry of container images as a store of chunks: what it says is not trusted, and what it refuses is reported."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.processes.registry_server import RegistryServer, _Handler, running_registry
from tests.unit.chunk_stores import KEY, Machine, elsewhere
from thawd.config.findings import Findings
from thawd.config.store_urls import read_registry_url
from thawd.errors import ResourceNotFoundException, StoreError
from thawd.oci import references
from thawd.oci.credentials import Credentials
from thawd.oci.registry import Registry
from thawd.transfer import receiving, registry_place, sending, upkeep
from thawd.transfer.chunk_downloads import ChunkSource
from thawd.transfer.registry_place import RegistryPlace

_CLIENTS: list[Registry] = []


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with running_registry() as running:
        yield running
        while _CLIENTS:
            _CLIENTS.pop().close()


def place_in(server: RegistryServer) -> RegistryPlace:
    """A place as another process sees it: without memory of what was read before."""
    name = f"{server.host}/team/snapshots"
    known = Credentials("me", "secret")
    client = Registry(references.parse(name), {}, pause=lambda seconds: None, credentials_given=known)
    _CLIENTS.append(client)
    return RegistryPlace(name, name=f"oci://{name}", registry=client)


def received(machine: Machine, server: RegistryServer) -> receiving.Received:
    place = place_in(server)
    return receiving.receive(machine.store, ChunkSource(place), receiving.find(place, KEY, "classify"), program=None)


@pytest.mark.parametrize("demands", ["", "basic", "bearer"])
def test_a_snapshot_travels_through_a_registry(machine: Machine, server: RegistryServer, demands: str) -> None:
    server.demands, server.page = demands, 1
    snapshot = machine.freeze()
    done = sending.send(machine.store, snapshot, place_in(server), KEY)
    assert done.new_chunks == done.chunks > 1
    assert sending.send(machine.store, snapshot, place_in(server), KEY).new_chunks == 0
    server.seen.clear()
    other = sending.send(machine.store, machine.freeze(version="2", text=b"another heap"), place_in(server), KEY)
    listings = [path for method, path, given in server.seen if "/tags/list" in path and (given or not demands)]
    assert demands == "bearer" or len(listings) == len(set(listings)), "several threads list the repository once"
    assert 0 < other.new_chunks < other.chunks
    [second, first] = sorted(place_in(server).listed("snapshots"), key=lambda one: -one.modified_unix_s)
    assert {first.key, second.key} == {done.key, other.key}
    there = elsewhere(machine)
    assert received(there, server).received_bytes > 0
    assert upkeep.verify(place_in(server), KEY) == 0
    assert not [path for _, path, _ in server.seen if "elsewhere" in path]


def test_old_records_are_removed_and_their_chunks_are_left_to_the_registry(
    machine: Machine, server: RegistryServer
) -> None:
    sending.send(machine.store, machine.freeze(), place_in(server), KEY)
    done = upkeep.clean_up(place_in(server), max_age_s=1000.0)
    assert (done.records, done.removed, done.noted) == (0, 0, 0)
    server.deletes = False
    with pytest.raises(StoreError, match="allows no deletion"):
        upkeep.clean_up(place_in(server), max_age_s=0.0)
    server.deletes = True
    assert upkeep.clean_up(place_in(server), max_age_s=0.0).records == 1
    with pytest.raises(ResourceNotFoundException):
        received(machine, server)
    assert list(place_in(server).listed("keys")) == []
    assert list(place_in(server).listed("chunks")) == []


def test_a_registry_that_lies_about_a_blob_is_not_believed(machine: Machine, server: RegistryServer) -> None:
    done = sending.send(machine.store, machine.freeze(), place_in(server), KEY)
    there = elsewhere(machine)
    blobs = [name for name in server.contents if "/blobs/" in name]
    for name in blobs:
        kept = server.contents[name]
        server.contents[name] = kept[:-1] + bytes([kept[-1] ^ 1])
    with pytest.raises(StoreError, match="answers for the blob"):
        place_in(server).get(done.key, limit_bytes=1 << 20)
    with pytest.raises(StoreError):
        received(there, server)
    assert there.store.snapshots() == []


def test_a_manifest_of_another_object_is_refused(machine: Machine, server: RegistryServer) -> None:
    done = sending.send(machine.store, machine.freeze(), place_in(server), KEY)
    other = sending.send(machine.store, machine.freeze(version="2", text=b"another heap"), place_in(server), KEY)
    tags = {key: f"team/snapshots/manifests/{registry_place._tag_of(key)}" for key in (done.key, other.key)}
    server.contents[tags[done.key]] = server.contents[tags[other.key]]
    with pytest.raises(StoreError, match="that of another object"):
        place_in(server).get(done.key, limit_bytes=1 << 20)
    server.contents[tags[done.key]] = b'{"schemaVersion": 2, "layers": ['
    with pytest.raises(StoreError, match="is not one of a store of chunks"):
        place_in(server).get(done.key, limit_bytes=1 << 20)


def test_blobs_that_are_cut_and_answers_that_say_later_are_asked_for_again(
    machine: Machine, server: RegistryServer
) -> None:
    sending.send(machine.store, machine.freeze(), place_in(server), KEY)
    there = elsewhere(machine)
    harmed: set[str] = set()

    def trouble(handler: object, method: str, path: str) -> bool:
        if method != "GET" or path in harmed:
            return False
        harmed.add(path)
        content = server.contents.get(path.removeprefix("/v2/"))
        if "/blobs/" in path and content is not None:
            handler.cut(content[: len(content) // 2], len(content))  # type: ignore[attr-defined]
        else:
            handler.answer(429, Retry_After="1")  # type: ignore[attr-defined]
        return True

    server.trouble = trouble
    assert received(there, server).received_bytes > 0
    assert any("/blobs/" in path for path in harmed) and any("/manifests/" in path for path in harmed)


def test_a_chunk_that_the_registry_has_collected_is_sent_again(machine: Machine, server: RegistryServer) -> None:
    snapshot = machine.freeze()
    done = sending.send(machine.store, snapshot, place_in(server), KEY)
    gone = next(iter(place_in(server).listed("chunks")))
    layer = place_in(server)._chunk(gone.key)
    assert layer is not None
    del server.contents[f"team/snapshots/blobs/{layer.digest}"]
    assert upkeep.verify(place_in(server), KEY) == 1
    assert sending.send(machine.store, snapshot, place_in(server), KEY).new_chunks == 1
    assert upkeep.verify(place_in(server), KEY) == 0
    assert done.chunks > 1


@pytest.mark.parametrize(
    ("url", "repository"),
    [
        ("oci://localhost:5000/snapshots", "localhost:5000/snapshots"),
        ("oci://registry.example/team/a-b", "registry.example/team/a-b"),
        ("oci://registry.example", None),
        ("oci://registry.example/Team", None),
        ("oci://registry.example/team:1", None),
        ("oci://me:secret@registry.example/team", None),
    ],
)
def test_the_url_names_a_host_and_a_repository(url: str, repository: str | None) -> None:
    findings = Findings("thawd.toml", document={})
    read = read_registry_url(url, findings, path=("server", "snapshot_store"), environ={})
    assert (None if read is None else read["bucket"]) == repository
    assert ("secret" in " ".join(map(str, findings.problems()))) is False
    assert bool(findings.problems()) == (repository is None)


def test_a_thread_that_signs_in_to_read_does_not_take_the_token_of_one_that_writes(
    machine: Machine, server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.demands = "bearer"
    place = place_in(server)
    client = _CLIENTS[-1]
    sign_in = client._sign_in

    def and_another_thread(challenge: str, scope: str) -> None:
        sign_in(challenge, scope)
        if scope == "pull,push":
            sign_in(challenge.replace("pull,push", "pull"), "pull")

    monkeypatch.setattr(client, "_sign_in", and_another_thread)
    place.put("keys/one", b"content")
    assert place.get("keys/one", limit_bytes=100) == b"content"


def test_a_registry_that_sends_the_same_tags_for_ever_is_refused(server: RegistryServer) -> None:
    def same_page(handler: _Handler, method: str, path: str) -> bool:
        if path.endswith("/tags/list"):
            handler.answer(200, b'{"tags": ["one", "two"]}', Link='</v2/more>; rel="next"')
            return True
        return False

    server.trouble = same_page
    with pytest.raises(StoreError, match="the same page of tags"):
        list(place_in(server).listed("snapshots"))
