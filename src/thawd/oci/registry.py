"""A client of registries: fetches and pushes manifests and blobs. No other module here uses the network.

Requests use HTTPS. They use plain HTTP only if the registry is on this machine (`localhost`, loopback addresses).
Passwords are sent to the registry and to the token server that it names, and never to another host after a redirect.
The size of answers is limited. The store verifies blobs. Temporary failures (429, 5xx, a broken connection) are
retried.

Source: https://github.com/opencontainers/distribution-spec/blob/main/spec.md;
https://distribution.github.io/distribution/spec/auth/token/
"""

from __future__ import annotations

import base64
import ipaddress
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urljoin, urlsplit

from thawd.errors import ImageError, RegistryError
from thawd.oci import credentials, documents
from thawd.oci.blobs import Blobs, chunks_of
from thawd.oci.references import DOCKER, Reference

if TYPE_CHECKING:
    import httpx

_ATTEMPTS = 5
_TAGS_PAGE = 1000
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_TIMEOUT_S = 60.0
_PASSING = (408, 429, 500, 502, 503, 504)
_ACCEPT = ", ".join((*documents.MANIFESTS, *documents.INDEXES))
_CHALLENGE = re.compile(r'(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')
_LARGEST_ANSWER_BYTES = documents.LARGEST_DOCUMENT_BYTES


