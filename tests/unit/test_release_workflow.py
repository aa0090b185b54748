"""Claims about the workflow for releases and the image of thawd, as far as they can be checked without running them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import yaml

from thawd.deploy.images.dockerfile.parsing import parse
from thawd.deploy.images.dockerfile.planning import plan

ROOT = Path(__file__).resolve().parents[2]


def test_the_workflow_runs_commands_that_exist() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    jobs = workflow["jobs"]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    commands = "\n".join(step.get("run", "") for job in jobs.values() for step in job["steps"])
    named = re.findall(r"\bmake ([a-z-]+)$", commands, flags=re.MULTILINE)
    assert named == ["wheel"]
    assert set(named) <= set(targets)
    for module in re.findall(r"-m (tools\.\w+)", commands):
        done = subprocess.run([sys.executable, "-m", module, "--help"], cwd=ROOT, capture_output=True, check=False)
        assert done.returncode == 0
    # What is published was tried, and only the publishing job can get a token.
    assert (jobs["publish"]["needs"], jobs["try"]["needs"]) == ("try", "build")
    assert [name for name, job in jobs.items() if "id-token" in job.get("permissions", {})] == ["publish"]


def test_thawd_plans_the_build_of_its_own_image() -> None:
    path = ROOT / "deploy" / "docker" / "Dockerfile"
    found = plan(parse(path.read_text(), path), target=None, build_args={}, platform_args={})
    assert len(found.stages) == 2
