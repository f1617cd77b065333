"""Data as a value: which corpus, cut into which tokens, or into which labelled examples."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, NonNegativeInt, PositiveInt, Tag, model_validator

from oelm.spec.base import NoEffect, Spec

END_OF_TEXT = "<|endoftext|>"
PROBE_SIZES = {"recall": (2, 32), "copy": (2, 64)}
"""The generated tasks that ask for one skill of attention, and how small and large they can be."""


class ProbeSpec(Spec):
    """A corpus that is a probe: recall of so many pairs, or copying at such a distance."""

    kind: Literal["recall", "copy"]
    size: int

    @property
    def corpus(self) -> str:
        """Its name as a corpus."""
        return f"{self.kind}:{self.size}"


def probe_of(corpus: str) -> ProbeSpec | None:
    """Read a corpus' name as a probe's; None for all others. Raise ValueError for a probe that cannot be."""
    kind, colon, size = corpus.partition(":")
    if kind not in PROBE_SIZES or not colon:
        return None
    least, most = PROBE_SIZES[kind]
    if not (size.isascii() and size.isdigit() and str(int(size)) == size and least <= int(size) <= most):
        raise ValueError(f"{corpus!r} is no probe: {kind} takes a number from {least} to {most}, as in {kind}:{least}")
    return ProbeSpec.model_validate({"kind": kind, "size": int(size)})


class DataSpec(Spec):
    """A tokenised corpus in nanoGPT's layout.

    `checksum` is that of the prepared files. It is filled in when a run is bound to them, so that the
    fingerprint of a run names its bytes and not merely their folder.
    """

    kind: Literal["text"] = "text"
    corpus: str = "stories"
    vocab_size: Annotated[int, Field(ge=257, le=65536)] | None = None
    """The size of a byte-level BPE trained on the corpus; None: GPT-2's own vocabulary."""
    tokens: PositiveInt | None = None
    """About how many training tokens to prepare; None: the whole corpus."""
    seed: NonNegativeInt = 0
    """Of what is drawn in preparing: the stories, the split by document."""
    seal: Annotated[float, Field(gt=0, le=0.5)] | None = None
    """Share of the training documents that becomes a sealed split, which only `oelm report --unseal` reads, once."""
    source: NoEffect[Path | None] = None
    """Local text to prepare from; None: the corpus by its name."""
    directory: NoEffect[Path | None] = None
    """Where the token files lie; None: `data/<corpus>`, named as `oelm prepare` names it."""
    checksum: str | None = None

    @model_validator(mode="after")
    def _names_a_probe_that_can_be(self) -> Self:
        if self.probe and self.vocab_size is not None:
            raise ValueError(f"{self.corpus} has a vocabulary of its own; leave vocab_size={self.vocab_size} out")
        return self

    @property
    def probe(self) -> ProbeSpec | None:
        """The probe that the corpus is, if it is one: what counts there is the share of right answers."""
        return probe_of(self.corpus)


class ExamplesSpec(Spec):
    """Labelled text: one or two texts and a label in each row. `checksum` as for `DataSpec`."""

    kind: Literal["examples"] = "examples"
    corpus: str = "sst2"
    language: str = "en"
    """Which of a corpus' languages; all but XNLI have one."""
    texts: tuple[str, ...] = ()
    """The columns with the one or two texts; empty: the corpus' own."""
    label: str | None = None
    """The column with the label; None: the corpus' own."""
    vocab_size: Annotated[int, Field(ge=257, le=65536)] | None = None
    """The size of a byte-level BPE trained on the training texts, for models from scratch; None: the model's own."""
    answers: Literal["label", "text"] = "label"
    """Whether a model chooses among the labels, or (an encoder-decoder) writes the label's name."""
    max_length: PositiveInt = 128
    """Longer texts are cut."""
    padding: Literal["longest", "max_length"] = "longest"
    """Pad to the longest of a batch of about equal lengths, or (as published) everything to `max_length`."""
    rows: PositiveInt | None = None
    """About how many training rows to take; None: all of them."""
    seed: NonNegativeInt = 0
    """Of what is drawn in preparing: the rows, and the splits that a corpus lacks."""
    source: NoEffect[Path | None] = None
    """A file or folder with the corpus' splits; None: `data/<corpus>` (`data/xnli-de` for German) if it is there, else
    the hub."""
    checksum: str | None = None


def _kind(data: Any) -> str:
    """Tell which kind of data is meant; records from before there were two do not say."""
    return str(data.get("kind", "text") if isinstance(data, dict) else getattr(data, "kind", "text"))


AnyDataSpec = Annotated[
    Annotated[DataSpec, Tag("text")] | Annotated[ExamplesSpec, Tag("examples")], Discriminator(_kind)
]

Split = Literal["train", "val", "test"]
SplitFile = Literal["train", "val", "test", "sealed"]
"""What prepared tokens consist of. No verb takes "sealed" for a split."""
