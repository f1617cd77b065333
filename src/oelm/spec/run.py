"""A run as a value: its model, its data and its training, the seeds of all that is random, and its fingerprint.

The words for the identity of a run:

- A **declared** run is what a study or the command line requests.
- Resolving it (`oelm.runs.resolve`) fills in what depends on the data and the machine: checksums of data and weights,
  the number of steps in its epochs, the precision that "auto" stands for. Records contain the **resolved** run.
- `undo_resolve` removes these fields again, so that a record can be matched to the study that declared its run.
- The `fingerprint` identifies a run: it is a hash of every field that can change its numbers. Resolving a run changes
  its fingerprint, because the content of the data counts.

Everything random draws from a stream of its own, named after its purpose. So two methods with the same seed see the
same batches, and the same initial values wherever the method does not touch them. A resumed run needs no saved
generator, because its randomness is a function of (seed, purpose, step).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    Discriminator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Tag,
    model_validator,
)

from oelm.errors import UnknownName
from oelm.files import digest
from oelm.spec import Name, NoEffect, Spec, remember
from oelm.spec.method import INITIAL_DEVIATION, MethodSpec, ScheduleSpec

if TYPE_CHECKING:
    import torch


# The model: our own GPT by its sizes, or a Hugging Face model by its name.


class GPTSpec(Spec):
    """Our GPT: pre-norm, exact GELU, tied embeddings, no biases in attention."""

    kind: Literal["gpt"] = "gpt"
    vocab_size: PositiveInt | None = None
    """Size of the vocabulary; None: that of the data's tokenizer."""
    context: PositiveInt = 512
    model_dim: PositiveInt = 512
    num_layers: PositiveInt = 6
    num_heads: PositiveInt = 8
    num_key_heads: PositiveInt | None = None
    """Number of key and value heads, each shared by several query heads; None: as many as query heads."""
    qk_head_size: PositiveInt | None = None
    """Size of a query or key head; None: model_dim / num_heads. The control with thin Q/K has a smaller one."""
    ffn_dim: PositiveInt | None = None
    """Width of the feed-forward layer; None: four times model_dim."""
    positions: Literal["learned", "rope"] = "learned"
    norm: Literal["layer", "rms"] = "layer"
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    initial_deviation: PositiveFloat | Literal["width"] = INITIAL_DEVIATION
    """Standard deviation of every matrix at initialisation, or the rule "width" (docs/decisions/032): 1/sqrt(I) for a
    matrix that reads I inputs, divided by sqrt(2 num_layers) where its output is added to the residual stream."""
    labels: PositiveInt | None = None
    """Number of classes of a classification head; None: that of labelled data, and no such head for text."""

    @model_validator(mode="after")
    def _refuse_uneven_heads(self) -> Self:
        if self.model_dim % self.num_heads:
            raise ValueError(f"model_dim={self.model_dim} is not a multiple of num_heads={self.num_heads}")
        if self.num_heads % self.key_heads:
            raise ValueError(f"num_heads={self.num_heads} is not a multiple of num_key_heads={self.key_heads}")
        if self.positions == "rope" and self.qk_size % 2:
            raise ValueError(f"RoPE rotates pairs of coordinates, but the Q/K head size is odd: {self.qk_size}")
        return self

    @property
    def key_heads(self) -> int:
        """The number of key (and value) heads."""
        return self.num_key_heads or self.num_heads

    @property
    def head_size(self) -> int:
        """The size of a value head."""
        return self.model_dim // self.num_heads

    @property
    def qk_size(self) -> int:
        """The size of a query or key head."""
        return self.qk_head_size or self.head_size

    @property
    def hidden_dim(self) -> int:
        """The width of the feed-forward layer."""
        return self.ffn_dim or 4 * self.model_dim


class HuggingFaceSpec(Spec):
    """A `transformers` model: a named configuration, a local directory or a hub name."""

    kind: Literal["foreign"] = "foreign"
    name: str
    labels: PositiveInt | None = None
    """Number of classes of a classification head; None: that of labelled data, otherwise the model keeps its head."""
    pretrained: bool = True
    """Whether to load the trained weights; False: the same architecture from scratch."""
    context: PositiveInt = 512
    """Number of tokens of a window of running text. Labelled text has `data.max_length` instead."""
    checksum: str | None = None
    """Checksum of the files in a local directory. Resolving a run fills it in, so that the fingerprint depends on the
    initial weights and not only on their folder."""


