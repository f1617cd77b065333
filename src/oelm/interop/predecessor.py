"""The published study's checkpoints and command line, in both directions.

Its checkpoints are `torch.save` dicts {model, optimizer, step, best_val_loss, args}. They are read with
`weights_only`, which refuses anything but tensors and plain data, so that a file with code in it does nothing.
"""

from __future__ import annotations

import argparse
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from oelm.errors import CheckpointError, InvalidSpec, UsageError
from oelm.models.gpt import GPT
from oelm.spec.base import in_words
from oelm.spec.data import DataSpec
from oelm.spec.model import GPTSpec
from oelm.spec.named import named_method
from oelm.spec.published import CORPORA, METHODS
from oelm.spec.run import RunSpec
from oelm.spec.train import TrainSpec
from oelm.train.checkpoint import Checkpoint, Checkpoints, load_into
from oelm.train.distributed import processes

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
_TIED = "lm_head.weight"
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")
_scalar = np.float64(0).__reduce__()[0]
_HARMLESS: list[Any] = [
    argparse.Namespace, np.dtype, np.dtypes.Float64DType,
    *((_scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
]  # fmt: skip
"""What a program that saves its parsed flags and a mean loss leaves beside tensors; none of it runs anything."""


def published_name(name: str) -> str:
    """Translate one of our parameter names into the published one."""
    match = re.fullmatch(r"blocks\.(\d+)\.(.+)\.(weight|bias)", name)
    return f"layers.{match[1]}.{_PARTS[match[2]]}.{match[3]}" if match else name


def _published_order(name: str) -> tuple[int, int, int]:
    """Sort published names as that model registers them: an optimiser's moments are numbered in this order."""
    if name.startswith("layers."):
        _, layer, part = name.split(".", 2)
        place = next(number for number, known in enumerate(_PARTS.values()) if part.startswith(known))
        return 1, int(layer), 2 * place + part.endswith("bias")
    return (0, 0, name.startswith("position")) if "embedding" in name else (2, 0, name.endswith("bias"))


def parser() -> argparse.ArgumentParser:
    """Return the published command line, flag by flag, with its defaults."""
    flags = argparse.ArgumentParser(
        prog="train_v2.py", description="The published study's training command, carried out by oelm."
    )
    flags.add_argument("--model_type", choices=METHODS, default="oelm_v2")
    flags.add_argument("--dataset", choices=CORPORA, default="tinystories")
    flags.add_argument("--data_path", type=Path, help="training tokens; default data/<dataset>/train.bin")
    flags.add_argument("--out_dir", type=Path, help="default outputs/<model_type>_<dataset>")
    flags.add_argument("--resume", type=Path, help="a latest.pt to continue from; from a best.pt Adam starts anew")
    numbers: dict[str, int | float] = {
        "max_steps": 10000, "max_lr": 1e-4, "min_lr": 0.0, "warmup_steps": 1000, "batch_size": 8, "vocab_size": 50257,
        "d_model": 512, "num_layers": 6, "num_heads": 8, "d_ff": 2048, "seq_len": 512, "dropout": 0.1, "beta1": 0.9,
        "beta2": 0.999, "weight_decay": 0.01, "grad_clip": 1.0, "val_interval": 1000, "save_interval": 5000, "seed": 42,
    }  # fmt: skip
    for name, default in numbers.items():
        flags.add_argument(f"--{name}", type=type(default), default=default, help=f"default {default}")
    flags.add_argument("--num_workers", type=int, default=4, help="accepted; token files are mapped, not loaded")
    flags.add_argument("--use_amp", action="store_true", help="fp16 autocast")
    return flags


def directory_of(flags: argparse.Namespace) -> Path:
    """Return the folder of a published command."""
    return flags.out_dir or Path("outputs") / f"{flags.model_type}_{flags.dataset}"


def run_of(flags: argparse.Namespace, threads: int | None = None) -> RunSpec:
    """Translate published flags into a run. The published batch size is that of each process.

    `threads` are those of each process; by default its share of the cores.

    Raises:
        InvalidSpec: there can be no such run.

    """
    try:
        return _run_of(flags, threads)
    except ValidationError as error:
        raise InvalidSpec(f"such a run cannot be: {in_words(error)}. train_v2.py --help lists the flags.") from error


def _run_of(flags: argparse.Namespace, threads: int | None) -> RunSpec:
    corpus = CORPORA[flags.dataset]
    count = processes()
    return RunSpec(
        arm=flags.model_type,
        method=named_method(METHODS[flags.model_type]),
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
        data=DataSpec(corpus=corpus, directory=flags.data_path or Path("data") / flags.dataset / "train.bin"),
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
            threads=threads or max(1, len(os.sched_getaffinity(0)) // count),
        ),
    )


class PublishedCheckpoints(Checkpoints):
    """Our checkpoints, with `best.pt` and `latest.pt` in the published layout beside them."""

    def __init__(self, directory: Path, fingerprint: str, spec: Mapping[str, Any], flags: argparse.Namespace) -> None:
        super().__init__(directory, fingerprint, spec)
        self.flags = flags

    def save(self, model: nn.Module, training: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Save ours, then `latest.pt`."""
        super().save(model, training, state)
        self._write("latest.pt", model, training, state)

    def save_best(self, model: nn.Module, state: Mapping[str, Any]) -> None:
        """Save ours, then `best.pt`."""
        super().save_best(model, state)
        self._write("best.pt", model, {}, state)

    def load(self) -> tuple[Checkpoint | None, list[str]]:
        """Continue from our own checkpoint where there is one, else from the file that --resume names."""
        checkpoint, troubles = super().load()
        if checkpoint is None and self.flags.resume is not None:
            checkpoint = read_published(self.flags.resume)
            self._refuse_another_run(checkpoint.state["args"])
            if checkpoint.state["progress"]["step"] >= self.flags.max_steps:
                raise UsageError(
                    f"{self.flags.resume} is of step {checkpoint.state['progress']['step']}, so nothing of --max_steps "
                    f"{self.flags.max_steps} is left to train. Give more steps, or measure it: oelm import-checkpoint."
                )
        return checkpoint, troubles

    def _refuse_another_run(self, made_with: Mapping[str, Any]) -> None:
        """Refuse the weights of another arm or seed, which fit and would be frozen and reported as this one's."""
        for name in ("model_type", "seed"):
            made, asked = made_with.get(name), getattr(self.flags, name)
            if made not in (None, asked):
                raise UsageError(
                    f"{self.flags.resume} was made with --{name} {made}, and this run says {asked}. Give a checkpoint "
                    f"of this run, or --{name} {made}."
                )

    def _write(self, name: str, model: nn.Module, training: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        path = self.directory.parent / name
        flags = {key: str(value) if isinstance(value, Path) else value for key, value in vars(self.flags).items()}
        aside = path.with_name(f".{name}.{os.getpid()}")
        try:
            torch.save(published_checkpoint(model, training, state, flags), aside)
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)


def published_checkpoint(
    model: nn.Module, training: Mapping[str, Tensor], state: Mapping[str, Any], flags: Mapping[str, Any]
) -> dict[str, Any]:
    """Build the dict of the published layout from ours."""
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


def read_published(path: Path) -> Checkpoint:
    """Read a published checkpoint, safely, into one of ours.

    Raises:
        UsageError: there is no such file.
        CheckpointError: it holds more than tensors and plain data, is torn, or is of another layout.

    """
    if not path.is_file():
        raise UsageError(
            f"there is no checkpoint {path} to resume from. Give a latest.pt or best.pt, or leave --resume out."
        )
    try:
        with torch.serialization.safe_globals(_HARMLESS):
            plain = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds here, and each means the same: not a file we read
        raise CheckpointError(
            f"{path} is not a checkpoint of tensors and plain data, so it was not read ({type(error).__name__}). Files "
            "that hold code are refused; save it again as {model, optimizer, step, best_val_loss, args}."
        ) from error
    if not isinstance(plain, dict) or not isinstance(plain.get("model"), dict):
        raise CheckpointError(f"{path} holds no 'model' dict, so it is no checkpoint of the published study.")
    theirs: dict[str, Tensor] = {name: tensor for name, tensor in plain["model"].items() if name != _TIED}
    model = {_own_name(name, path): tensor for name, tensor in theirs.items()}
    best = float(plain.get("best_val_loss", math.inf))
    progress = {"step": int(plain.get("step", 0)), "best_loss": best, "best_step": 0}
    training = _moments(plain.get("optimizer"), theirs, path)
    training["step_seconds"] = torch.empty(0, dtype=torch.float64)
    args = plain.get("args")
    args = vars(args) if isinstance(args, argparse.Namespace) else args
    state = {"progress": progress, "scaler": {}, "freezing": None, "args": args if isinstance(args, dict) else {}}
    return Checkpoint(model, training, state)


def import_published(path: Path) -> tuple[GPT, Checkpoint]:
    """Build our GPT from a published checkpoint; its sizes are those of its tensors."""
    checkpoint = read_published(path)
    tensors = checkpoint.model
    try:
        vocab_size, width = tensors["token_embedding.weight"].shape
        args = checkpoint.state["args"]
        spec = GPTSpec(
            vocab_size=vocab_size,
            context=tensors["position_embedding.weight"].shape[0],
            model_dim=width,
            num_layers=1 + max(int(name.split(".")[1]) for name in tensors if name.startswith("blocks.")),
            num_heads=int(args.get("num_heads", 8)),
            ffn_dim=tensors["blocks.0.ffn.up.weight"].shape[0],
        )
    except (KeyError, ValueError) as error:
        raise CheckpointError(f"{path} lacks a tensor of the published model: {in_words(error)}.") from error
    model = GPT(spec)
    load_into(model, tensors, str(path))
    return model.eval(), checkpoint


def _own_name(name: str, path: Path) -> str:
    match = re.fullmatch(r"layers\.(\d+)\.(.+)\.(weight|bias)", name)
    own = {theirs: ours for ours, theirs in _PARTS.items()}
    if match and match[2] in own:
        return f"blocks.{match[1]}.{own[match[2]]}.{match[3]}"
    if re.fullmatch(r"(token_embedding|position_embedding|norm)\.(weight|bias)", name):
        return name
    raise CheckpointError(f"{path} holds a tensor {name!r} that the published model does not have.")


def _moments(optimizer: Any, model: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Bring Adam's moments, which are numbered in the order of the trained parameters, under our names."""
    state = optimizer.get("state", {}) if isinstance(optimizer, dict) else {}
    if not state:
        return {}
    numbered = sum(len(group["params"]) for group in optimizer["param_groups"])
    names = list(model)
    if numbered < len(names):  # frozen Q/K were not given to the optimiser
        names = [name for name in names if not re.search(r"\.W_[qk]\.", name)]
    if numbered != len(names):
        raise CheckpointError(
            f"{path} has moments of {numbered} parameters, which fits neither all {len(model)} of its "
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
