"""The program that sends requests to S3 for `thawd.models.downloads`, and downloads objects to the cache.

The process is separate because an S3 client keeps threads and connections, which survive neither a snapshot nor a fork.
It reads requests from standard input, one JSON object on each line. It answers each with lines of JSON: any number of
progress lines, then one with ``done`` or ``error``. It ends at the end of its input. It uses the standard library of
Python 3.9 and later, and the packages obstore and, if installed, boto3. It imports nothing from thawd, because it is
started by the path of this file.

A download is appended to a locked file, so that only one of several processes downloads an object. If the download is
interrupted, the file is kept. The next download requests only the rest of the object, on condition that the object
still has the same ETag. The SHA-256 is computed over the whole content.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sys
import time
from typing import Any, Dict, Iterator, List, Optional

_CHUNK_BYTES = 1 << 20
_PROGRESS_S = 0.1
_RECORDED = ("text", "etag", "version", "size", "sha256")
_MISSING, _CHANGED, _FAILED = "missing", "changed", "failed"


class _Refused(Exception):
    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def main() -> None:
    """Answer requests until the input ends."""
    stores: Dict[str, Any] = {}
    for line in sys.stdin:
        request = json.loads(line)
        try:
            _say({"done": _OPERATIONS[request["op"]](request, stores)})
        except _Refused as error:
            _say({"error": str(error), "kind": error.kind})
        except FileNotFoundError as error:
            _say({"error": _first_line(error), "kind": _MISSING})
        except Exception as error:
            kind = _CHANGED if type(error).__name__ == "PreconditionError" else _FAILED
            _say({"error": _first_line(error) + _cache_note(error, request), "kind": kind})


def _say(answer: Dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _first_line(error: BaseException) -> str:
    """The first line of an error's text. obstore's errors have further lines with details for debugging."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _cache_note(error: BaseException, request: Dict[str, Any]) -> str:
    """A text that names the cache's folder, if `error` is a disk error such as a full disk; otherwise empty."""
    if not isinstance(error, OSError) or error.errno is None or "partial" not in request:
        return ""
    return (
        f"; the cache of models is {os.path.dirname(os.path.dirname(request['partial']))}. The downloaded part is kept"
    )


def _hello(request: Dict[str, Any], stores: Dict[str, Any]) -> None:
    """Use the ``sys.path`` of the process that sent the request, and check that obstore can be imported from it.

    obstore may be installed in the function's code, which is only on that process's ``sys.path``.
    """
    sys.path[:] = request["path"]
    try:
        import obstore  # noqa: F401
    except ImportError:
        raise _Refused("library", "no obstore") from None