ModelSpec = Annotated[GPTSpec | HuggingFaceSpec, Field(discriminator="kind")]

GPT2_VOCAB_SIZE = 50257

GPT_SIZES: dict[str, GPTSpec] = {
    "nano": GPTSpec(context=32, model_dim=32, num_layers=2, num_heads=4, vocab_size=97),
    "mini": GPTSpec(context=128, model_dim=128, num_layers=4, num_heads=4),
    "medium-512": GPTSpec(vocab_size=GPT2_VOCAB_SIZE, dropout=0.1),
}


def named_size(name: str) -> GPTSpec:
    """Return the GPT of a named size, with the vocabulary of the data that it will read."""
    if name not in GPT_SIZES:
        raise UnknownName("GPT size", name, GPT_SIZES)
    return GPT_SIZES[name].model_copy(update={"vocab_size": None})


# The number of parameters and steps in closed form, for studies that declare sizes.


def block_parameters(model: GPTSpec) -> int:
    """Count the parameters of all blocks: attention, feed-forward and their norms, without embeddings and last norm."""
    queries = model.num_heads * model.qk_size
    keys = model.key_heads * model.qk_size
    values = model.key_heads * model.head_size
    attention = model.model_dim * (queries + keys + values + model.num_heads * model.head_size)
    feed_forward = 2 * model.model_dim * model.hidden_dim + model.hidden_dim + model.model_dim
    norms = 2 * model.model_dim * (2 if model.norm == "layer" else 1)
    return model.num_layers * (attention + feed_forward + norms)


def steps_for(tokens_per_parameter: float, model: GPTSpec, batch_size: int) -> int:
    """Return the number of steps after which a model has seen `tokens_per_parameter` tokens per block parameter."""
    tokens = tokens_per_parameter * block_parameters(model)
    return max(1, round(tokens / (batch_size * model.context)))


# The data: a corpus as tokens or as labelled examples.

END_OF_TEXT = "<|endoftext|>"
PROBE_SIZES = {"recall": (2, 32), "copy": (2, 64)}
"""The generated tasks that need one skill of attention, with their smallest and largest size."""

Split = Literal["train", "val", "test"]
SplitFile = Literal["train", "val", "test", "sealed"]
"""The files of prepared tokens. No command accepts "sealed" as a split."""


TaskKind = Literal["language", "probe", "classification", "seq2seq"]
"""What a run can learn; `oelm.tasks` has a class for each."""


class ProbeSpec(Spec):
    """A generated corpus that tests one skill: recall of `size` pairs, or copying over the distance `size`."""

    kind: Literal["recall", "copy"]
    size: int

    @property
    def corpus(self) -> str:
        """Its name as a corpus."""
        return f"{self.kind}:{self.size}"


def probe_of(corpus: str) -> ProbeSpec | None:
    """Parse the name of a probe such as `recall:8`; return None for the name of any other corpus.

    Raises:
        ValueError: the probe does not exist in that size.

    """
    kind, colon, size = corpus.partition(":")
    if kind not in PROBE_SIZES or not colon:
        return None
    least, most = PROBE_SIZES[kind]
    if not (size.isascii() and size.isdigit() and str(int(size)) == size and least <= int(size) <= most):
        raise ValueError(
            f"{corpus!r} is not a probe: {kind} takes a number from {least} to {most}, as in {kind}:{least}"
        )
    return ProbeSpec.model_validate({"kind": kind, "size": int(size)})


