"""Data as a value: which corpus, cut into which tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from oelm.spec.base import NoEffect, Spec

END_OF_TEXT = "<|endoftext|>"


class DataSpec(Spec):
    """A tokenised corpus in nanoGPT's layout.

    `checksum` is that of the prepared files. It is filled in when a run is bound to them, so that the
    fingerprint of a run names its bytes and not merely their folder.
    """

    corpus: str = "stories"
    vocab_size: Annotated[int, Field(ge=257, le=65536)] | None = None
    """The size of a byte-level BPE trained on the corpus; None: GPT-2's own vocabulary."""
    tokens: PositiveInt | None = None
    """About how many training tokens to prepare; None: the whole corpus."""
    seed: NonNegativeInt = 0
    """Of what is drawn in preparing: the stories, the split by document."""
    source: NoEffect[Path | None] = None
    """Local text to prepare from; None: the corpus by its name."""
    directory: NoEffect[Path | None] = None
    """Where the token files lie; None: the cache."""
    checksum: str | None = None


Split = Literal["train", "val", "test"]
