"""Registries that were made to do harm: to passwords, to memory and disk, and to the trust in a digest."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.registry_server import RegistryServer, running_registry
from tests.unit.oci_layers import add_image, digest, entry, layer
from thawd.errors import ImageError, RegistryError
from thawd.oci import documents, image_lookup
from thawd.oci.documents import Descriptor, Index, Manifest, Platform
from thawd.oci.image_store import Images
from thawd.oci.references import parse
from thawd.oci.registry import Registry


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with running_registry() as running:
        yield running


@pytest.fixture
def images(tmp_path: Path) -> Images:
    return Images(tmp_path / "oci")


@pytest.fixture
def environ(server: RegistryServer, tmp_path: Path) -> dict[str, str]:
    """A password for the registry, in the file of `docker login`."""
    (tmp_path / "config.json").write_text(json.dumps({"auths": {server.host: {"auth": "bWU6c2VjcmV0"}}}))
    return {"DOCKER_CONFIG": str(tmp_path)}


def obtain(images: Images, text: str, environ: dict[str, str]) -> str:
    return image_lookup.obtain(images, text, folder=images.folder, environ=environ)


def test_a_host_that_a_registry_redirects_to_cannot_ask_for_the_registrys_password(
    server: RegistryServer, images: Images, environ: dict[str, str], tmp_path: Path
) -> None:
    store = Images(tmp_path / "other")
    added = add_image(store, layer(entry("f", b"content")))
    image_lookup.push(store, added, parse(f"{server.host}/team/app:1"), environ)
    with running_registry() as elsewhere:
        for challenge in (f'Bearer realm="http://{elsewhere.host}/token",service="s"', 'Basic realm="r"'):

            def redirect(handler, method: str, path: str) -> bool:  # type: ignore[no-untyped-def]
                if "/blobs/" in path:
                    handler.answer(307, Location=f"http://{elsewhere.host}{path}")
                return "/blobs/" in path

            def demand(handler, method: str, path: str, challenge: str = challenge) -> bool:  # type: ignore[no-untyped-def]
                handler.answer(401, WWW_Authenticate=challenge)
                return True

            server.trouble, elsewhere.trouble = redirect, demand
            with pytest.raises(RegistryError, match="answers 401"):
                obtain(images, f"{server.host}/team/app:1", environ)
        assert elsewhere.seen and all(authorization is None for *_, authorization in elsewhere.seen)
        assert not any(path.startswith("/token") for _, path, _ in elsewhere.seen)


def test_a_registry_elsewhere_leads_to_no_server_of_this_machine() -> None:
    registry = Registry(parse("registry.example.com/team/app:1"), {})
    with pytest.raises(RegistryError, match="not encrypted; refused"):
        registry._check_place("http://127.0.0.1:8350/x")
    registry._check_place("https://storage.example.com/x")
    registry.close()


@pytest.mark.parametrize("place", ["http://[::1", "https://h:99999/", "http://127.0.0.1:x/", "https://" + "a" * 70000])
def test_a_redirect_to_what_is_no_url_is_refused_in_words(
    server: RegistryServer, images: Images, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thawd.oci.registry._FIRST_PAUSE_S", 0.0)  # it could also be a server that fails for a moment

    def redirect(handler, method: str, path: str) -> bool:  # type: ignore[no-untyped-def]
        handler.answer(302, Location=place)
        return True

    server.trouble = redirect
    with pytest.raises(RegistryError, match=r"cannot be parsed|cannot be reached"):
        obtain(images, f"{server.host}/team/app:1", {})


def test_a_token_of_any_length_is_not_read_into_memory(
    server: RegistryServer, images: Images, environ: dict[str, str]
) -> None:
    sent = []

    def endless(handler, method: str, path: str) -> bool:  # type: ignore[no-untyped-def]
        if path != "/v2/token":
            handler.answer(401, WWW_Authenticate=f'Bearer realm="http://{server.host}/v2/token"')
            return True
        handler.send_response(200)
        handler.send_header("Content-Length", str(1 << 40))
        handler.end_headers()
        try:
            while sum(sent) < 1 << 30:
                sent.append(handler.wfile.write(bytes(1 << 20)))
        except OSError:
            handler.close_connection = True
        return True

    server.trouble = endless
    with pytest.raises(ImageError, match="more than 4194304 bytes"):
        obtain(images, f"{server.host}/team/app:1", environ)
    assert sum(sent) < 256 << 20


@pytest.mark.parametrize("token", ['{"token": "ä"}', '{"token": "a\\nb"}', '{"token": 5}', "[]", "x"])
def test_a_token_that_is_none_is_refused_in_words(
    server: RegistryServer, images: Images, environ: dict[str, str], token: str
) -> None:
    def answer(handler, method: str, path: str) -> bool:  # type: ignore[no-untyped-def]
        if path == "/v2/token":
            handler.answer(200, token.encode())
        else:
            handler.answer(401, WWW_Authenticate=f'Bearer realm="http://{server.host}/v2/token"')
        return True

    server.trouble = answer
    with pytest.raises(RegistryError, match="refuses to sign in"):
        obtain(images, f"{server.host}/team/app:1", environ)


def test_an_index_leads_only_to_digests_that_are_verified(server: RegistryServer, images: Images) -> None:
    platform = Platform(documents.machine_architecture(), "linux")
    for wanted in ("sha512:" + "0" * 128, "../../other/manifests/1", "latest"):
        listed = Descriptor(documents.MANIFEST, wanted, 7, platform=platform)
        content = documents.encode(Index(2, [listed], documents.INDEX))
        server.contents[f"team/app/manifests/{digest(content)}"] = content
        server.types[f"team/app/manifests/{digest(content)}"] = documents.INDEX
        with pytest.raises(ImageError, match="is not a digest"):
            obtain(images, f"{server.host}/team/app@{digest(content)}", {})


def test_a_configuration_of_any_size_is_not_fetched(server: RegistryServer, images: Images) -> None:
    config = Descriptor(documents.CONFIG, digest(b"c"), 1 << 50)
    server.contents["team/app/manifests/1"] = documents.encode(Manifest(2, config, [], documents.MANIFEST))
    with pytest.raises(ImageError, match="its configuration has 1125899906842624 bytes"):
        obtain(images, f"{server.host}/team/app:1", {})
    assert not any("/blobs/" in path for _, path, _ in server.seen)
