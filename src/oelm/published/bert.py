"""The BERT program of the published study: its checkpoints, and its command line translated into a run.

Its `best_model.pt` is a `torch.save` dict {step, model_state_dict, optimizer_state_dict, accuracy, args} of a
`BertForSequenceClassification`. It is read without running any code in it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from oelm.cores import default_threads
from oelm.errors import CheckpointError, InvalidSpec
from oelm.method.freeze import Applied
from oelm.method.orthogonal import departure
from oelm.models import apply as surgery
from oelm.published.checkpoints import ORTHOGONAL_WITHIN, read_plain
from oelm.published.runs import BERT_METHODS
from oelm.spec import explain_validation
from oelm.spec.method import named_method
from oelm.spec.run import ExamplesSpec, HuggingFaceSpec, RunSpec, TrainSpec
from oelm.train.device import processes

_HEAD_SIZE = 64
_QK = (".attention.self.query.", ".attention.self.key.")


def bert_parser() -> argparse.ArgumentParser:
    """Return the published command line, flag by flag, with its defaults."""
    flags = argparse.ArgumentParser(
        prog="train_bert.py", description="The BERT training command of the published study, run by oelm."
    )
    flags.add_argument("--model_name", default="bert-base-uncased")
    flags.add_argument("--freeze_mode", type=lambda text: text.lower() in ("true", "1", "yes"), default=False)
    flags.add_argument("--init_method", choices=("orthogonal", "normal"), default="orthogonal")
    flags.add_argument("--lr", type=float, help="default 2e-5, or 1e-4 with --freeze_mode true")
    flags.add_argument("--dataset", choices=("sst2", "mnli", "xnli"), default="sst2")
    flags.add_argument("--output_dir", type=Path, default=Path("outputs"))
    numbers: dict[str, int | float] = {
        "batch_size": 32, "epochs": 3, "max_steps": -1, "max_length": 128, "weight_decay": 0.01, "warmup_ratio": 0.1,
        "max_grad_norm": 1.0, "validate_steps": 500, "seed": 42, "gradient_accumulation_steps": 1,
    }  # fmt: skip
    for name, default in numbers.items():
        flags.add_argument(f"--{name}", type=type(default), default=default, help=f"default {default}")
    flags.add_argument("--num_workers", type=int, default=4, help="accepted and ignored: rows are encoded once")
    return flags


def translate_bert_flags(flags: argparse.Namespace, threads: int | None = None) -> RunSpec:
    """Translate published flags into a run. The published batch size is that of a micro-batch of one process.

    Raises:
        InvalidSpec: the flags do not describe a valid run.

    """
    try:
        return _build_run(flags, threads)
    except ValidationError as error:
        raise InvalidSpec(
            f"these flags do not describe a valid run: {explain_validation(error)}. train_bert.py --help lists them."
        ) from error


def _build_run(flags: argparse.Namespace, threads: int | None) -> RunSpec:
    count, parts = processes(), flags.gradient_accumulation_steps
    method = BERT_METHODS[flags.freeze_mode, flags.init_method]
    length: dict[str, Any] = {"steps": flags.max_steps} if flags.max_steps > 0 else {"epochs": flags.epochs}
    hub = {"bert-base-uncased": "google-bert/bert-base-uncased"}
    return RunSpec(
        arm=method,
        label=flags.output_dir.name,
        method=named_method(method),
        seed=flags.seed,
        model=HuggingFaceSpec(name=hub.get(flags.model_name, flags.model_name)),
        data=ExamplesSpec(
            corpus=flags.dataset,
            max_length=flags.max_length,
            padding="max_length",
            token_types=False,
            holds_out=False,
        ),
        train=TrainSpec(
            **length,
            batch_size=flags.batch_size * count * parts,
            accumulation=parts,
            processes=count,
            learning_rate=flags.lr or (1e-4 if flags.freeze_mode else 2e-5),
            weight_decay=flags.weight_decay,
            warmup_fraction=flags.warmup_ratio,
            warmup_from_zero=True,
            # The published program counts micro-batches for the length of its schedule, unless --max_steps is given.
            schedule_over="parts" if flags.max_steps <= 0 and parts > 1 else "steps",
            decay="linear",
            grad_clip=max(0.0, flags.max_grad_norm),
            eval_every=flags.validate_steps,
            eval_tokens=None,
            tf32=False,
            device="cuda" if torch.cuda.is_available() else "cpu",
            threads=threads or max(1, default_threads() // count),
        ),
    )


@dataclass(frozen=True)
class ImportedBert:
    """A published BERT with its method applied, its frozen weights frozen and hashed, and what was said about it."""

    model: Any
    method: str
    said: tuple[str, ...]


def is_bert_file(plain: object) -> bool:
    """Whether the content of a file has the layout of `best_model.pt`."""
    return isinstance(plain, dict) and isinstance(plain.get("model_state_dict"), dict)


def import_bert(path: Path) -> ImportedBert:
    """Build a published BERT classifier from its checkpoint; the tensors determine its sizes.

    Raises:
        CheckpointError: the file has another layout, or its flags contradict its weights.

    """
    plain = read_plain(path)
    if not is_bert_file(plain):
        raise CheckpointError(f"{path} has no 'model_state_dict', so it is not a best_model.pt of the published study.")
    tensors: dict[str, Tensor] = plain["model_state_dict"]
    args = plain.get("args") or {}
    args = vars(args) if isinstance(args, argparse.Namespace) else args
    weights = [each for name, each in tensors.items() if name.endswith("weight") and any(part in name for part in _QK)]
    head_size = _find_head_size(weights)
    model = _build_bert(tensors, head_size or _HEAD_SIZE, path)
    method = _recognise_method(args, tensors, head_size is not None, plain.get("optimizer_state_dict"), path)
    surgery.restore_method(model, Applied(named_method(method), int(args.get("seed", 42))))
    if named_method(method).freeze.roles:
        surgery.freeze(model)
    accuracy = plain.get("accuracy")
    said = [
        f"Heads of {_HEAD_SIZE} are assumed, as in every BERT; the file does not contain their number."
        if head_size is None
        else f"Heads of {head_size}: the rows of Q and K are orthonormal in groups of that size.",
        f"Step {plain.get('step')}"
        + ("." if accuracy is None else f", best validation accuracy {float(accuracy):.4f}."),
        "Its flags: "
        + (", ".join(f"{name} {value}" for name, value in args.items()) or "none, so they are unknown")
        + ".",
        "Adam's moments are left out: the folder is a model to load, not a run to continue.",
    ]
    return ImportedBert(model.eval(), method, tuple(said))


def _find_head_size(weights: Sequence[Tensor]) -> int | None:
    """Return the largest size of a group of rows in which Q and K are orthonormal, which is a head; None if in none.

    The flags do not contain the number of heads. Trained Q/K, and normal ones, are not orthonormal in any groups.
    """
    width = min((len(weight) for weight in weights), default=0)
    sizes = (size for size in range(width, 1, -1) if width % size == 0)
    return next((size for size in sizes if all(_departure(each, size) < ORTHOGONAL_WITHIN for each in weights)), None)


def _departure(weight: Tensor, size: int) -> float:
    return departure(weight.reshape(-1, size, weight.shape[1]))


def _build_bert(tensors: dict[str, Tensor], head_size: int, path: Path) -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    try:
        vocab_size, width = tensors["bert.embeddings.word_embeddings.weight"].shape
        config: Any = BertConfig(
            vocab_size=vocab_size,
            hidden_size=width,
            num_hidden_layers=1 + max(int(name.split(".")[3]) for name in tensors if ".encoder.layer." in name),
            num_attention_heads=max(1, width // head_size),
            intermediate_size=tensors["bert.encoder.layer.0.intermediate.dense.weight"].shape[0],
            max_position_embeddings=tensors["bert.embeddings.position_embeddings.weight"].shape[0],
            type_vocab_size=tensors["bert.embeddings.token_type_embeddings.weight"].shape[0],
        )
        config.num_labels = tensors["classifier.weight"].shape[0]
        model: Any = BertForSequenceClassification(config)  # type: ignore[no-untyped-call]
        known = {name: tensor for name, tensor in tensors.items() if not name.endswith("position_ids")}
        model.load_state_dict(known)
    except (KeyError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(f"{path} is not a BERT classifier of the published study: {reason}.") from error
    return model


def _recognise_method(
    args: dict[str, Any], tensors: dict[str, Tensor], orthogonal: bool, optimizer: Any, path: Path
) -> str:
    """Return the method of the saved flags, after checking it against the weights and the optimiser."""
    groups = optimizer.get("param_groups", []) if isinstance(optimizer, dict) else []
    optimised = sum(len(group["params"]) for group in groups)
    parameters = [name for name in tensors if not name.endswith("position_ids")]
    frozen = 0 < optimised < len(parameters) if groups else bool(args.get("freeze_mode"))
    stated = (
        bool(args.get("freeze_mode", frozen)),
        str(args.get("init_method", "orthogonal" if orthogonal else "normal")),
    )
    if stated not in BERT_METHODS:
        raise CheckpointError(
            f"{path} was made with --init_method {stated[1]!r}, which the published program does not have."
        )
    # Trained Q/K leave the orthonormal start, so only frozen ones can be checked.
    if stated[0] != frozen or (frozen and (stated[1] == "orthogonal") != orthogonal):
        raise CheckpointError(
            f"{path} says --freeze_mode {stated[0]} --init_method {stated[1]}, but its Q/K were "
            f"{'frozen' if frozen else 'trained'} and are {'' if orthogonal else 'not '}orthonormal. The flags and the "
            "weights are of different runs."
        )
    return BERT_METHODS[stated]
