"""Claims about `thawd.models.download_process`: which part of an interrupted download is used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from thawd.models import download_process

OBJECT = b"0123456789" * 100


def fetch(folder: Path, left: bytes, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], bytes, list[int]]:
    """Download `OBJECT` after an earlier download left `left`: the record, the blob, and the offsets requested."""
    begun_at = []

    def rest(request: dict[str, Any], stores: dict[str, Any], begun: int) -> Iterator[bytes]:
        if begun < request["size"]:
            begun_at.append(begun)
            yield OBJECT[begun:]

    monkeypatch.setattr(download_process, "_rest", rest)
    for name in ("partial", "index", "blobs"):
        (folder / name).mkdir()
    (folder / "partial" / "key").write_bytes(left)
    request = {
        "key": "a.bin",
        "text": "s3://models/a.bin",
        "etag": "e",
        "version": None,
        "size": len(OBJECT),
        "sha256": None,
        "partial": str(folder / "partial" / "key"),
        "index": str(folder / "index" / "key.json"),
        "blobs": str(folder / "blobs"),
        "lock": str(folder / "lock"),
    }
    recorded = download_process._fetch(request, {})
    return recorded, (folder / "blobs" / recorded["sha256"]).read_bytes(), begun_at


@pytest.mark.parametrize("kept", [0, 1, 999])
def test_a_part_is_used_and_the_rest_requested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int) -> None:
    recorded, blob, begun_at = fetch(tmp_path, OBJECT[:kept], monkeypatch)
    assert (blob, begun_at, recorded["resumed"]) == (OBJECT, [kept], kept)


def test_a_whole_download_is_used_without_a_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded, blob, begun_at = fetch(tmp_path, OBJECT, monkeypatch)
    assert (blob, begun_at, recorded["downloaded"]) == (OBJECT, [], 0)


@pytest.mark.parametrize("left", [OBJECT + b"x", b"x" * 1001], ids=["longer", "other"])
def test_a_part_longer_than_the_object_is_not_cut_but_downloaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: bytes
) -> None:
    recorded, blob, begun_at = fetch(tmp_path, left, monkeypatch)
    assert (blob, begun_at, recorded["resumed"]) == (OBJECT, [0], 0)
