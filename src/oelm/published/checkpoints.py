"""Read and write the published study's checkpoints, and translate its command line into a run.

Its checkpoints are `torch.save` dicts {model, optimizer, step, best_val_loss, args}. They are read with
`weights_only`, which refuses anything but tensors and plain data, so code in a file is never executed.
"""

from __future__ import annotations

import argparse
import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from oelm.cores import default_threads
from oelm.data.meta import read_meta
from oelm.errors import CheckpointError, InvalidSpec, UsageError
from oelm.method.orthogonal import departure
from oelm.models import apply as surgery
from oelm.models.gpt import GPT
from oelm.published.runs import PUBLISHED_CORPORA, PUBLISHED_METHODS
from oelm.spec import explain_validation
from oelm.spec.method import named_method
from oelm.spec.run import DataSpec, GPTSpec, RunSpec, TrainSpec
from oelm.train.checkpoint import Checkpoint, Checkpoints, load_into
from oelm.train.device import processes

_PARTS = {
    "attention.q": "self_attn.W_q",
    "attention.k": "self_attn.W_k",
    "attention.v": "self_attn.W_v",
    "attention.o": "self_attn.W_o",
    "ffn.up": "ffn.0",
    "ffn.down": "ffn.3",
    "attention_norm": "norm1",
    "ffn_norm": "norm2",
}
_Read = TypeVar("_Read")
_TIED = "lm_head.weight"
_PLACES = ("data_path", "out_dir", "resume")
"""Flags of paths. Those in a file are of the machine that made it and must not be looked up on this one."""
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")
ORTHOGONAL_WITHIN = 1e-3
"""Largest departure of W W^T from the identity that counts as orthonormal: the published program's own tolerance."""
_scalar = np.float64(0).__reduce__()[0]
_HARMLESS: list[Any] = [
    argparse.Namespace, np.dtype, np.dtypes.Float64DType,
    *((_scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
]  # fmt: skip
"""Classes of saved flags and of a mean loss, which such a file has in addition to tensors. None of them runs code."""


def published_name(name: str) -> str:
    """Translate one of our parameter names into the published one."""
    match = re.fullmatch(r"blocks\.(\d+)\.(.+)\.(weight|bias)", name)
    return f"layers.{match[1]}.{_PARTS[match[2]]}.{match[3]}" if match else name


def _published_order(name: str) -> tuple[int, int, int]:
    """Sort published names as that model registers them: the optimiser numbers its moments in this order."""
    if name.startswith("layers."):
        _, layer, part = name.split(".", 2)
        place = next(number for number, known in enumerate(_PARTS.values()) if part.startswith(known))
        return 1, int(layer), 2 * place + part.endswith("bias")
    return (0, 0, name.startswith("position")) if "embedding" in name else (2, 0, name.endswith("bias"))


def parser() -> argparse.ArgumentParser:
    """Return the published command line, flag by flag, with its defaults."""
    flags = argparse.ArgumentParser(
        prog="train_v2.py", description="The training command of the published study, run by oelm."
    )
    flags.add_argument("--model_type", choices=PUBLISHED_METHODS, default="oelm_v2")
    flags.add_argument("--dataset", choices=PUBLISHED_CORPORA, default="tinystories")
    flags.add_argument("--data_path", type=Path, help="file of training tokens; default data/<dataset>/train.bin")
    flags.add_argument("--out_dir", type=Path, help="output folder; default outputs/<model_type>_<dataset>")
    flags.add_argument("--resume", type=Path, help="latest.pt to continue from; with a best.pt Adam restarts at zero")
    numbers: dict[str, int | float] = {
        "max_steps": 10000, "max_lr": 1e-4, "min_lr": 0.0, "warmup_steps": 1000, "batch_size": 8, "vocab_size": 50257,
        "d_model": 512, "num_layers": 6, "num_heads": 8, "d_ff": 2048, "seq_len": 512, "dropout": 0.1, "beta1": 0.9,
        "beta2": 0.999, "weight_decay": 0.01, "grad_clip": 1.0, "val_interval": 1000, "save_interval": 5000, "seed": 42,
    }  # fmt: skip
    for name, default in numbers.items():
        flags.add_argument(f"--{name}", type=type(default), default=default, help=f"default {default}")
    flags.add_argument("--num_workers", type=int, default=4, help="accepted and ignored: token files are memory-mapped")
    flags.add_argument("--use_amp", action="store_true", help="fp16 autocast")
    return flags


def published_folder(flags: argparse.Namespace) -> Path:
    """Return the output folder of a published command."""
    return flags.out_dir or Path("outputs") / f"{flags.model_type}_{flags.dataset}"


def translate_flags(flags: argparse.Namespace, threads: int | None = None) -> RunSpec:
    """Translate published flags into a run. The published batch size is per process.

    `threads` is the number of threads of each process; by default its share of the cores.

    Raises:
        InvalidSpec: the flags do not describe a valid run.

    """
    try:
        return _build_run(flags, threads)
    except ValidationError as error:
        raise InvalidSpec(
            f"these flags do not describe a valid run: {explain_validation(error)}. train_v2.py --help lists the flags."
        ) from error


def find_data(flags: argparse.Namespace) -> DataSpec:
    """Return the data of a published command: --data_path, or data/<dataset>, or the folder of our name for it.

    A folder that `oelm prepare` made under another name keeps that name, because the record should name its text.
    """
    corpus = PUBLISHED_CORPORA[flags.dataset]
    places = [Path("data") / name / "train.bin" for name in (flags.dataset, corpus)]
    path = flags.data_path or next((place for place in places if place.exists()), places[0])
    meta = read_meta(path.parent) if path.name == "train.bin" else None
    return DataSpec(corpus=meta.request.corpus if meta and meta.request else corpus, directory=path)


def _build_run(flags: argparse.Namespace, threads: int | None) -> RunSpec:
    count = processes()
    return RunSpec(
        arm=flags.model_type,
        method=named_method(PUBLISHED_METHODS[flags.model_type]),
        seed=flags.seed,
        model=GPTSpec(
            vocab_size=flags.vocab_size,
            context=flags.seq_len,
            model_dim=flags.d_model,
            num_layers=flags.num_layers,
            num_heads=flags.num_heads,
            ffn_dim=flags.d_ff,
            dropout=flags.dropout,
        ),
        data=find_data(flags),
        train=TrainSpec(
            steps=flags.max_steps,
            batch_size=flags.batch_size * count,
            processes=count,
            learning_rate=flags.max_lr,
            min_learning_rate=flags.min_lr,
            warmup_steps=flags.warmup_steps,
            betas=(flags.beta1, flags.beta2),
            weight_decay=flags.weight_decay,
            grad_clip=flags.grad_clip,
            eval_every=flags.val_interval,
            eval_tokens=None,
            checkpoint_every=flags.save_interval,
            precision="fp16" if flags.use_amp else "fp32",
            device="cuda" if torch.cuda.is_available() else "cpu",
            threads=threads or max(1, default_threads() // count),
        ),
    )


class PublishedCheckpoints(Checkpoints):
    """Our checkpoints, and next to them `best.pt` and `latest.pt` in the published layout."""

    def __init__(self, directory: Path, fingerprint: str, spec: Mapping[str, Any], flags: argparse.Namespace) -> None:
        super().__init__(directory, fingerprint, spec)
        self.flags = flags
        self.times: tuple[list[float], Mapping[str, Any]] | None = None
        """Seconds of every step, and the progress of the run, at the last checkpoint."""

    def save(self, model: nn.Module, training: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Save our checkpoint, then `latest.pt`."""
        super().save(model, training, state)
        self.times = training["step_seconds"].tolist(), state["progress"]
        self._write("latest.pt", model, training, state)

    def save_best(self, model: nn.Module, state: Mapping[str, Any]) -> None:
        """Save our best weights, then `best.pt`."""
        super().save_best(model, state)
        self._write("best.pt", model, {}, state)

    def load(self) -> tuple[Checkpoint | None, list[str]]:
        """Load our own checkpoint if there is one, else the file of --resume."""
        checkpoint, troubles = super().load()
        if checkpoint is None and self.flags.resume is not None:
            checkpoint = read_published(self.flags.resume)
            self._check_same_run(checkpoint.state["args"])
            if checkpoint.state["progress"]["step"] >= self.flags.max_steps:
                raise UsageError(
                    f"{self.flags.resume} is at step {checkpoint.state['progress']['step']}, so --max_steps "
                    f"{self.flags.max_steps} leaves nothing to train. Give more steps, or measure the checkpoint with "
                    "`oelm import-checkpoint`."
                )
        return checkpoint, troubles

    def _check_same_run(self, made_with: Mapping[str, Any]) -> None:
        """Refuse weights of another arm or seed: they would fit, and be frozen and reported as this run's."""
        for name in ("model_type", "seed"):
            made, asked = made_with.get(name), getattr(self.flags, name)
            if made not in (None, asked):
                raise UsageError(
                    f"{self.flags.resume} was made with --{name} {made}, but this run has {asked}. Give a checkpoint "
                    f"of this run, or --{name} {made}."
                )

    def _write(self, name: str, model: nn.Module, training: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        path = self.directory.parent / name
        flags = {key: str(value) if isinstance(value, Path) else value for key, value in vars(self.flags).items()}
        aside = path.with_name(f".{name}.{self.owner}")
        try:
            torch.save(published_checkpoint(model, training, state, flags), aside)
            self.check()
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)


_SKIPPED = 100
"""Steps that the published statistics leave out, in addition to the first."""


def published_timing(checkpoints: PublishedCheckpoints, wall_seconds: float, epochs: Sequence[float]) -> dict[str, Any]:
    """Return timing_stats.json as the published program writes it, and for short runs its note with our statistics."""
    flags = checkpoints.flags
    seconds, progress = checkpoints.times or ([], {})
    kept = np.array(seconds[_SKIPPED + 1 :])
    if not len(kept):
        note = "No timing data collected (training too short)"
        return {"model_type": flags.model_type, "dataset": flags.dataset, "total_wall_time": wall_seconds, "note": note}
    typical = kept[kept <= 3 * np.median(kept)]
    validations = progress["validation_seconds"]
    best = progress["best_loss"] if math.isfinite(progress["best_loss"]) else None
    hours, rest = divmod(int(wall_seconds), 3600)
    return {
        "model_type": flags.model_type,
        "init_method": {"oelm_v2": "orthogonal", "oelm_random": "normal"}.get(flags.model_type, "n/a"),
        "dataset": flags.dataset,
        "total_wall_time": wall_seconds,
        "total_formatted": f"{hours}h {rest // 60}m {rest % 60}s",
        "num_steps_measured": len(kept),
        "warmup_steps": _SKIPPED,
        "mean_step_time": float(typical.mean()),
        "std_step_time": float(typical.std()),
        "median_step_time": float(np.median(typical)),
        "min_step_time": float(typical.min()),
        "max_step_time": float(typical.max()),
        "p95_step_time": float(np.percentile(typical, 95)),
        "p99_step_time": float(np.percentile(typical, 99)),
        "total_validation_time": float(sum(validations)),
        "mean_validation_time": float(np.mean(validations)) if validations else 0,
        "num_validations": len(validations),
        "epoch_times": list(epochs),
        "final_perplexity": math.exp(best) if best is not None else None,
        "best_val_loss": best,
    }


def published_checkpoint(
    model: nn.Module, training: Mapping[str, Tensor], state: Mapping[str, Any], flags: Mapping[str, Any]
) -> dict[str, Any]:
    """Convert one of our checkpoints to the published layout."""
    own = {published_name(name): name for name, _ in model.named_parameters()}
    order = sorted(own, key=_published_order)
    parameters = dict(model.named_parameters())
    trained = [own[name] for name in order if parameters[own[name]].requires_grad]
    moments = {
        place: {kind: training[f"{name}/{kind}"] for kind in _MOMENTS}
        for place, name in enumerate(trained)
        if f"{name}/step" in training
    }
    adam = torch.optim.AdamW(
        [nn.Parameter(torch.zeros(1))],
        lr=flags["max_lr"],
        betas=(flags["beta1"], flags["beta2"]),
        weight_decay=flags["weight_decay"],
    )
    group = adam.state_dict()["param_groups"][0] | {"params": list(range(len(trained)))}
    tensors = {name: parameters[own[name]].detach() for name in order}
    return {
        "model": {**tensors, _TIED: tensors["token_embedding.weight"]},
        "optimizer": {"state": moments, "param_groups": [group]},
        "step": state["progress"]["step"],
        "best_val_loss": state["progress"]["best_loss"],
        "args": dict(flags),
    }


def read_plain(path: Path) -> Any:
    """Read a file of tensors and plain data; code in it is refused, not run.

    Raises:
        UsageError: there is no such file.
        CheckpointError: the file holds more than tensors and plain data, or is damaged.

    """
    if not path.is_file():
        raise UsageError(
            f"there is no checkpoint {path} to read. Give a latest.pt, best.pt or best_model.pt, or leave --resume out."
        )
    try:
        with torch.serialization.safe_globals(_HARMLESS):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds of errors, and all mean that the file cannot be read
        raise CheckpointError(
            f"{path} is not a checkpoint of tensors and plain data, so it was not read ({type(error).__name__}). Files "
            "with code are refused. Save it again as {model, optimizer, step, best_val_loss, args}."
        ) from error


def read_args(path: Path) -> dict[str, Any]:
    """Return the flags that a published checkpoint was made with; empty if there is no such file or it has none."""
    if not path.is_file():
        return {}
    plain = read_plain(path)
    args = plain.get("args") if isinstance(plain, dict) else None
    args = vars(args) if isinstance(args, argparse.Namespace) else args
    return dict(args) if isinstance(args, dict) else {}


def _refuse_malformed(read: Callable[[Path], _Read]) -> Callable[[Path], _Read]:
    """Turn what a file of another layout makes Python raise into a CheckpointError."""

    @functools.wraps(read)
    def read_or_refuse(path: Path) -> _Read:
        try:
            return read(path)
        except (AttributeError, TypeError, LookupError, ValueError, OverflowError) as error:
            raise CheckpointError(
                f"{path} does not have the layout of a published checkpoint ({type(error).__name__}: {error}). Save it "
                "again as {model, optimizer, step, best_val_loss, args}."
            ) from error

    return read_or_refuse


@_refuse_malformed
def read_published(path: Path) -> Checkpoint:
    """Read a published checkpoint safely and convert it to one of ours.

    Raises:
        UsageError: there is no such file.
        CheckpointError: the file holds more than tensors and plain data, is damaged, or has another layout.

    """
    plain = read_plain(path)
    if not isinstance(plain, dict) or not isinstance(plain.get("model"), dict):
        raise CheckpointError(f"{path} has no 'model' dict, so it is not a checkpoint of the published study.")
    theirs: dict[str, Tensor] = {name: tensor for name, tensor in plain["model"].items() if name != _TIED}
    model = {_own_name(name, path): tensor for name, tensor in theirs.items()}
    best = float(plain.get("best_val_loss", math.inf))
    progress = {"step": int(plain.get("step", 0)), "best_loss": best, "best_step": 0}
    training = _rename_moments(plain.get("optimizer"), theirs, path)
    training["step_seconds"] = torch.empty(0, dtype=torch.float64)
    args = plain.get("args")
    args = vars(args) if isinstance(args, argparse.Namespace) else args
    groups = plain["optimizer"].get("param_groups", []) if isinstance(plain.get("optimizer"), dict) else []
    optimised = sum(len(group["params"]) for group in groups) if groups else None
    state = {
        "progress": progress,
        "scaler": {},
        "freezing": None,
        "args": args if isinstance(args, dict) else {},
        "optimised": optimised,
    }
    return Checkpoint(model, training, state)


@dataclass(frozen=True)
class ImportedCheckpoint:
    """A published checkpoint as one of ours."""

    model: nn.Module
    run: RunSpec
    checkpoint: Checkpoint
    said: tuple[str, ...]
    """What was recognised, assumed and left out, as sentences."""

    @property
    def context(self) -> int:
        """Tokens of a sequence."""
        assert isinstance(self.run.model, GPTSpec)  # noqa: S101  (built here)
        return self.run.model.context


@_refuse_malformed
def import_published(path: Path) -> ImportedCheckpoint:
    """Build our GPT from a published checkpoint, with its method applied and its frozen weights frozen and hashed.

    The tensors determine the sizes and the saved flags everything else. The arm of the flags must fit the weights and
    the optimiser.

    Raises:
        UsageError: there is no such file.
        CheckpointError: the file is not a published checkpoint, or its flags contradict its weights.

    """
    checkpoint = read_published(path)
    args, said = checkpoint.state["args"], []
    if not args:
        said.append("The file has no flags: 8 heads, the published settings and an unknown corpus are assumed.")
    arm = recognise_arm(args.get("model_type"), checkpoint, int(args.get("num_heads", 8)), str(path))
    if "model_type" not in args:
        said.append(f"The arm {arm} is recognised from the weights and the optimiser.")
    flags = parser().parse_args([])
    known = vars(flags).keys() - set(_PLACES)
    vars(flags).update({name: value for name, value in args.items() if name in known}, model_type=arm)
    try:
        run = _build_run(flags, threads=1)
        size = _size_of(checkpoint.model, flags.num_heads, flags.dropout)
    except (KeyError, ValueError, TypeError) as error:  # a ValidationError is a ValueError
        raise CheckpointError(
            f"{path} lacks a tensor or flag of the published model: {explain_validation(error)}."
        ) from error
    data = DataSpec(corpus=run.data.corpus if "dataset" in args else "unknown")
    run = run.model_copy(update={"model": size, "data": data, "label": path.parent.name or path.stem})
    if size.num_layers > len(checkpoint.model):  # building the layers that a wrong number asks for would take for ever
        raise CheckpointError(f"{path} has a layer {size.num_layers - 1}, but not all layers before it.")
    model = GPT(size)
    surgery.apply(model, run.method, seed=run.seed, scheduled=True)
    load_into(model, checkpoint.model, str(path))
    freezing = surgery.FreezeSchedule(model, run.train.steps)
    freezing.restore(checkpoint.state["progress"]["step"] - 1, None)
    moments = sum(name.endswith("/exp_avg") for name in checkpoint.training)
    said.append(
        f"Adam's moments of {moments} tensors are taken over." if moments else "The file has no moments of Adam."
    )
    said.append("The times of steps and the state of the data loader are not in the file.")
    state = checkpoint.state | {"freezing": freezing.save()}
    return ImportedCheckpoint(model.eval(), run, Checkpoint(checkpoint.model, checkpoint.training, state), tuple(said))


def recognise_arm(stated: object, checkpoint: Checkpoint, num_heads: int, source: str) -> str:
    """Return the --model_type of a checkpoint, after checking it against the weights and the optimiser.

    Frozen Q/K are not given to the optimiser, and orthogonal ones have orthonormal rows in every head.

    Raises:
        CheckpointError: the flag contradicts the file.

    """
    queries = [tensor for name, tensor in checkpoint.model.items() if re.search(r"attention\.[qk]\.weight$", name)]
    if not queries or any(tensor.shape[0] % num_heads for tensor in queries):
        raise CheckpointError(f"{source} lacks a tensor of the published model: no Q/K of {num_heads} heads.")
    heads = [tensor.view(num_heads, -1, tensor.shape[-1]) for tensor in queries]
    is_orthogonal = max(departure(each, 1.0) for each in heads) < ORTHOGONAL_WITHIN
    optimised = checkpoint.state["optimised"]
    is_frozen = None if optimised is None else optimised < len(checkpoint.model)
    found = "oelm_v2" if is_orthogonal else "oelm_random" if is_frozen else "baseline"
    if stated is None:
        return found
    expects = {"oelm_v2": (True, True), "oelm_random": (True, False), "baseline": (False, False)}
    if str(stated) not in expects:
        raise CheckpointError(
            f"{source} was made with --model_type {stated!r}, which the published program does not have."
        )
    if (is_frozen if is_frozen is not None else expects[str(stated)][0], is_orthogonal) != expects[str(stated)]:
        raise CheckpointError(
            f"{source} says --model_type {stated}, but its Q/K are {'' if is_orthogonal else 'not '}orthonormal and "
            f"were {'frozen' if is_frozen else 'trained'}: {found}. The flags and the weights are of different runs."
        )
    return str(stated)


def _size_of(tensors: Mapping[str, Tensor], num_heads: int, dropout: float) -> GPTSpec:
    vocab_size, width = tensors["token_embedding.weight"].shape
    return GPTSpec(
        vocab_size=vocab_size,
        context=tensors["position_embedding.weight"].shape[0],
        model_dim=width,
        num_layers=1 + max(int(name.split(".")[1]) for name in tensors if name.startswith("blocks.")),
        num_heads=num_heads,
        ffn_dim=tensors["blocks.0.ffn.up.weight"].shape[0],
        dropout=dropout,
    )


def _own_name(name: str, path: Path) -> str:
    match = re.fullmatch(r"layers\.(\d+)\.(.+)\.(weight|bias)", name)
    own = {theirs: ours for ours, theirs in _PARTS.items()}
    if match and match[2] in own:
        return f"blocks.{match[1]}.{own[match[2]]}.{match[3]}"
    if re.fullmatch(r"(token_embedding|position_embedding|norm)\.(weight|bias)", name):
        return name
    raise CheckpointError(f"{path} has a tensor {name!r}, which the published model does not have.")


def _rename_moments(optimizer: Any, model: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Name Adam's moments, which the file numbers in the order of the trained parameters, as we do."""
    state = optimizer.get("state", {}) if isinstance(optimizer, dict) else {}
    if not state:
        return {}
    numbered = sum(len(group["params"]) for group in optimizer["param_groups"])
    names = list(model)
    if numbered < len(names):  # frozen Q/K were not given to the optimiser
        names = [name for name in names if not re.search(r"\.W_[qk]\.", name)]
    if numbered != len(names):
        raise CheckpointError(
            f"{path} has moments of {numbered} parameters, which fits neither all {len(model)} parameters of its "
            "model nor those without Q and K."
        )
    found = {}
    for number, kinds in state.items():
        name = names[number]
        if kinds["exp_avg"].shape != model[name].shape:
            raise CheckpointError(f"{path}: the moments numbered {number} do not have the shape of {name}.")
        for kind in _MOMENTS:
            found[f"{_own_name(name, path)}/{kind}"] = torch.as_tensor(kinds[kind])
    return found