def _store(request: Dict[str, Any], stores: Dict[str, Any]) -> Any:
    """obstore's store for the bucket. boto3 provides the credentials if it has any, otherwise obstore does."""
    name = json.dumps([request["bucket"], request["parameters"]], sort_keys=True)
    if name not in stores:
        from obstore.store import S3Store

        given = request["parameters"]
        options: Dict[str, Any] = {"client_options": {"allow_http": True}}
        endpoint = given.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        if endpoint:
            options["endpoint"] = endpoint
        if given.get("anonymous") == "true":
            options["skip_signature"] = True
        else:
            try:
                import boto3
                from obstore.auth.boto3 import Boto3CredentialProvider

                session = boto3.Session()
                if session.get_credentials() is not None:
                    options["credential_provider"] = Boto3CredentialProvider(session)
            except ImportError:
                pass
        region = given.get("region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        virtual = given.get("path_style", "true") == "false"
        stores[name] = S3Store(
            request["bucket"], region=region or "us-east-1", virtual_hosted_style_request=virtual, **options
        )
    return stores[name]


def _described(meta: Any) -> Dict[str, Any]:
    return {
        "key": meta["path"],
        "size": meta["size"],
        "etag": (meta["e_tag"] or "").strip('"'),
        "version": meta["version"],
    }


def _head(request: Dict[str, Any], stores: Dict[str, Any]) -> Dict[str, Any]:
    import obstore

    version = request.get("version")
    if version:
        answer = obstore.get(_store(request, stores), request["key"], options={"version": version, "head": True})
        return _described(answer.meta)
    return _described(obstore.head(_store(request, stores), request["key"]))


def _list(request: Dict[str, Any], stores: Dict[str, Any]) -> Any:
    import obstore

    pages = obstore.list(_store(request, stores), prefix=request["key"])
    found = sorted((_described(meta) for page in pages for meta in page), key=lambda found: found["key"])
    return [one for one in found if not _is_marker(one, request["key"], found)]


def _is_marker(one: Dict[str, Any], folder: str, found: List[Dict[str, Any]]) -> bool:
    """Whether an object only marks a folder. The S3 console makes such objects: empty, with a slash after the key.

    obstore returns keys without that slash. So an empty object counts as a marker if its key is that of the listed
    folder, or of a folder that contains another object.
    """
    inside = one["key"].rstrip("/") + "/"
    return one["size"] == 0 and (inside == folder or any(other["key"].startswith(inside) for other in found))


def _fetch(request: Dict[str, Any], stores: Dict[str, Any]) -> Dict[str, Any]:
    """Download the object into the cache, unless another process has done so. Returns the object's record."""
    partial, index = request["partial"], request["index"]
    with _locked(partial, progress=request["key"]) as file:
        recorded = _recorded(index, request["blobs"])
        if recorded is not None:  # another process has downloaded the object in the meantime
            os.unlink(partial)
            return {**recorded, "downloaded": 0}
        begun, digest = _hash_of(file, request["size"])
        for chunk in _rest(request, stores, begun):
            file.write(chunk)
            digest.update(chunk)
            _progress(request["key"], file.tell(), request["size"])
        file.flush()
        os.fsync(file.fileno())
        _progress(request["key"], file.tell(), request["size"], always=True)
        sha256 = digest.hexdigest()
        if file.tell() != request["size"]:
            os.unlink(partial)
            raise _Refused(_FAILED, f"{file.tell()} bytes arrived instead of {request['size']}; try again")
        if request["sha256"] not in (None, sha256):
            os.unlink(partial)
            raise _Refused(_CHANGED, f"its SHA-256 is {sha256}, but {request['sha256']} was requested")
        os.fchmod(file.fileno(), 0o444)
        blob = os.path.join(request["blobs"], sha256)
        recorded = {name: request[name] for name in _RECORDED if name != "sha256"}
        recorded["sha256"] = sha256
        # Write the index before the rename. After the rename, another process can lock a new file at `partial`. That
        # process would download the object again if the index did not name the blob.
        _write(index, recorded)
        # A process that removes a damaged blob holds this lock from the check of the blob until its removal. So it
        # cannot remove the new blob instead of the damaged one.
        with open(request["lock"], "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            os.replace(partial, blob)
            status = os.stat(blob)
            seen = {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "inode": status.st_ino, "sha256": sha256}
            _write(blob + ".seen", seen)
        return {**recorded, "downloaded": request["size"] - begun, "resumed": begun}


def _locked(path: str, *, progress: str) -> Any:
    """Open the partial download for appending, and lock it. Start again if another process has moved it meanwhile."""
    while True:
        file = open(path, "ab+", buffering=0)  # noqa: SIM115 - the caller closes it
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            _say({"progress": progress, "waiting": True})
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            if os.stat(path).st_ino == os.fstat(file.fileno()).st_ino:
                return file
        except FileNotFoundError:
            pass
        file.close()


def _recorded(index: str, blobs: str) -> Optional[Dict[str, Any]]:
    try:
        with open(index) as file:
            recorded: Dict[str, Any] = json.load(file)
    except (OSError, ValueError):
        return None
    if not isinstance(recorded, dict) or not set(_RECORDED) <= set(recorded):
        return None
    return recorded if os.path.exists(os.path.join(blobs, recorded["sha256"])) else None


def _hash_of(file: Any, size: int) -> Any:
    """Hash what has been downloaded; returns its size in bytes and the hash object.

    A file larger than `size` is emptied first.

    Args:
        file: the partial download.
        size: size of the object, bytes.
    """
    digest = hashlib.sha256()
    if os.fstat(file.fileno()).st_size > size:
        # The file is longer than the object, so its content is not that of the object. If it were shortened to `size`,
        # it would count as complete: nothing would be requested, and without a pinned SHA-256, nobody would notice.
        file.truncate(0)
    file.seek(0)
    while chunk := file.read(_CHUNK_BYTES):
        digest.update(chunk)
    return file.tell(), digest


def _rest(request: Dict[str, Any], stores: Dict[str, Any], begun: int) -> Iterator[bytes]:
    import obstore

    if begun == request["size"]:
        return
    options: Any = {"range": (begun, request["size"])}
    if request["etag"]:
        options["if_match"] = '"' + request["etag"] + '"'
    if request["version"]:
        options["version"] = request["version"]
    for chunk in obstore.get(_store(request, stores), request["key"], options=options).stream(_CHUNK_BYTES):
        yield bytes(chunk)


_said_s = [0.0]


def _progress(key: str, done: int, size: int, *, always: bool = False) -> None:
    now_s = time.monotonic()
    if always or now_s - _said_s[0] >= _PROGRESS_S:
        _said_s[0] = now_s
        _say({"progress": key, "at": done, "size": size})


def _write(path: str, record: Dict[str, Any]) -> None:
    staged = f"{path}.{os.getpid()}"
    with open(staged, "w") as file:
        json.dump(record, file)
    os.replace(staged, path)


_OPERATIONS = {"hello": _hello, "head": _head, "list": _list, "fetch": _fetch}

if __name__ == "__main__":
    main()
