"""Installs the wheels into clean systems of two Debian releases, with different glibcs, and serves a function there.

``python -m tools.clean_roots FOLDER`` needs root, debootstrap, and wheels that ``make wheel`` has made. It makes a
system for each release in FOLDER, unless it is there already, and runs programs in it with namespaces of their own,
without containers. The systems have Python, and neither a compiler nor pip's cache. Two wheels are tried in each: the
one for x86-64, with which the function must be thawed, and the one for other machines, with which it must be forked.

``thawd service`` must write the units, too, which only an installed wheel can show. The exit status is 1 if an
installation fails or the function starts in another way.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WHEELS = ROOT / "build" / "wheels"
RELEASES = ("bookworm", "trixie")
MIRROR = "http://deb.debian.org/debian"
INCLUDED = "python3,python3-venv,ca-certificates"

# Makes $1 the root of new namespaces, and runs the rest of the arguments there. In a chroot instead, the kernel would
# refuse user namespaces. Source: user_namespaces(7), EPERM.
ENTER = """
set -e
root=$1; shift
mount --make-rprivate /
mount --bind "$root" "$root"
cd "$root"
mount -t proc proc proc
mount --rbind /dev dev
mount --rbind /sys sys
mount -t tmpfs tmpfs tmp
mkdir -p .old
pivot_root . .old
umount -l .old
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root "$@"
"""

INSTALL = """
set -e
rm -rf /opt/thawd
python3 -m venv /opt/thawd
/opt/thawd/bin/pip install --quiet --disable-pip-version-check --no-cache-dir "$1"
/opt/thawd/bin/thawd service /tmp/deploy >/tmp/written
test -s /tmp/deploy/systemd/thawd.service -a -s /tmp/deploy/systemd/thawd.socket
rm -rf /srv/thawd
mkdir /srv/thawd
cp /opt/project/* /srv/thawd
chown -R nobody /srv/thawd
exec setpriv --reuid nobody --regid nogroup --clear-groups env -C /srv/thawd HOME=/srv/thawd python3 check.py
"""

PROJECT = {
    "thawd.toml": '[server]\nport = 0\n[functions.app]\nhandler = "app.handler"\n[routes]\n"$default" = "app"\n',
    "app.py": "import os\nSEED = os.urandom(8).hex()\ndef handler(event, context):\n    return SEED\n",
    "check.py": """
import json, os, platform, subprocess, sys, time, urllib.request
with open("log", "w") as log:
    server = subprocess.Popen(
        ["/opt/thawd/bin/thawd", "up", "--ready-file", "ready", "--ready-when", "published"], stdout=log, stderr=log
    )
    end_s = time.monotonic() + 120
    while not os.path.exists("ready"):
        if server.poll() is not None or time.monotonic() > end_s:
            sys.exit(open("log").read())
        time.sleep(0.05)
    url = json.load(open("ready"))["url"]
    answer = urllib.request.urlopen(url, timeout=60).read()
    assert len(answer) == 16, answer
    status = json.load(urllib.request.urlopen(url + "/_thawd/status", timeout=60))
    server.terminate()
    assert server.wait(60) == 0, open("log").read()
starts = status["functions"]["app"]["starts"]
print(" ".join(os.confstr("CS_GNU_LIBC_VERSION").split()), platform.python_version(), *starts, sep=", ")
""",
}


def main() -> int:
    """Try all wheels in all releases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder for the systems, about 400 MB each")
    parser.add_argument("--release", action="append", choices=RELEASES, help="only this release")
    given = parser.parse_args()
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        sys.exit("run this as root, with debootstrap installed (apt-get install debootstrap)")
    wheels = [(_only("*-manylinux*_x86_64.whl"), "thaw"), (_only("*-none-any.whl"), "fork")]
    failed = 0
    for release in given.release or RELEASES:
        root = _system(given.folder.absolute() / release, release)
        for wheel, wanted in wheels:
            shutil.copy(wheel, root / "opt")
            done = subprocess.run(
                ["unshare", "--mount", "--pid", "--fork", "sh", "-c", ENTER, "sh", root]
                + ["sh", "-c", INSTALL, "sh", f"/opt/{wheel.name}"],
                capture_output=True,
                text=True,
                check=False,
            )
            is_right = done.returncode == 0 and done.stdout.strip().endswith(f", {wanted}")
            failed += not is_right
            print(
                f"{release}, {wheel.name}: {done.stdout.strip()}{'' if is_right else f' - wanted: {wanted}'}",
                flush=True,
            )
            if not is_right:
                print(done.stderr, file=sys.stderr)
    return 1 if failed else 0


def _only(pattern: str) -> Path:
    found = sorted(WHEELS.glob(pattern))
    if len(found) != 1:
        sys.exit(f"{WHEELS} has {len(found)} wheels like {pattern}, and must have one: run `make wheel`")
    return found[0]


def _system(root: Path, release: str) -> Path:
    """Make the system of a release, with the programs of this machine's resolver and certificates."""
    is_whole = root / "opt" / "project"
    if not is_whole.is_dir():
        command = ["debootstrap", "--variant=minbase", f"--include={INCLUDED}", release, str(root), MIRROR]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        is_whole.mkdir()
    for name, text in PROJECT.items():
        (is_whole / name).write_text(text)
    for name in ("etc/resolv.conf", "etc/ssl/certs/ca-certificates.crt"):
        shutil.copy(f"/{name}", root / name)
    return root


if __name__ == "__main__":
    sys.exit(main())
