"""What a finished run leaves beside its record: step times, samples of text, what its heads look at."""

from __future__ import annotations

import itertools
import json
import resource
import time
from dataclasses import asdict
from pathlib import Path

import torch

from oelm.data.tokenizer import Tokenizer, load_tokenizer
from oelm.errors import OelmError
from oelm.files import write_atomically
from oelm.models.attention import attention_summary
from oelm.models.generate import generate
from oelm.models.gpt import GPT
from oelm.record.timing import InitMethod, timing_stats
from oelm.runner.language import LanguageTask
from oelm.train.loop import Progress
from oelm.train.precision import autocast

SAMPLES, PROMPT_TOKENS, SAMPLE_TOKENS = 3, 24, 96


def write_artefacts(directory: Path, model: GPT, task: LanguageTask, progress: Progress, wall_seconds: float) -> None:
    """Write timing_stats.json, attention.json and samples.txt."""
    run = task.run
    published: dict[str, InitMethod] = {"orthogonal": "orthogonal", "normal": "normal"}
    stats = timing_stats(
        progress.step_seconds,
        model_type=run.arm,
        init_method=published.get(run.method.init.shape, "n/a"),
        dataset=run.data.corpus,
        total_wall_time=wall_seconds,
        validation_seconds=progress.validation_seconds,
        epoch_seconds=_epochs(progress.step_seconds, task.batches.steps_per_epoch),
        best_val_loss=progress.best_loss,
    )
    write_atomically(directory / "timing_stats.json", stats.model_dump_json(indent=1) + "\n")
    ids, _ = task.batches.batch(0, slice(0, 4))
    write_atomically(
        directory / "attention.json", json.dumps(asdict(attention_summary(model, ids.to(task.device)))) + "\n"
    )
    try:
        samples = _samples(model, task, load_tokenizer(task.tokens.directory))
    except OelmError as error:  # token files alone train a model; only a person's reading needs their tokenizer
        samples = f"no samples: {error}\n"
    write_atomically(directory / "samples.txt", samples)


def peak_memory(device: torch.device) -> int:
    """Return the most memory this process has held, in bytes, on its device."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def matmul_peak(device: torch.device, precision: str) -> float:
    """Measure the FLOPs per second of a large matrix product: what a training step can at most use."""
    size = 4096 if device.type == "cuda" else 768
    x = torch.randn(size, size, device=device)
    times = []
    with torch.no_grad(), autocast(device, precision):
        for _ in range(5):
            began = time.perf_counter()
            y = x @ x
            y[0, 0].item()  # waits for the device
            times.append(time.perf_counter() - began)
    return 2 * size**3 / min(times)


def _epochs(step_seconds: list[float], steps_per_epoch: float) -> list[float]:
    """Sum the step times of each whole epoch."""
    whole = int(len(step_seconds) / steps_per_epoch)
    bounds = [round(epoch * steps_per_epoch) for epoch in range(whole + 1)]
    return [sum(step_seconds[first:last]) for first, last in itertools.pairwise(bounds)]


def _samples(model: GPT, task: LanguageTask, tokenizer: Tokenizer) -> str:
    """Continue the beginnings of some validation windows."""
    tokens = task.tokens.split("val")
    prompt = min(PROMPT_TOKENS, len(tokens), task.context)
    texts = []
    for number in range(SAMPLES):
        start = number * ((len(tokens) - prompt) // SAMPLES)
        ids = [int(token) for token in tokens[start : start + prompt]]
        new = list(generate(model, ids, new_tokens=SAMPLE_TOKENS, temperature=0.8, seed=task.run.seed + number))
        texts.append(f"{tokenizer.decode(ids)} [...]{tokenizer.decode(new)}")
    return "\n\n".join(texts) + "\n"