class Registry:
    """A repository in a registry.

    Args:
        reference: names the registry and the repository.
        environ: environment variables, for credentials and proxies.
        pause: waits for a number of seconds; tests replace it.
        credentials_given: the way to sign in; None: that of `docker login` or `podman login`.

    Raises:
        ImageError: httpx is not installed, or a file with credentials cannot be read.
    """

    def __init__(
        self,
        reference: Reference,
        environ: Mapping[str, str],
        *,
        pause: Callable[[float], None] = time.sleep,
        credentials_given: credentials.Credentials | None = None,
    ) -> None:
        try:
            import httpx
        except ImportError:
            raise ImageError("images from registries need httpx: pip install 'thawd[images]'") from None
        self._name = reference.registry
        self._repository = reference.repository
        self._pause = pause
        self._credentials, self._hint = credentials_given, "the password that was given is not valid"
        if credentials_given is None:
            self._credentials, self._hint = credentials.find(reference.registry, environ, reference.repository)
        host = "registry-1.docker.io" if reference.registry == DOCKER else reference.registry
        self._base = f"{'http' if _is_loopback(host) else 'https'}://{host}/v2/{reference.repository}/"
        # By scope: of several threads, one may sign in to read while another one signs in to write.
        self._authorizations: dict[str, dict[str, str]] = {}
        self._errors: tuple[type[Exception], ...] = (httpx.TransportError, httpx.DecodingError)
        self._client = httpx.Client(timeout=_TIMEOUT_S, follow_redirects=False, headers={"User-Agent": "thawd"})

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def manifest(self, wanted: str) -> tuple[bytes, str]:
        """Fetch a manifest or index.

        Args:
            wanted: tag or digest.

        Returns:
            Its content and media type. If `wanted` is a digest, the content has it.

        Raises:
            ImageError: there is none, or it has another digest (HTTP 400).
            RegistryError: the registry refused or failed (HTTP 502).
        """
        found_one = self.find_manifest(wanted)
        if found_one is None:
            raise ImageError(f"{self._name} has no image {self._repository} with the tag or digest {wanted}")
        content, declared = found_one
        found = documents.digest_of(content)
        if wanted.startswith("sha256:") and found != wanted:
            raise ImageError(f"{self._name} answers for {wanted} with other content ({found}); it is not used")
        return content, documents.media_type_of(content, declared, f"{self._name}/{self._repository}")

    def find_manifest(self, wanted: str) -> tuple[bytes, str] | None:
        """Fetch a manifest or index as it is, with the media type that the registry declares; None: there is none.

        Raises RegistryError if the registry refused or failed (HTTP 502).
        """
        with self._answer("GET", f"manifests/{wanted}", headers={"Accept": _ACCEPT}) as answer:
            if answer.status_code == 404:
                return None
            self._expect(answer, 200)
            return _limited(answer, self._name), answer.headers.get("Content-Type", "").partition(";")[0].strip()

    def tags(self) -> Iterator[str]:
        """Yield the tags of the repository; none if there is no such repository. Raises RegistryError."""
        path: str | None = f"tags/list?n={_TAGS_PAGE}"
        ends: set[str] = set()
        while path is not None:
            with self._answer("GET", path, headers={}) as answer:
                if answer.status_code == 404:
                    return
                self._expect(answer, 200)
                content, link = _limited(answer, self._name), answer.headers.get("Link", "")
            try:
                found = json.loads(content).get("tags") or []
            except (ValueError, AttributeError, RecursionError):
                raise RegistryError(f"{self._name} sends a list of tags that cannot be parsed") from None
            tags = [tag for tag in found if isinstance(tag, str)]
            if tags and tags[-1] in ends:
                raise RegistryError(f"{self._name} sends the same page of tags again and again")
            ends.update(tags[-1:])
            yield from tags
            # Only the name of the last tag is taken from the link: it may lead anywhere.
            path = f"tags/list?n={_TAGS_PAGE}&last={quote(tags[-1], safe='')}" if tags and "next" in link else None

    def remove_manifest(self, digest: str) -> bool:
        """Remove a manifest. Returns False if the registry allows no deletion. Raises RegistryError."""
        with self._answer("DELETE", f"manifests/{digest}", headers={}, scope="pull,push,delete") as answer:
            if answer.status_code == 405:
                return False
            if answer.status_code != 404:
                self._expect(answer, 202)
            return True

    def blob(self, digest: str) -> _Blob:
        """Open a blob for reading. It can be read several times. The store verifies the content."""
        return _Blob(self, digest)

    def has(self, path: str) -> bool:
        """Whether the repository has something, such as ``blobs/sha256:…``."""
        with self._answer("HEAD", path, headers={"Accept": _ACCEPT}) as answer:
            if answer.status_code == 404:
                return False
            self._expect(answer, 200)
            return True

    def push_blob(self, blobs: Blobs, digest: str) -> None:
        """Upload a blob of a store, unless the repository has it.

        Raises:
            RegistryError: the registry refused or failed (HTTP 502).
        """
        if self.has(f"blobs/{digest}"):
            return

        def content() -> Iterator[bytes]:
            with blobs.open(digest) as file:
                yield from chunks_of(file)

        self._upload(digest, blobs.path(digest).stat().st_size, content)

    def push_content(self, content: bytes) -> str:
        """Upload a blob, whether or not the repository has it, and return its digest. Raises RegistryError."""
        digest = documents.digest_of(content)
        self._upload(digest, len(content), lambda: iter([content]))
        return digest

    def _upload(self, digest: str, size: int, content: Callable[[], Iterator[bytes]]) -> None:
        for attempt in range(_ATTEMPTS):
            with self._answer("POST", "blobs/uploads/", headers={"Content-Length": "0"}, scope="pull,push") as answer:
                self._expect(answer, 202)
                place = self._place(str(answer.url), answer.headers.get("Location", ""))
            headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
            target = f"{place}{'&' if '?' in place else '?'}digest={digest}"
            try:
                with self._once("PUT", target, "pull,push", headers=headers, content=content()) as answer:
                    if answer.status_code not in _PASSING or attempt == _ATTEMPTS - 1:
                        self._expect(answer, 201)
                        return
            except self._errors as error:
                if attempt == _ATTEMPTS - 1:
                    raise RegistryError(f"{self._name} cannot be reached: {_words(error)}") from None
            self._pause(_pause_s(attempt, None))

    def push_manifest(self, tag: str, content: bytes, media_type: str) -> None:
        """Upload a manifest under a tag or digest. Raises RegistryError if the registry refuses or fails."""
        headers = {"Content-Type": media_type}
        with self._answer("PUT", f"manifests/{tag}", headers=headers, content=content, scope="pull,push") as answer:
            self._expect(answer, 201)

    def _answer(
        self, method: str, path: str, *, headers: dict[str, str], content: bytes | None = None, scope: str = "pull"
    ) -> _Answer:
        """Send a request to the repository. Retry temporary failures, and sign in if the registry requires it."""
        signed_in = False
        for attempt in range(_ATTEMPTS):
            pause_s = _pause_s(attempt, None)
            try:
                answer = self._followed(method, self._base + path, scope, headers, content)
            except self._errors as error:
                if attempt == _ATTEMPTS - 1:
                    raise RegistryError(f"{self._name} cannot be reached: {_words(error)}") from None
            else:
                code = answer.response.status_code
                if code == 401 and not signed_in and self._is_own(answer.response):
                    signed_in = True
                    challenge = answer.response.headers.get("WWW-Authenticate", "")
                    answer.close()
                    self._sign_in(challenge, scope)
                    continue
                if code not in _PASSING or attempt == _ATTEMPTS - 1:
                    return answer
                pause_s = _pause_s(attempt, answer.response.headers.get("Retry-After"))
                answer.close()
            self._pause(pause_s)
        raise RegistryError(f"{self._name} refuses to sign in")

    def _followed(self, method: str, url: str, scope: str, headers: dict[str, str], content: bytes | None) -> _Answer:
        """Send a request and follow its redirects. Credentials are for the registry's own origin."""
        for _ in range(5):
            answer = self._once(method, url, scope, headers=headers, content=content)
            if answer.response.status_code not in (301, 302, 303, 307, 308) or method not in ("GET", "HEAD"):
                return answer
            location = answer.response.headers.get("Location", "")
            answer.close()
            url = self._place(url, location)
        raise RegistryError(f"{self._name} redirects again and again")

    def _once(self, method: str, url: str, scope: str, *, headers: dict[str, str], content: Any = None) -> _Answer:
        own = self._authorizations.get(scope, {}) if _origin(url) == _origin(self._base) else {}
        request = self._client.build_request(method, url, headers={**headers, **own}, content=content)
        return _Answer(self._client.send(request, stream=True))

    def _is_own(self, answer: httpx.Response) -> bool:
        """Whether an answer is the registry's own: only the registry may name the server that gets the password."""
        return _origin(str(answer.url)) == _origin(self._base)

    def _place(self, url: str, location: str) -> str:
        """Return the URL that an answer for `url` leads to. Raises RegistryError if no request may be sent to it."""
        try:
            place = urljoin(url, location)
        except ValueError:
            raise RegistryError(f"{self._name} leads to a URL that cannot be parsed") from None
        self._check_place(place)
        return place

    def _check_place(self, url: str) -> None:
        """Raise RegistryError unless requests may be sent to a URL that the registry names."""
        try:
            parts = urlsplit(url)
            _origin(url)
            self._client.build_request("GET", url)
        except Exception:  # httpx.InvalidURL, ValueError; its text may quote a password
            raise RegistryError(f"{self._name} leads to a URL that cannot be parsed") from None
        # A registry elsewhere has nothing to say about servers on this machine.
        is_local = self._base.startswith("http://") and _is_loopback(parts.netloc)
        if parts.scheme != "https" and not (parts.scheme == "http" and is_local):
            raise RegistryError(
                f"{self._name} leads to {parts.scheme}://{parts.netloc}, which is not encrypted; refused"
            )

    def _sign_in(self, challenge: str, scope: str) -> None:
        scheme, _, rest = challenge.partition(" ")
        fields = {name.lower(): quoted or plain for name, quoted, plain in _CHALLENGE.findall(rest)}
        found = self._credentials
        if scheme.lower() == "basic":
            if found is None:
                raise RegistryError(f"{self._name} requires a password: {self._hint}")
            self._authorizations[scope] = {"Authorization": _basic(found)}
        elif scheme.lower() == "bearer" and "realm" in fields:
            self._authorizations[scope] = {"Authorization": f"Bearer {self._token(fields, scope)}"}
        else:
            raise RegistryError(
                f"{self._name} requires a way to sign in that thawd does not have: {scheme or 'none named'}"
            )

    def _token(self, fields: dict[str, str], scope: str) -> str:
        realm = fields["realm"]
        self._check_place(realm)
        asked = {"scope": fields.get("scope") or f"repository:{self._repository}:{scope}"}
        if "service" in fields:
            asked["service"] = fields["service"]
        found = self._credentials
        if found is not None and found.identity_token:
            form = {**asked, "grant_type": "refresh_token", "refresh_token": found.identity_token, "client_id": "thawd"}
            request = self._client.build_request("POST", realm, data=form)
        else:
            headers = {} if found is None else {"Authorization": _basic(found)}
            request = self._client.build_request("GET", realm, params=asked, headers=headers)
        token: Any = None
        try:
            with _Answer(self._client.send(request, stream=True)) as answer:
                status = answer.status_code
                content = _limited(answer, urlsplit(realm).netloc) if status == 200 else b"{}"
        except self._errors as error:
            raise RegistryError(f"{urlsplit(realm).netloc} cannot be reached to sign in: {_words(error)}") from None
        try:
            document = json.loads(content)
            token = document.get("token") or document.get("access_token")
        except (ValueError, AttributeError, RecursionError):
            token = None
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise RegistryError(f"{self._name} refuses to sign in ({status}): {self._hint}")
        return token

    def _expect(self, answer: httpx.Response, status: int) -> None:
        if answer.status_code == status:
            return
        why = self._hint if answer.status_code in (401, 403) else _reason(answer, self._name)
        raise RegistryError(f"{self._name} answers {answer.status_code} for {self._repository}: {why}")