class DataSpec(Spec):
    """A tokenised corpus in nanoGPT's layout."""

    kind: Literal["text"] = "text"
    corpus: str = "stories"
    vocab_size: Annotated[int, Field(ge=257, le=65536)] | None = None
    """Size of a byte-level BPE trained on the corpus; None: GPT-2's own vocabulary."""
    tokenizer: str | None = None
    """Pretrained model whose vocabulary makes the tokens, for training that model; None: as `vocab_size` says."""
    tokens: PositiveInt | None = None
    """Approximate number of training tokens to prepare; None: the whole corpus."""
    seed: NonNegativeInt = 0
    """Random seed of data preparation: the generated stories, the split by document."""
    seal: Annotated[float, Field(gt=0, le=0.5)] | None = None
    """Share of the training documents that becomes a sealed split, which only `oelm report --unseal` reads, once."""
    source: NoEffect[Path | None] = None
    """Local text to prepare from; None: the corpus of that name."""
    directory: NoEffect[Path | None] = None
    """Folder of the token files; None: `data/<corpus>`, named as `oelm prepare` names it."""
    checksum: str | None = None
    """Checksum of the prepared files. Resolving a run fills it in, so that the fingerprint depends on their content and
    not only on their folder."""

    @model_validator(mode="after")
    def _refuse_vocabulary_of_probe(self) -> Self:
        if self.probe and self.vocab_size is not None:
            raise ValueError(f"{self.corpus} has a vocabulary of its own; leave out vocab_size={self.vocab_size}")
        if self.tokenizer is not None and (self.probe or self.vocab_size is not None):
            own = self.corpus if self.probe else f"vocab_size={self.vocab_size}"
            raise ValueError(f"{own} is a vocabulary of its own; leave out tokenizer={self.tokenizer!r}")
        return self

    @property
    def probe(self) -> ProbeSpec | None:
        """The probe, if the corpus is one. Its score is the share of correct answers."""
        return probe_of(self.corpus)

    @property
    def task(self) -> TaskKind:
        """The kind of task that a run on these data learns."""
        return "probe" if self.probe else "language"


class ExamplesSpec(Spec):
    """Labelled text: each row has one or two texts and a label."""

    kind: Literal["examples"] = "examples"
    corpus: str = "sst2"
    language: str = "en"
    """Language of the corpus; only XNLI has several."""
    texts: tuple[str, ...] = ()
    """The columns with the one or two texts; empty: those of the named corpus."""
    label: str | None = None
    """The column with the label; None: that of the named corpus."""
    vocab_size: Annotated[int, Field(ge=257, le=65536)] | None = None
    """Size of a byte-level BPE trained on the training texts, for models from scratch; None: the model's tokenizer."""
    answers: Literal["label", "text"] = "label"
    """Whether the model chooses among the labels or (an encoder-decoder) writes the name of the label."""
    max_length: PositiveInt = 128
    """Maximum number of tokens; longer texts are cut."""
    padding: Literal["longest", "max_length"] = "longest"
    """Pad to the longest text of a batch of similar lengths, or (as published) every text to `max_length`."""
    token_types: bool = True
    """Whether an encoder with token types receives them, so that it can tell the second text from the first. The
    published training program leaves them out."""
    holds_out: bool = True
    """Whether a validation split that the corpus lacks is drawn from training. False: the reported split is also used
    for validation, as in the published study, and every training row is trained on."""
    rows: PositiveInt | None = None
    """Approximate number of training rows to take; None: all."""
    seed: NonNegativeInt = 0
    """Random seed of data preparation: the choice of rows, and the splits that a corpus does not have."""
    source: NoEffect[Path | None] = None
    """A file or folder with the corpus' splits; None: `data/<corpus>` (`data/xnli-de` for German) if it exists,
    otherwise the hub."""
    checksum: str | None = None
    """Checksum of the prepared files, as for `DataSpec`."""

    @property
    def task(self) -> TaskKind:
        """The kind of task that a run on these data learns."""
        return "seq2seq" if self.answers == "text" else "classification"


def _kind_of(data: Any) -> str:
    """Return the kind of data; records written before there were two kinds do not contain it."""
    return str(data.get("kind", "text") if isinstance(data, dict) else getattr(data, "kind", "text"))


AnyDataSpec = Annotated[
    Annotated[DataSpec, Tag("text")] | Annotated[ExamplesSpec, Tag("examples")], Discriminator(_kind_of)
]


# The training.

Precision = Literal["fp32", "bf16", "fp16", "auto"]
TrackerName = Literal["wandb", "trackio", "tensorboard"]
Beta = Annotated[float, Field(ge=0, lt=1)]


