"""The snapshot engine with large libraries: torch with a 400 MB model, captions by ViT-GPT2 and transformers.

What: as in `benchmarks.engine`, from exec to first inference: thawed against warm, cold and forked.

How: one thread; random weights, the captions' in the real architecture (`programs/captions.py`), a beam search of four
with 16 new tokens. A cold start's time holds the imports, as it does for who waits for it. A caption takes seconds, and
what else the machine does varies it by more than a thaw adds: so the fastest of each kind are compared, not medians.

Why: their imports alone take seconds, which a snapshot saves however small the model is.

torch, transformers and safetensors are taken from ``.venv-libraries`` or the interpreter that
``BENCH_LIBRARIES_PYTHON`` names; without them the benchmark is skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarks import engine_models
from benchmarks.engine_processes import started
from benchmarks.engine_starts import Rounds, Starts, median, take_turns
from benchmarks.report import Figure, Skipped

TITLE = "engine-libraries: torch with 400 MB, ViT-GPT2 captions with 1 GB, frozen and thawed"

TORCH_MOST_OVER_WARM_MS = 15.0
CAPTIONS_LEAST_TIMES_LESS_OVERHEAD = 40.0
TORCH_TIMES = Rounds(rounds=3, forks=2, thaws=7)
CAPTIONS_TIMES = Rounds(rounds=2, forks=0, thaws=3, warm=1)


def measure() -> Sequence[Figure]:
    """Both bounds, with the restore steps.

    Raises:
        Skipped: a library is missing.
        BenchmarkError: a freeze was refused, a copy failed or came to another result.
    """
    python = engine_models.libraries_python()
    lacking = engine_models.missing(python, ["torch", "transformers", "tokenizers", "safetensors"])
    if lacking:
        raise Skipped(
            f"{python} lacks {', '.join(lacking)}; `make test-libraries` makes such an environment, "
            f"{engine_models.LIBRARIES_VARIABLE} names another"
        )
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
    workload = engine_models.with_model(name, python)
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
