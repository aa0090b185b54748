"""Claims about ``thawd service``, which writes the files for running thawd as a service."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

from thawd.cli.program import main
from thawd.cli.service import FILES, PURPOSES


def service(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["service", *map(str, arguments)])


def test_every_file_of_the_package_is_listed_written_and_shown(tmp_path: Path) -> None:
    names = {str(path.relative_to(FILES)) for path in FILES.rglob("*") if path.is_file()}
    listed = service()
    written = service(tmp_path / "new" / "deploy")
    assert (listed.exit_code, written.exit_code) == (0, 0), written.output
    assert {line.split()[0] for line in listed.stdout.splitlines()} == names == set(PURPOSES)
    for name in names:
        text = (FILES / name).read_text()
        assert (tmp_path / "new" / "deploy" / name).read_text() == text
        assert service("--show", name).stdout == text


def test_a_file_that_somebody_changed_is_not_overwritten(tmp_path: Path) -> None:
    assert service(tmp_path).exit_code == 0
    assert service(tmp_path).exit_code == 0, "equal files are no obstacle"
    unit = tmp_path / "systemd" / "thawd.service"
    unit.write_text("mine")
    (tmp_path / "nginx" / "thawd.conf").unlink()
    refused = service(tmp_path)
    assert refused.exit_code == 1
    assert f"{unit} differs from thawd's, and nothing was written; name another folder" in refused.stderr
    assert unit.read_text() == "mine"
    assert not (tmp_path / "nginx" / "thawd.conf").exists()


def test_a_file_that_does_not_exist_is_refused_with_the_one_that_was_meant() -> None:
    refused = service("--show", "thawd.service")
    assert refused.exit_code == 1
    assert "did you mean systemd/thawd.service?" in refused.stderr