class TrainSpec(Spec):
    """AdamW with warm-up and decay, how often to evaluate, and how the machine computes."""

    steps: PositiveInt = 1000
    epochs: PositiveFloat | None = None
    """Number of passes over the training data, instead of `steps`, which are then derived when the run is resolved."""
    batch_size: PositiveInt = 8
    """Sequences per optimiser step, over all processes and accumulated parts together."""
    accumulation: PositiveInt = 1
    """Number of parts into which each process cuts its share of the batch, to compute them one after another."""
    learning_rate: PositiveFloat = 3e-4
    min_learning_rate: NonNegativeFloat = 0.0
    warmup_steps: NonNegativeInt = 100
    """Number of steps over which the rate rises; unused if `warmup_fraction` is set."""
    warmup_fraction: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of the schedule over which the rate rises, rounded down to whole steps, instead of `warmup_steps`."""
    warmup_from_zero: bool = False
    """Give the first step the rate 0, as the schedules of transformers do. By default it has one step's share."""
    schedule_over: Literal["steps", "parts"] = "steps"
    """What the length of the schedule counts. "parts" counts every part of an accumulated batch, although the rate
    changes once per step: with `accumulation` 2 the warm-up takes twice as long and the decay stops half-way. The
    published training program does this."""
    decay: Literal["cosine", "linear", "constant", "wsd"] = "cosine"
    """How the rate falls after the warm-up. "wsd" (warm-up, stable, decay) keeps the full rate and falls linearly over
    the last `decay_fraction` of the steps, so that shorter runs can branch off a longer one."""
    decay_fraction: Annotated[float, Field(gt=0, le=1)] = 0.2
    """Share of the steps over which "wsd" decays."""
    branch_at: NoEffect[tuple[PositiveInt, ...]] = ()
    """Steps after which a "wsd" run keeps its checkpoint for shorter runs to branch off. A study fills it in."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    epsilon: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.01
    grad_clip: NonNegativeFloat = 1.0
    """Maximum norm of the gradient; 0: no limit."""
    eval_every: PositiveInt | Literal["epoch"] = 250
    """Number of steps between two evaluations on validation; "epoch": evaluate at the end of each epoch."""
    eval_tokens: PositiveInt | None = 65_536
    """Number of validation tokens used during training; None: all. The last evaluation always uses all."""
    precision: Precision = "fp32"
    """Number format of matrix products; weights and moments are always float32. "auto" becomes bf16 where the device
    has it natively (a GPU, or a CPU with avx512_bf16 or AMX), else fp32, when the run is resolved."""
    chose_precision: NoEffect[bool] = False
    """Whether `precision` was declared as "auto". Resolving the run fills it in; leave it out."""
    tf32: bool = True
    """Whether fp32 products may use TensorFloat-32 on a GPU: several times faster, 10 instead of 23 bits."""
    compiled: bool = False
    """Train through torch.compile. The first step takes minutes, and results differ in the last bits."""
    device: Literal["cpu", "cuda"] = "cpu"
    threads: PositiveInt = 1
    """Number of CPU threads. It belongs to the identity of the run, because floating-point sums depend on it."""
    processes: PositiveInt = 1
    """Number of data-parallel processes (torchrun)."""
    checkpoint_every: NoEffect[PositiveInt] = 500
    track: NoEffect[TrackerName | None] = None
    """Experiment tracker that gets the curve as well (an extra of the same name)."""

    @model_validator(mode="before")
    @classmethod
    def _read_older_records(cls, fields: Any) -> Any:
        """Read the field `tensorboard` of records from before there were other trackers."""
        if not isinstance(fields, Mapping) or "tensorboard" not in fields:
            return fields
        rest = {name: value for name, value in fields.items() if name != "tensorboard"}
        return {**rest, "track": "tensorboard"} if fields["tensorboard"] is True else rest

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Self:
        if self.min_learning_rate > self.learning_rate:
            raise ValueError(f"min_learning_rate={self.min_learning_rate} is above learning_rate={self.learning_rate}")
        if self.decay != "wsd" and (self.decay_fraction != type(self).model_fields["decay_fraction"].default):
            raise ValueError(f"decay_fraction={self.decay_fraction} has no effect with decay={self.decay!r}: use 'wsd'")
        if late := [step for step in self.branch_at if self.decay != "wsd" or step > self.decay_start]:
            raise ValueError(f"branch_at={late} is not in the stable phase of a 'wsd' run")
        if self.schedule_over == "parts" and self.decay == "wsd":
            raise ValueError("schedule_over='parts' stops the decay early, and 'wsd' decays to its end: use another")
        parts = self.accumulation * self.processes
        if self.batch_size % parts:
            raise ValueError(
                f"batch_size={self.batch_size} does not divide into {self.processes} processes "
                f"x {self.accumulation} parts; use a multiple of {parts}"
            )
        return self

    @property
    def schedule_steps(self) -> int:
        """Number of steps after which the schedule would end."""
        return self.steps * (self.accumulation if self.schedule_over == "parts" else 1)

    @property
    def warmup(self) -> int:
        """Number of steps over which the rate rises."""
        if self.warmup_fraction is None:
            return self.warmup_steps
        return int(self.warmup_fraction * self.schedule_steps)

    @property
    def decay_start(self) -> int:
        """Number of steps of a "wsd" run before its decay: the warm-up and the stable phase."""
        return self.steps - max(1, round(self.decay_fraction * self.steps))


_SLACK = 1e-9
"""An epoch of text need not be a whole number of steps, and rounding must not lose or add one."""


def steps_of(epochs: float, per_epoch: float) -> int:
    """Return the number of steps in `epochs` epochs."""
    return max(1, math.ceil(epochs * per_epoch - _SLACK))


def epochs_ended(step: int, per_epoch: float) -> int:
    """Return the number of epochs that have ended by a step."""
    return math.floor(step / per_epoch + _SLACK)


# The run, and what it is identified by.

NUMERICS = 1
"""Version of the numbers. It is raised by hand when a fix changes results, so that earlier runs are not mistaken for
later ones."""


class ContinueSpec(Spec):
    """The run whose last checkpoint a run starts from, with its weights and moments (`oelm train --continue-from`)."""

    fingerprint: str
    step: PositiveInt
    """Number of steps of the checkpoint. They count as steps of the run that continues it."""
    folder: NoEffect[Path | None] = None
    """Folder of the run that is continued."""


class RunSpec(Spec):
    """Everything that determines one training run, and its names."""

    arm: NoEffect[Name] = "baseline"
    """Name of the method in the study. The method itself is the field `method`."""
    label: NoEffect[Name | None] = None
    """Name of a run that is listed one by one (`Listing`)."""
    scores_test: NoEffect[bool] = True
    """Whether the run is scored on the test split when it ends. Tuning runs are not."""
    model: ModelSpec
    method: MethodSpec = MethodSpec()
    data: AnyDataSpec = DataSpec()
    train: TrainSpec = TrainSpec()
    seed: NonNegativeInt = 0
    """Random seed of the run, for everything that has no seed of its own."""
    data_seed: NonNegativeInt | None = None
    """Seed of the order of the training data; None: `seed`."""
    init_seed: NonNegativeInt | None = None
    """Seed of the model's initial weights; None: `seed`."""
    draw_seed: NonNegativeInt | None = None
    """Seed of what the method draws, such as frozen Q and K; None: `seed`."""
    continues: ContinueSpec | None = None
    """The run that this one continues; None: it starts with new or pretrained weights."""

    def seed_of(self, purpose: Literal["data", "init", "draw"]) -> int:
        """Return the seed used for a purpose."""
        own: int | None = getattr(self, f"{purpose}_seed")
        return self.seed if own is None else own


