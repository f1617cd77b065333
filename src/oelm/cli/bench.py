"""`oelm bench`: speed and memory against what one could take instead, each measured in one command."""

from __future__ import annotations

import importlib

from oelm.errors import UnknownName

# benchmark -> what it measures; its module is oelm.bench.<name>
BENCHES = {
    "step": "our training step against transformers, a nanoGPT-style GPT and the bare matrix products",
    "growth": "seconds and memory of our step against context length, width and depth",
    "methods": "what methods save of a step, beside the FLOPs they remove and the most they could save",
    "prepare": "turning text into tokens against bare tiktoken",
    "report": "write docs/results/performance.md from kept results of the others",
}


def main(argv: list[str]) -> int:
    """Call a benchmark by its name."""
    if not argv or argv[0] in ("-h", "--help"):
        print("usage: oelm bench NAME [options]      oelm bench NAME --help explains each\n")
        print("\n".join(f"  {name:8}  {what}" for name, what in BENCHES.items()))
        return 0
    if argv[0] not in BENCHES:
        raise UnknownName("benchmark", argv[0], BENCHES)
    return int(importlib.import_module(f"oelm.bench.{argv[0]}").main(argv[1:]))