class _Answer:
    """An answer whose content has not been read; closed at the end of a ``with`` block."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response

    def __enter__(self) -> httpx.Response:
        return self.response

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        self.response.close()


class _Blob:
    """A blob of a repository. If the connection breaks, the rest of the blob is requested.

    Args:
        registry: the repository.
        digest: digest of the blob.
    """

    def __init__(self, registry: Registry, digest: str) -> None:
        self._registry = registry
        self._digest = digest

    def chunks(self) -> Iterator[bytes]:
        """Yield the content. Raises RegistryError if the registry refuses, fails, or cuts the connection each time."""
        registry = self._registry
        got = 0
        for attempt in range(_ATTEMPTS):
            before = got
            headers = {"Range": f"bytes={got}-"} if got else {}
            # Compressed answers would have another size than the blob.
            with registry._answer(
                "GET", f"blobs/{self._digest}", headers={**headers, "Accept-Encoding": "identity"}
            ) as answer:
                if answer.status_code == 416:
                    return
                skip = got if answer.status_code == 200 else 0
                registry._expect(answer, 206 if got and answer.status_code != 200 else 200)
                try:
                    for chunk in answer.iter_raw():
                        fresh = chunk[skip:]
                        skip = max(0, skip - len(chunk))
                        got += len(fresh)
                        if fresh:
                            yield fresh
                except registry._errors as error:
                    if attempt == _ATTEMPTS - 1 and got == before:
                        raise RegistryError(
                            f"{registry._name} breaks off the blob {self._digest}: {_words(error)}"
                        ) from None
                else:
                    return
            registry._pause(_pause_s(attempt, None))
        raise RegistryError(f"{registry._name} breaks off the blob {self._digest} again and again")


def _is_loopback(host: str) -> bool:
    name = urlsplit(f"//{host}").hostname or ""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _basic(found: credentials.Credentials) -> str:
    return "Basic " + base64.b64encode(f"{found.username}:{found.password}".encode()).decode()


def _limited(answer: httpx.Response, registry: str) -> bytes:
    content = bytearray()
    for chunk in answer.iter_bytes():
        content += chunk
        if len(content) > _LARGEST_ANSWER_BYTES:
            raise ImageError(f"{registry} sends a document of more than {_LARGEST_ANSWER_BYTES} bytes; it is not read")
    return bytes(content)


def _reason(answer: httpx.Response, registry: str) -> str:
    try:
        [first, *_] = json.loads(_limited(answer, registry))["errors"]
        return " ".join(f"{first.get('code')}: {first.get('message')}".split())[:300]
    except Exception:  # a broken registry may send anything; the message already has the status
        return "it does not say why"


def _pause_s(attempt: int, retry_after: str | None) -> float:
    pause_s = _FIRST_PAUSE_S * (1 << attempt)
    if retry_after and retry_after.isdecimal():
        pause_s = float(retry_after[:9])
    return min(pause_s, _LONGEST_PAUSE_S)


def _words(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
