"""The snapshot engine with large libraries: torch with a 400 MB model, and image captions with ViT-GPT2 and
transformers.

What: the time from exec to the first inference, as in `benchmarks.engine`: thawed compared with warm, cold and forked.

How: one thread and random weights. The caption model has the real architecture (`programs/captions.py`) and uses a beam
search with four beams and 16 new tokens. A cold start's time includes the imports, because a caller waits for them too.
A caption takes seconds, and other load on the machine changes that time by more than a thaw adds. So the fastest start
of each kind is compared, not the median.

Why: the imports alone take seconds. A snapshot saves them however small the model is.

torch, transformers and safetensors come from ``.venv-libraries``, which `benchmarks.needs` makes, or from the
interpreter that ``BENCH_LIBRARIES_PYTHON`` names. Without them the benchmark is skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarks import engine_models, needs, progress
from benchmarks.engine_processes import started
from benchmarks.engine_starts import Rounds, Starts, median, take_turns
from benchmarks.report import Figure

TITLE = "engine-libraries: torch with 400 MB, ViT-GPT2 captions with 1 GB, frozen and thawed"

TORCH_MOST_OVER_WARM_MS = 15.0
CAPTIONS_LEAST_TIMES_LESS_OVERHEAD = 40.0
TORCH_TIMES = Rounds(rounds=3, forks=2, thaws=7)
CAPTIONS_TIMES = Rounds(rounds=2, forks=0, thaws=3, warm=1)


def measure() -> Sequence[Figure]:
    """Measure both ratios and the restore steps.

    Raises:
        Skipped: the libraries cannot be installed.
        BenchmarkError: a freeze was refused, or a copy failed or produced a different result.
    """
    python = needs.libraries()
    torch = _starts("torch_stack", python, TORCH_TIMES)
    captions = _starts("captions", python, CAPTIONS_TIMES)
    return [
        *_named("torch", [torch.over_warm(TORCH_MOST_OVER_WARM_MS), torch.overhead_against_fork(), _restore(torch)]),
        *_named(
            "captions",
            [captions.overhead_against_cold(CAPTIONS_LEAST_TIMES_LESS_OVERHEAD, pick=min), _restore(captions)],
        ),
    ]


def _starts(name: str, python: str, times: Rounds) -> Starts:
    progress.step(f"{name}: make the model, unless it is there")
    workload = engine_models.with_model(name, python)
    progress.step(f"{name}: load, freeze")
    with engine_models.image_folder() as folder:
        image = folder / "image"
        with started(workload.command, engine_models.environment()) as original:
            result = str(original.answer()["result"])
            original.ask(f"freeze {image}")
            return take_turns(workload, image, original, result, times=times)


def _restore(starts: Starts) -> Figure:
    return Figure("restore step", median(starts.thaw, "restore_ms"), "ms")


def _named(name: str, figures: list[Figure]) -> list[Figure]:
    return [replace(figure, name=f"{name}: {figure.name}") for figure in figures]
