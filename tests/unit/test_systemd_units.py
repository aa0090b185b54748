"""Claims about the units that ``thawd service`` writes, checked by systemd's own programs."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from thawd.cli.service import FILES

UNITS = FILES / "systemd"
ANALYZE = shutil.which("systemd-analyze")

pytestmark = pytest.mark.skipif(ANALYZE is None, reason="systemd is not installed")


def _analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    assert ANALYZE is not None
    return subprocess.run([ANALYZE, *arguments], capture_output=True, text=True, timeout=120, check=False)


def test_systemd_finds_no_mistake_in_the_units(tmp_path: Path) -> None:
    for unit in UNITS.iterdir():
        # The programs and the manual page that the unit names are not installed here.
        text = unit.read_text().replace("/opt/thawd/bin/thawd", "/bin/true").replace("Documentation=man:thawd(1)", "")
        (tmp_path / unit.name).write_text(text)
    done = _analyze("verify", *map(str, tmp_path.iterdir()))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_service_is_hardened() -> None:
    done = _analyze("security", "--offline=yes", "--threshold=29", str(UNITS / "thawd.service"))
    assert done.returncode == 0, done.stdout


def test_an_option_that_would_break_snapshots_is_not_set_and_the_unit_says_why() -> None:
    text = (UNITS / "thawd.service").read_text()
    options = dict(re.findall(r"^(\w+)=(.*)$", text, flags=re.MULTILINE))
    for name in ("ProcSubset", "ProtectControlGroups", "MemoryDenyWriteExecute", "PrivateUsers"):
        assert name not in options
        assert f"# - {name}=" in text
    assert {"user", "mnt"} <= set(options["RestrictNamespaces"].split())
    assert options["SystemCallFilter"].startswith("~")
    assert options["OOMPolicy"] == "continue"