def fingerprint(run: RunSpec) -> str:
    """Return the hash that identifies a run: of every field that can change its numbers, and of NUMERICS.

    Two runs with the same fingerprint are the same run. Names, folders and how often to save do not count.
    """
    return _fingerprint_of(_identity(run))


def _fingerprint_of(identity: dict[str, Any]) -> str:
    return digest({"numerics": NUMERICS, "run": identity})[:16]


@remember
def _identity(run: RunSpec) -> dict[str, Any]:
    meaning = run.meaning()
    if isinstance(run.data, ExamplesSpec) and run.data.checksum is None:
        # Text and labelled text may have the same name. Once a run is resolved, the checksum tells them apart.
        meaning["data"] = {"kind": run.data.kind, **meaning.get("data", {})}
    return meaning


@remember
def _declared_identity(run: RunSpec) -> dict[str, Any]:
    return _identity(undo_resolve(run))


def undo_resolve(run: RunSpec) -> RunSpec:
    """Return a resolved run as it was declared: without checksums, derived steps and the precision of "auto"."""
    train, model = run.train, run.model
    if train.epochs is not None:
        train = train.model_copy(update={"steps": TrainSpec.model_fields["steps"].default})
    if train.chose_precision:
        train = train.model_copy(update={"precision": "auto", "chose_precision": False})
    if isinstance(model, HuggingFaceSpec) and model.checksum is not None:
        model = model.model_copy(update={"checksum": None})
    if run.data.checksum is None and train is run.train and model is run.model:
        return run  # a copy would be hashed again
    data = run.data.model_copy(update={"checksum": None})
    return run.model_copy(update={"data": data, "model": model, "train": train})


