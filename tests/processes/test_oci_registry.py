"""Registries: what is fetched is verified, what fails is tried again or named, and passwords go where they belong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.registry_server import RegistryServer, running_registry
from tests.unit.oci_layers import add_image, digest, entry, files, layer
from thawd.errors import ImageError, RegistryError
from thawd.oci import documents, image_lookup, registry
from thawd.oci.documents import Descriptor, Index, Platform
from thawd.oci.image_store import Images
from thawd.oci.references import parse


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with running_registry() as running:
        yield running


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waited: list[float] = []
    monkeypatch.setattr(
        registry.Registry.__init__, "__kwdefaults__", {"pause": waited.append, "credentials_given": None}
    )
    return waited


@pytest.fixture
def images(tmp_path: Path) -> Images:
    return Images(tmp_path / "oci")


def pushed(server: RegistryServer, tmp_path: Path, environ: dict[str, str] | None = None) -> str:
    """Push an image to ``team/app:1``; returns its digest."""
    store = Images(tmp_path / "other")
    added = add_image(store, layer(entry("f", b"content" * 5000)))
    image_lookup.push(store, added, parse(f"{server.host}/team/app:1"), environ or {})
    return added


def obtain(images: Images, text: str, **environ: str) -> str:
    return image_lookup.obtain(images, text, folder=images.folder, environ=environ)


def test_an_image_that_was_pushed_is_fetched_once_and_has_its_files(
    server: RegistryServer, images: Images, tmp_path: Path
) -> None:
    added = pushed(server, tmp_path)
    assert obtain(images, f"{server.host}/team/app:1") == added
    assert files(images.root(added).folder) == {"f": b"content" * 5000}
    asked = len(server.seen)
    assert obtain(images, f"{server.host}/team/app:1") == added
    assert len(server.seen) == asked
    assert pushed(server, tmp_path) == added  # and what the registry has is not sent again
    assert not any(method == "POST" for method, *_ in server.seen[asked:])


def test_no_registry_is_asked_that_the_name_does_not_have(images: Images) -> None:
    with pytest.raises(ImageError, match=r"docker\.io/app:1"):
        obtain(images, "app:1")


def test_what_a_name_stands_for_is_asked_again_on_request(
    server: RegistryServer, images: Images, tmp_path: Path
) -> None:
    name = f"{server.host}/team/app:1"
    pushed(server, tmp_path)
    first = obtain(images, name)
    other = add_image(images, layer(entry("new", b"")))
    image_lookup.push(images, other, parse(name), {})
    assert obtain(images, name) == first
    assert image_lookup.obtain(images, name, folder=tmp_path, environ={}, refresh=True) == other
    assert images.names() == {name: other}


def test_the_image_for_this_machine_is_taken_from_an_index(
    server: RegistryServer, images: Images, tmp_path: Path
) -> None:
    added = pushed(server, tmp_path)
    manifest = server.contents["team/app/manifests/1"]
    foreign = Descriptor(documents.MANIFEST, digest(b"foreign"), 7, platform=Platform("s390x", "linux"))
    attestation = Descriptor(documents.MANIFEST, digest(b"a"), 1, platform=Platform("unknown", "unknown"))
    own = Descriptor(
        documents.MANIFEST, added, len(manifest), platform=Platform(documents.machine_architecture(), "linux")
    )
    for tag, listed in (("all", [attestation, foreign, own]), ("foreign", [attestation, foreign])):
        server.contents[f"team/app/manifests/{tag}"] = documents.encode(Index(2, listed, documents.INDEX))
        server.types[f"team/app/manifests/{tag}"] = documents.INDEX
    server.contents[f"team/app/manifests/{added}"] = manifest
    assert obtain(images, f"{server.host}/team/app:all") == added
    with pytest.raises(ImageError, match=r"no image for linux/\w+, only for linux/s390x\. Build it"):
        obtain(images, f"{server.host}/team/app:foreign")


def test_a_registry_that_lies_about_a_digest_is_found_out(
    server: RegistryServer, images: Images, tmp_path: Path
) -> None:
    added = pushed(server, tmp_path)
    [blob, *_] = [path for path in server.contents if "/blobs/" in path and len(server.contents[path]) > 100]
    honest = dict(server.contents)
    for lie, message in (
        (b"x", "ends after"),
        (honest[blob][:-1] + b"x", "other content"),
        (honest[blob] * 2, "longer"),
    ):
        server.contents[blob] = lie
        with pytest.raises(ImageError, match=message):
            obtain(images, f"{server.host}/team/app:1")
    server.contents |= honest
    server.contents[f"team/app/manifests/{added}"] = honest["team/app/manifests/1"] + b" "
    with pytest.raises(ImageError, match="other content"):
        obtain(images, f"{server.host}/team/app@{added}")
    assert images.names() == {}
    assert obtain(images, f"{server.host}/team/app:1") == added


def test_a_blob_that_is_cut_is_continued_where_it_broke_off(
    server: RegistryServer, images: Images, tmp_path: Path, pauses: list[float]
) -> None:
    added = pushed(server, tmp_path)
    asked: list[str | None] = []

    def cut(handler, method: str, path: str) -> bool:  # type: ignore[no-untyped-def]
        content = server.contents.get(path.removeprefix("/v2/"), b"")
        if method != "GET" or "/blobs/" not in path:
            return False
        asked.append(handler.headers["Range"])
        if len(asked) == 1:
            handler.cut(content[:20], len(content))
            return True
        return False

    server.trouble = cut
    assert obtain(images, f"{server.host}/team/app:1") == added
    assert asked[:2] == [None, "bytes=20-"] and len(pauses) == 1


def test_what_can_pass_is_tried_again_after_the_time_that_the_registry_says(
    server: RegistryServer, images: Images, tmp_path: Path, pauses: list[float]
) -> None:
    added = pushed(server, tmp_path)
    answers = iter([(429, {"Retry_After": "7"}), (500, {}), (503, {"Retry_After": "999999"})])

    def fail(handler, method: str, path: str) -> bool:  # type: ignore[no-untyped-def]
        for status, headers in answers:
            handler.answer(status, **headers)
            return True
        return False

    server.trouble = fail
    assert obtain(images, f"{server.host}/team/app:1") == added
    assert pauses == [7.0, 1.0, 30.0]


@pytest.mark.parametrize("status", [429, 500, 403, 418])
def test_a_registry_that_keeps_refusing_is_named_with_its_answer(
    server: RegistryServer, images: Images, status: int, pauses: list[float]
) -> None:
    def fail(handler, method: str, path: str) -> bool:  # type: ignore[no-untyped-def]
        handler.answer(status, b'{"errors":[{"code":"NOPE","message":"not today"}]}')
        return True

    server.trouble = fail
    with pytest.raises(RegistryError, match=rf"{server.host} answers {status} for team/app: .*(NOPE|login)"):
        obtain(images, f"{server.host}/team/app:1")


def test_a_registry_that_is_not_there_is_named(images: Images, server: RegistryServer, pauses: list[float]) -> None:
    server.server_close()
    with pytest.raises(RegistryError, match=rf"{server.host} cannot be reached"):
        obtain(images, f"{server.host}/team/app:1")


def _sign_in_file(tmp_path: Path, host: str, auth: object) -> dict[str, str]:
    (tmp_path / "docker").mkdir(exist_ok=True)
    (tmp_path / "docker/config.json").write_text(json.dumps({"auths": {host: auth}}))
    return {"DOCKER_CONFIG": str(tmp_path / "docker")}


@pytest.mark.parametrize("demands", ["basic", "bearer"])
@pytest.mark.parametrize("auth", [{"auth": "bWU6c2VjcmV0"}, {"username": "me", "password": "secret"}])
def test_thawd_signs_in_with_the_password_that_docker_login_stored(
    server: RegistryServer, images: Images, tmp_path: Path, demands: str, auth: dict[str, str]
) -> None:
    server.demands = demands
    environ = _sign_in_file(tmp_path, server.host, auth)
    added = pushed(server, tmp_path, environ)
    assert obtain(images, f"{server.host}/team/app:1", **environ) == added
    with pytest.raises(RegistryError, match="docker login") as raised:
        image_lookup.obtain(images, f"{server.host}/team/app:2", folder=tmp_path, environ={})
    assert "secret" not in str(raised.value)


def test_a_password_that_a_program_keeps_is_said_to_be_out_of_reach(
    server: RegistryServer, images: Images, tmp_path: Path
) -> None:
    server.demands = "basic"
    (tmp_path / "config.json").write_text(json.dumps({"auths": {server.host: {}}, "credsStore": "desktop"}))
    with pytest.raises(RegistryError, match="docker-credential-desktop, which thawd does not run"):
        obtain(images, f"{server.host}/team/app:1", DOCKER_CONFIG=str(tmp_path))


def test_passwords_do_not_follow_a_redirect_to_another_host(
    server: RegistryServer, images: Images, tmp_path: Path
) -> None:
    with running_registry() as elsewhere:
        environ = _sign_in_file(tmp_path, server.host, {"auth": "bWU6c2VjcmV0"})
        added = pushed(server, tmp_path, environ)
        server.demands = "basic"
        elsewhere.contents = server.contents

        def redirect(handler, method: str, path: str) -> bool:  # type: ignore[no-untyped-def]
            if "/blobs/" in path:
                handler.answer(307, Location=f"http://{elsewhere.host}{path}")
            return "/blobs/" in path

        server.trouble = redirect
        assert obtain(images, f"{server.host}/team/app:1", **environ) == added
        assert elsewhere.seen and all(authorization is None for *_, authorization in elsewhere.seen)


@pytest.mark.parametrize("place", ["http://example.com/x", "file:///etc/passwd", "ftp://127.0.0.1/x"])
def test_no_redirect_leads_to_another_machine_without_encryption(
    server: RegistryServer, images: Images, tmp_path: Path, place: str
) -> None:
    def redirect(handler, method: str, path: str) -> bool:  # type: ignore[no-untyped-def]
        handler.answer(302, Location=place)
        return True

    server.trouble = redirect
    with pytest.raises(RegistryError, match="not encrypted; refused"):
        obtain(images, f"{server.host}/team/app:1")


def test_redirects_in_a_circle_end(server: RegistryServer, images: Images) -> None:
    def redirect(handler, method: str, path: str) -> bool:  # type: ignore[no-untyped-def]
        handler.answer(302, Location=path)
        return True

    server.trouble = redirect
    with pytest.raises(RegistryError, match="again and again"):
        obtain(images, f"{server.host}/team/app:1")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (b'{"schemaVersion":1,"name":"a"}', "schema 1"),
        (b'{"schemaVersion":2,"mediaType":"text/html"}', "neither"),
        (b"x" * (5 << 20), "more than"),
        (b'{"schemaVersion":2,"config":{"mediaType":"c","digest":"sha256:0","size":1},"layers":[]}', "not a digest"),
        (
            b'{"schemaVersion":2,"config":{"mediaType":"c","digest":"sha256:0","size":1},"layers":[{"mediaType":'
            b'"application/wasm","digest":"sha256:' + b"0" * 64 + b'","size":1}]}',
            "application/wasm",
        ),
    ],
)
def test_a_document_that_is_no_image_is_refused_in_words(
    server: RegistryServer, images: Images, content: bytes, message: str
) -> None:
    server.contents["team/app/manifests/1"] = content
    with pytest.raises(ImageError, match=message):
        obtain(images, f"{server.host}/team/app:1")
