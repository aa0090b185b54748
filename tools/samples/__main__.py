"""``python -m tools.samples``: fetches, prepares and serves the samples, and prints how each one answered.

It needs the network (npm, PyPI) to install what the samples require, git, Node with npm, and for the CDK apps `cdk` on
PATH, which ``npm install --global aws-cdk`` brings. Clones of the four repositories are expected in one folder:

    git clone https://github.com/aws-samples/serverless-patterns samples/patterns    # and the others, by their keys
    python -m tools.samples samples --work build/samples
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from tools.samples import apis, frameworks, functions
from tools.samples.listing import REPOSITORIES, SAMPLES, Sample
from tools.samples.served import WrongAnswerError, serve

_CHECKS = apis.CHECKS | functions.CHECKS | frameworks.CHECKS
# Most seconds from `thawd up` to the first answer, without the installation of packages.
_MOST_S = 5.0
_NODE, _PYTHON = ("16", "18", "22", "24"), ("3.9", "3.12", "3.13", "3.14")


def main() -> None:
    """Run the samples that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repositories", type=Path, help="the folder with the clones")
    parser.add_argument("names", nargs="*", help="folders of samples; all if there are none")
    parser.add_argument("--work", type=Path, default=Path("build/samples"), help="where the samples are served")
    parser.add_argument("--thawd", default=str(Path(sys.executable).parent / "thawd"), help="the command")
    parser.add_argument("--runtime", action="append", help="as that of thawd up; by default the interpreters at hand")
    parser.add_argument("--limit", type=float, default=90.0, help="seconds to wait for stacks, and for an answer")
    given = parser.parse_intermixed_args()
    runtimes = given.runtime or [
        *(f"nodejs{each}.x=node" for each in _NODE),
        *(f"python{each}={sys.executable}" for each in _PYTHON),
    ]
    chosen = [each for each in SAMPLES if not given.names or each.folder in given.names]
    environ = os.environ | {"THAWD_RUNTIMES": ",".join(runtimes)}
    good, beyond_s = 0, list[float]()
    for sample in chosen:
        place = (given.work / sample.repository / sample.folder).resolve()
        try:
            folder = _prepared(sample, given.repositories, place, environ)
            complete_s, answered_s, installing_s = _tried(sample, folder, given.thawd, environ, given.limit)
        except (WrongAnswerError, OSError, subprocess.CalledProcessError, KeyError, ValueError) as error:
            reason = getattr(error, "stderr", None) or error
            print(
                f"FAIL  {sample.folder}  {sample.kind}: {type(error).__name__}: {str(reason).strip()[-700:]}",
                flush=True,
            )
        else:
            good += 1
            beyond_s.append(answered_s - installing_s)
            print(
                f"ok    {sample.folder}  {sample.kind}  complete {complete_s:.1f} s, answered {answered_s:.1f} s, "
                f"of it installing packages {installing_s:.1f} s, the rest {beyond_s[-1]:.1f} s",
                flush=True,
            )
    print(f"{good} of {len(chosen)}")
    if beyond_s:
        quick = sum(each <= _MOST_S for each in beyond_s)
        print(f"{quick} within {_MOST_S:.0f} s beyond installing packages; median {statistics.median(beyond_s):.1f} s")


def _prepared(sample: Sample, repositories: Path, place: Path, environ: dict[str, str]) -> Path:
    """Lay a sample out, once, and do what its README says before the deployment. Returns the project's folder."""
    folder = place / sample.project
    ready = place.parent / f"{place.name}.ready"
    if not ready.exists():
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        _, commit = REPOSITORIES[sample.repository]
        packed = subprocess.run(
            ["git", "-C", str(repositories / sample.repository), "archive", f"{commit}:{sample.folder}"],
            check=True,
            capture_output=True,
        )
        subprocess.run(["tar", "x", "-C", str(place)], input=packed.stdout, check=True)
        for name, (before, after) in sample.edits.items():
            file = folder / name
            file.write_text(file.read_text().replace(before, after))
        for command in sample.commands:
            subprocess.run(command, shell=True, cwd=folder, check=True, capture_output=True, text=True)
        if sample.kind.startswith("CDK"):
            _synthesise(sample, folder, environ)
        ready.touch()
    shutil.rmtree(folder / ".thawd", ignore_errors=True)
    return folder


def _synthesise(sample: Sample, folder: Path, environ: dict[str, str]) -> None:
    if (folder / "package.json").exists() and not (folder / "node_modules").exists():
        subprocess.run(["npm", "install"], cwd=folder, check=True, capture_output=True, text=True)
    context = [part for name, value in sample.context.items() for part in ("--context", f"{name}={value}")]
    command = ["cdk", "synth", "--quiet", *context]
    subprocess.run(command, cwd=folder, env=environ, check=True, capture_output=True, text=True)


def _tried(
    sample: Sample, folder: Path, thawd: str, environ: dict[str, str], limit_s: float
) -> tuple[float, float, float]:
    """Serve a sample and judge its answer.

    Returns:
        Seconds from the start of ``thawd up`` until its stacks were complete, and until the answer was judged right;
        and how many of them thawd has installed packages, as it reports.
    """
    options = [*(["-c", sample.file] if sample.file else []), *sample.options]
    served = serve(folder, thawd, options, environ, folder.parent / f"{folder.name}.log", limit_s)
    try:
        served.wait(sample.stacks)
        complete = time.monotonic()
        _CHECKS[sample.folder](served)
        return complete - served.started, time.monotonic() - served.started, served.installing_s
    except json.JSONDecodeError as error:
        raise WrongAnswerError(f"no JSON: {error.doc[:300]}") from error
    finally:
        served.stop()


if __name__ == "__main__":
    main()
