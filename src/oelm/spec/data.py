"""Data as a value: which corpus, as tokens or as labelled examples."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, NonNegativeInt, PositiveInt, Tag, model_validator

from oelm.spec import NoEffect, Spec

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
