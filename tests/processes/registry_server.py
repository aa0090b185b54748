"""A registry on this machine, for tests. It can also misbehave: lie, cut, redirect, refuse and ask for tokens."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


class RegistryServer(ThreadingHTTPServer):
    """A registry in memory.

    Attributes:
        contents: manifests by ``REPOSITORY/manifests/TAG``, blobs by ``REPOSITORY/blobs/DIGEST``.
        types: media types of the manifests.
        trouble: asked for each request under ``/v2/``, with its method and path; whether it has answered.
        seen: method, path and Authorization header of each request.
        demands: ``""``, ``"basic"`` or ``"bearer"``.
        deletes: whether manifests can be deleted.
        page: most tags in one answer.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.contents: dict[str, bytes] = {}
        self.types: dict[str, str] = {}
        self.trouble: Callable[[_Handler, str, str], bool] = lambda handler, method, path: False
        self.seen: list[tuple[str, str, str | None]] = []
        self.demands = ""
        self.deletes = True
        self.page = 1000

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients leave in the middle of an answer that they refuse: say nothing."""

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: RegistryServer

    def log_message(self, *given: object) -> None:
        pass

    def answer(self, status: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def cut(self, content: bytes, promised: int) -> None:
        """Send less than was promised, and close the connection."""
        self.send_response(200)
        self.send_header("Content-Length", str(promised))
        self.end_headers()
        self.wfile.write(content)
        self.wfile.flush()
        self.close_connection = True

    def handle_any(self) -> None:
        server, path = self.server, urlsplit(self.path)
        body = self._body()
        server.seen.append((self.command, self.path, self.headers["Authorization"]))
        if path.path == "/token":
            if self.headers["Authorization"] == "Basic " + base64.b64encode(b"me:secret").decode():
                self.answer(200, json.dumps({"token": "T-" + parse_qs(path.query)["scope"][0]}).encode())
            else:
                self.answer(401)
        elif not self._may_pass():
            pass
        elif not server.trouble(self, self.command, path.path):
            self._serve(path.path.removeprefix("/v2/"), body)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = handle_any  # noqa: N815

    def _body(self) -> bytes:
        if self.headers["Transfer-Encoding"] == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body
        return self.rfile.read(int(self.headers["Content-Length"] or 0))

    def _may_pass(self) -> bool:
        given = self.headers["Authorization"] or ""
        if self.server.demands == "basic" and given != "Basic " + base64.b64encode(b"me:secret").decode():
            self.answer(401, WWW_Authenticate='Basic realm="r"')
            return False
        if self.server.demands == "bearer":
            actions = "pull" if self.command in ("GET", "HEAD") else "pull,push"
            repository = "/".join(self.path.split("/")[2:]).partition("/blobs")[0].partition("/manifests")[0]
            scope = f"repository:{repository}:{actions}"
            if given not in (f"Bearer T-{scope}", f"Bearer T-{scope},push"):
                realm = f"http://{self.server.host}/token"
                self.answer(401, WWW_Authenticate=f'Bearer realm="{realm}",service="s",scope="{scope}"')
                return False
        return True

    def _serve(self, path: str, body: bytes) -> None:
        contents = self.server.contents
        if self.command == "POST":
            self.answer(202, Location=f"/v2/{path}one?state=1")
        elif self.command == "PUT" and "/uploads/" in path:
            digest = parse_qs(urlsplit(self.path).query)["digest"][0]
            if digest != "sha256:" + hashlib.sha256(body).hexdigest():
                self.answer(400, b'{"errors":[{"code":"DIGEST_INVALID","message":"no"}]}')
                return
            contents[path.partition("/blobs/")[0] + "/blobs/" + digest] = body
            self.answer(201)
        elif self.command == "PUT":
            contents[path] = body
            self.types[path] = self.headers["Content-Type"]
            self.answer(201)
        elif self.command == "DELETE":
            repository, _, digest = path.partition("/manifests/")
            if not self.server.deletes:
                self.answer(405, b'{"errors":[{"code":"UNSUPPORTED","message":"unsupported"}]}')
                return
            named = [
                name
                for name, content in contents.items()
                if name.startswith(f"{repository}/manifests/")
                and "sha256:" + hashlib.sha256(content).hexdigest() == digest
            ]
            for name in named:
                del contents[name]
            self.answer(202 if named else 404)
        elif path.endswith("/tags/list"):
            asked = parse_qs(urlsplit(self.path).query)
            prefix = path.removesuffix("tags/list") + "manifests/"
            names = sorted(name.removeprefix(prefix) for name in contents if name.startswith(prefix))
            later = [name for name in names if name > asked.get("last", [""])[0]]
            page = later[: min(int(asked["n"][0]), self.server.page)]
            more = {"Link": '</v2/elsewhere>; rel="next"'} if len(page) < len(later) else {}
            self.answer(200, json.dumps({"name": "x", "tags": page or None}).encode(), **more)
        elif path in contents:
            content = contents[path]
            start = int((self.headers["Range"] or "bytes=0-")[6:-1])
            kind = self.types.get(path, "application/octet-stream")
            self.answer(206 if self.headers["Range"] else 200, content[start:], Content_Type=kind)
        else:
            self.answer(404, b'{"errors":[{"code":"UNKNOWN","message":"unknown"}]}')

    @property
    def types(self) -> dict[str, str]:
        return self.server.types


@contextmanager
def running_registry() -> Iterator[RegistryServer]:
    """Run a registry for the block."""
    with RegistryServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
