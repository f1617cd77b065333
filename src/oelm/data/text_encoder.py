"""Texts and pairs of texts to the ids that a model reads, each closed as its model was trained to see it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oelm.data.tokenizer import GPT2, TOKENIZER, train_tokenizer
from oelm.data.vocabulary import MERGES, VOCABULARY, find_vocabulary
from oelm.errors import BadData
from oelm.spec.data import END_OF_TEXT

if TYPE_CHECKING:
    import tokenizers

_PADS = ("[PAD]", "<pad>", END_OF_TEXT)


@dataclass(frozen=True, slots=True)
class TextEncoder:
    """A tokenizer with the special tokens of its model. `sha256` names what it does."""

    name: str
    vocab_size: int
    pad: int
    sha256: str
    tokenizer: tokenizers.Tokenizer = field(repr=False, compare=False)

    def encode(self, texts: Sequence[tuple[str, ...]], max_length: int) -> list[tokenizers.Encoding]:
        """Encode rows of one or two texts, cut to `max_length` tokens, the longer text of a pair first."""
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(max_length)
        batch: list[Any] = [row[0] if len(row) == 1 else row for row in texts]
        return self.tokenizer.encode_batch(batch)


def from_backend(tokenizer: tokenizers.Tokenizer, name: str) -> TextEncoder:
    """Take a tokenizer as its model brings it; one that closes texts with nothing gets the end of text for it."""
    import tokenizers

    if tokenizer.post_processor is None or _adds_nothing(tokenizer):
        end = tokenizer.token_to_id(END_OF_TEXT)
        if end is not None:
            tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
                single=f"$A {END_OF_TEXT}",
                pair=f"$A {END_OF_TEXT} $B:1 {END_OF_TEXT}:1",
                special_tokens=[(END_OF_TEXT, end)],
            )
    tokenizer.no_padding()
    tokenizer.no_truncation()
    named = hashlib.sha256(json.dumps(json.loads(tokenizer.to_str()), sort_keys=True).encode()).hexdigest()
    return TextEncoder(name, tokenizer.get_vocab_size(), _pad(tokenizer), named, tokenizer)


def _pad(tokenizer: tokenizers.Tokenizer) -> int:
    """Return what to pad with; without a token for it, a special one: decoders skip every token that is padding."""
    known = (tokenizer.token_to_id(token) for token in _PADS)
    special = (number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special)
    return next((number for number in known if number is not None), min(special, default=0))


def _adds_nothing(tokenizer: tokenizers.Tokenizer) -> bool:
    return tokenizer.num_special_tokens_to_add(is_pair=False) == 0


def from_file(path: Path) -> TextEncoder:
    """Read a model's `tokenizer.json`."""
    import tokenizers

    try:
        return from_backend(tokenizers.Tokenizer.from_file(str(path)), path.parent.name)
    except Exception as error:  # the library raises a bare Exception
        raise BadData(f"{path} is not a tokenizer ({error}). Give the model's own tokenizer.json.") from error


def gpt2_encoder() -> TextEncoder:
    """Return GPT-2's tokenizer with the files found on this machine."""
    import tokenizers

    files = find_vocabulary(None)
    merges = [tuple(line.split(" ")) for line in files[MERGES].decode().splitlines() if not line.startswith("#version")]
    model = tokenizers.models.BPE(json.loads(files[VOCABULARY]), [pair for pair in merges if len(pair) == 2])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens([END_OF_TEXT])
    return from_backend(tokenizer, GPT2)


def trained_encoder(texts: Iterable[str], vocab_size: int) -> TextEncoder:
    """Train a byte-level BPE on texts."""
    import tokenizers

    trained = train_tokenizer(texts, vocab_size)
    return from_backend(tokenizers.Tokenizer.from_str(trained.files[TOKENIZER].decode()), trained.name)
