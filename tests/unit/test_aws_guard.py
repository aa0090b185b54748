"""Under `--aws` botocore of any version sends requests to the emulator or fails. It never sends any to AWS."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from thawd.runtime import aws_guard

SITE = Path(aws_guard.__file__).parent / "site"
# The parts of an old botocore (before 1.31.0) that the guard changes. It ignores the environment variable.
OLD = {
    "botocore/__init__.py": '__version__ = "1.28.5"\n',
    "botocore/session.py": """
class Session:
    def create_client(self, service_name, region_name=None, api_version=None, use_ssl=True, verify=None,
                      endpoint_url=None):
        return endpoint_url
""",
    "botocore/exceptions.py": """
class BotoCoreError(Exception):
    fmt = ""
    def __init__(self, **kwargs):
        super().__init__(self.fmt.format(**kwargs))
""",
    "botocore/httpsession.py": """
class URLLib3Session:
    def send(self, request):
        return "sent"
""",
}
ENVIRONMENT = {"THAWD_AWS": "local", "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}


def run(tmp_path: Path, code: str, **variables: str) -> str:
    """Run code in a Python that a function might start, and return the last line it prints."""
    for name, text in OLD.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    path = os.pathsep.join([str(tmp_path), str(SITE)])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**ENVIRONMENT, "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.strip()


def test_an_old_botocore_gets_the_endpoint(tmp_path: Path) -> None:
    code = """
from botocore.session import Session
print(Session().create_client("s3"), Session().create_client("s3", endpoint_url="http://own"),
      Session().create_client("s3", None, None, True, None, "http://sixth"), Session().create_client("dynamodb"))
"""
    said = run(tmp_path, code, AWS_ENDPOINT_URL_DYNAMODB="http://tables")
    assert said.split() == ["http://127.0.0.1:1", "http://own", "http://sixth", "http://tables"]


def test_nothing_goes_to_aws(tmp_path: Path) -> None:
    code = """
from types import SimpleNamespace
from botocore.httpsession import URLLib3Session
from botocore.exceptions import BotoCoreError
for url in ("https://s3.amazonaws.com/a", "https://b.s3.cn-north-1.amazonaws.com.cn/", "https://x.eu-west-1.api.aws/",
            "http://127.0.0.1:1/amazonaws.com", "https://notamazonaws.com/"):
    try:
        print(URLLib3Session().send(SimpleNamespace(url=url)))
    except BotoCoreError as error:
        assert "--aws-real" in str(error)
        print("refused")
"""
    assert run(tmp_path, code).split() == ["refused", "refused", "refused", "sent", "sent"]


def test_a_botocore_in_a_zip_is_changed_as_one_in_a_folder(tmp_path: Path) -> None:
    code = """
from types import SimpleNamespace
from botocore.session import Session
from botocore.httpsession import URLLib3Session
import botocore.exceptions
print(botocore.__file__.endswith("packages.zip/botocore/__init__.py"), Session().create_client("s3"))
try:
    print(URLLib3Session().send(SimpleNamespace(url="https://s3.amazonaws.com/a")))
except botocore.exceptions.BotoCoreError:
    print("refused")
"""
    with zipfile.ZipFile(tmp_path / "packages.zip", "w") as packages:
        for name, text in OLD.items():
            packages.writestr(name, text)
    path = os.pathsep.join([str(tmp_path / "packages.zip"), str(SITE)])
    assert run(tmp_path, code, PYTHONPATH=path).split() == ["True", "http://127.0.0.1:1", "refused"]


def test_without_the_emulator_nothing_is_changed(tmp_path: Path) -> None:
    code = 'import sys\nfrom botocore.session import Session\nprint(Session().create_client("s3"))'
    assert run(tmp_path, code, THAWD_AWS="") == "None"


def test_a_sitecustomize_of_the_functions_own_is_loaded_too(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.OWN = 'here'\n")
    path = os.pathsep.join([str(SITE), str(tmp_path)])
    code = 'from botocore.session import Session\nprint(OWN, Session().create_client("s3"))'
    assert run(tmp_path, code, PYTHONPATH=path) == "here http://127.0.0.1:1"
