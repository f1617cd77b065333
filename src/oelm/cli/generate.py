"""`oelm generate`: text from a trained model, as it is drawn."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from oelm.errors import UsageError


@dataclass
class Arguments:
    """Continue a text with a trained model, token by token."""

    run: tyro.conf.Positional[Path]
    """The folder of a run, or of one checkpoint."""
    prompt: str = ""
    """What to continue; empty: the beginning of a document."""
    tokens: int = 128
    """How many tokens at most; the end of a document ends it sooner."""
    temperature: float = 0.8
    """0 takes the likeliest token; 1 draws as the model believes."""
    top_k: int | None = None
    """Only among the k likeliest."""
    top_p: float | None = None
    """Only among the likeliest that gather this much probability."""
    seed: int = 0
    """Of the draw."""
    data: Path | None = None
    """Folder with the tokenizer; by default that of the run's data."""
    checkpoint: Literal["latest", "best"] = "latest"
    """The end of training, or the lowest validation loss on the way."""


def main(argv: list[str]) -> int:
    """Parse, draw, print as it comes."""
    arguments = tyro.cli(Arguments, args=argv, prog="oelm generate")
    if arguments.tokens < 1:
        raise UsageError(
            f"--tokens {arguments.tokens} was given. A text continues by at least 1; leave it out for 128."
        )

    from oelm.data.tokenizer import load_tokenizer
    from oelm.models.generate import generate
    from oelm.runner.restore import restore

    restored = restore(arguments.run, arguments.checkpoint)
    if arguments.data:
        restored.refuse_other_vocabulary(arguments.data)
    tokenizer = load_tokenizer(arguments.data or restored.data_directory)
    prompt = [int(token) for token in tokenizer.encode_batch([arguments.prompt])[0]] or [tokenizer.end_of_text]
    drawn = generate(
        restored.gpt,
        prompt,
        new_tokens=arguments.tokens,
        temperature=arguments.temperature,
        top_k=arguments.top_k,
        top_p=arguments.top_p,
        seed=arguments.seed,
        stop=tokenizer.end_of_text,
    )
    print(arguments.prompt, end="", flush=True)
    ids: list[int] = []
    shown = ""
    for token in drawn:
        if token == tokenizer.end_of_text:
            break
        ids.append(token)
        text = tokenizer.decode(ids)
        # A character may span tokens: what is not whole yet waits for the next one.
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):
            print(text[len(shown) :], end="", flush=True)
            shown = text
    print()
    return 0
