"""What an agent on a node of Ray gives to its thawd: folders, files, environment variables."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path

import pytest

from thawd import __version__
from thawd.ray_nodes import data_folders, launching, ray_library, shipping
from thawd.ray_nodes.data_folders import chosen
from thawd.ray_nodes.options import PROJECT, Options
from thawd.ray_nodes.server_process import environment


def test_a_node_keeps_its_data_folder_and_a_new_one_takes_over_that_of_one_that_is_gone(tmp_path: Path) -> None:
    root = tmp_path / "data"
    assert data_folders.take(root, "a", {"a", "b"}) == root / "0"
    assert data_folders.take(root, "b", {"a", "b"}) == root / "1"
    assert data_folders.take(root, "a", {"a", "b"}) == root / "0"
    assert data_folders.take(root, "c", {"b", "c"}) == root / "0"
    assert data_folders.take(root, "d", {"b", "c", "d"}) == root / "2"
    assert root.stat().st_mode & 0o077 == 0


def test_an_agent_keeps_its_own_copy_of_the_files_that_ray_may_remove(tmp_path: Path) -> None:
    unpacked, data = tmp_path / "unpacked", tmp_path / "0"
    (unpacked / "lib").mkdir(parents=True)
    (unpacked / "lib" / "app.py").write_text("1")
    first = data_folders.own_copy(unpacked, "a" * 64, data)
    (unpacked / "lib" / "app.py").write_text("2")
    assert data_folders.own_copy(unpacked, "a" * 64, data) == first
    assert (first / "lib" / "app.py").read_text() == "1"
    second = data_folders.own_copy(unpacked, "b" * 64, data)
    assert (second / "lib" / "app.py").read_text() == "2" and not first.exists()
    assert not list(data.glob("*"))  # thawd's data folder has only thawd's files


def test_the_oldest_folder_of_a_node_that_is_gone_is_taken_over_first() -> None:
    owners = {str(number): f"node{number}" for number in range(12)}
    assert chosen(owners, "new", set(owners.values()) - {"node2", "node10"}) == "2"


def test_thawd_gets_the_variables_of_the_node_and_none_of_ray() -> None:
    initial = {
        "PATH": "/bin",
        "PASSWORD": "secret",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "RAY_AUTH_TOKEN": "token",
        "RAY_ADDRESS": "10.0.0.1:6379",
        "PYTHONPATH": f"/session/package{os.pathsep}/opt/own",
        "PWD": "/session/package",
        "THAWD_JOIN_TOKEN": "thawd1-",
    }
    found = environment(initial, folder=Path("/session/package/project"), data=Path("/d"), address="10.0.0.2:0")
    assert found == {
        "PATH": "/bin",
        "PASSWORD": "secret",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "PYTHONPATH": "/opt/own",
        "THAWD_DATA": "/d",
        "THAWD_CLUSTER_ADDRESS": "10.0.0.2:0",
    }


def test_the_same_files_give_the_same_package_without_data_and_caches(tmp_path: Path) -> None:
    root = tmp_path / "project"
    for name in ("app.py", "lib/more.py", ".thawd/state.db", ".git/config", "__pycache__/app.pyc"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    shipping.pack(root, tmp_path / "1.zip")
    os.utime(root / "app.py", (1, 1))
    shipping.pack(root, tmp_path / "2.zip")
    assert (tmp_path / "1.zip").read_bytes() == (tmp_path / "2.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "1.zip") as package:
        modes = {info.filename: (info.external_attr >> 16) & 0o777 for info in package.infolist()}
    assert modes == {
        f"{PROJECT}/app.py": 0o600,
        f"{PROJECT}/lib/more.py": 0o600,
        f"{PROJECT}/run.sh": 0o700,
    }


def test_what_cannot_be_sent_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, secret = tmp_path / "project", tmp_path / "secret"
    root.mkdir()
    secret.write_text("x" * 100)
    (root / "link").symlink_to(secret)
    with pytest.raises(shipping.PackageError, match="link is a link to a file outside"):
        shipping.pack(root, tmp_path / "1.zip")
    (root / "link").unlink()
    (root / "model.bin").write_bytes(b"x" * 100)
    monkeypatch.setattr(shipping, "MOST_BYTES", 50)
    with pytest.raises(shipping.PackageError, match="--folder"):
        shipping.pack(root, tmp_path / "2.zip")


def test_without_ray_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ray_library.RayError, match=r"pip install 'thawd\[ray\]'"):
        ray_library.import_ray()


class FakeRay:
    """What `launching.require_usable` uses of Ray."""

    def __init__(self, address: str, **facts: str) -> None:
        self._address, self._facts = address, {"version": __version__, "auth": ""} | facts

    def remote(self, function: object = None) -> FakeRay:
        return self

    def options(self, **options: object) -> FakeRay:
        assert options == {"num_cpus": 0}
        return self

    def get(self, call: object, timeout: float) -> dict[str, str]:
        return self._facts

    def nodes(self) -> list[dict[str, object]]:
        return [
            {"NodeManagerAddress": "127.0.0.1", "Alive": True},
            {"NodeManagerAddress": self._address, "Alive": True},
            {"NodeManagerAddress": "10.0.0.9", "Alive": False},
        ]


def test_a_ray_cluster_that_lets_in_everybody_is_refused() -> None:
    with pytest.raises(ray_library.RayError, match="asks nobody for a token"):
        launching.require_usable(FakeRay("10.0.0.1"), needs_token=True)
    launching.require_usable(FakeRay("10.0.0.1", auth="token"), needs_token=True)
    launching.require_usable(FakeRay("10.0.0.1"), needs_token=False)
    launching.require_usable(FakeRay("127.0.0.2"), needs_token=True)


def test_nodes_with_another_thawd_are_refused() -> None:
    with pytest.raises(ray_library.RayError, match="install the same version on all"):
        launching.require_usable(FakeRay("127.0.0.1", version="0.0.1"), needs_token=True)


def test_options_have_no_place_for_secrets() -> None:
    assert not {"token", "key", "password"} & set(Options.__struct_fields__)