def declared_fingerprint(run: RunSpec) -> str:
    """Return the fingerprint of a run as it was declared: how a study finds the records of its runs."""
    return _fingerprint_of(_declared_identity(run))


def in_precision_of(run: RunSpec, begun: RunSpec | None) -> RunSpec:
    """Return a run with precision "auto" in the precision it was started with, on whichever machine it continues."""
    if run.train.precision != "auto" or begun is None or not begun.train.chose_precision:
        return run
    return run.model_copy(update={"train": in_precision(run.train, begun.train.precision)})


def in_precision(train: TrainSpec, precision: Precision) -> TrainSpec:
    """Return a training in the precision that "auto" stands for."""
    return train.model_copy(update={"precision": precision, "chose_precision": True})


def with_tracker(run: RunSpec, name: TrackerName | None) -> RunSpec:
    """Return the run with an experiment tracker, or the run as it is."""
    return run if name is None else run.model_copy(update={"train": run.train.model_copy(update={"track": name})})


def trunk_of(run: RunSpec) -> str | None:
    """Return the fingerprint of the trunk of a warm-up-stable-decay run; None for any other run.

    Two runs with the same trunk differ only in their length and decay. Before the earlier decay begins they are
    identical, bit for bit.
    """
    if run.train.decay != "wsd" or run.method.schedule != ScheduleSpec():  # a schedule uses fractions of all steps
        return None
    length = {"steps": 1, "epochs": None, "decay_fraction": 1.0, "min_learning_rate": 0.0}
    return fingerprint(run.model_copy(update={"train": run.train.model_copy(update=length)}))


def branches_off(branch: RunSpec, trunk: RunSpec) -> bool:
    """Whether a run can continue from a checkpoint of a longer one, kept where the decay of the shorter one begins."""
    can_branch = branch.train.warmup <= branch.train.decay_start < trunk.train.decay_start
    return can_branch and trunk_of(branch) is not None and trunk_of(branch) == trunk_of(trunk)


# Seeds.


def derived_seed(seed: int, *purpose: str | int) -> int:
    """Return a 63-bit seed for one purpose; different purposes give unrelated streams."""
    text = "\x1f".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def stream(seed: int, *purpose: str | int) -> torch.Generator:
    """Return a CPU generator for one purpose, seeded by `derived_seed`."""
    import torch  # here, so that specs can be read without torch

    return torch.Generator().manual_seed(derived_seed(seed, *purpose))


# Where a run is executed.


class SlurmSpec(Spec):
    """The resources to request from Slurm for each run. Cores and GPUs follow from the run's threads and processes."""

    partition: Name | None = None
    """Partition; by default that of the cluster."""
    account: Name | None = None
    """Account that is charged for the time; by default your default account."""
    time: Annotated[int, Field(ge=5)] = 240
    """Time limit in minutes. A run that takes longer saves its state, is queued again and continues, as often as
    needed."""
    memory: PositiveFloat | None = None
    """Memory in GB; by default that of the cluster."""
    gpu: Name | None = None
    """Kind of GPU as the cluster names it, e.g. a100; by default any."""
