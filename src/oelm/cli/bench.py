"""`oelm bench`: measure speed and memory, each benchmark with one command."""

from __future__ import annotations

import importlib
import json
import sys

from oelm.cli.terminal import parse
from oelm.errors import UnknownName

# benchmark -> what it measures; oelm.bench.<name> has its arguments, <Name>Bench, and its function, bench_<name>; a
# hyphen in a name becomes an underscore, and the next letter a capital
BENCHES = {
    "step": "our training step against transformers, a nanoGPT-style GPT and the bare matrix products",
    "growth": "time and memory of our step against context length, width and depth",
    "methods": "what methods save of a step, the FLOPs they remove and the most they could save",
    "published-timing": "why the published study found 57 % less time on BERT: its timer, and both arms timed alike",
    "prepare": "tokenising text against bare tiktoken",
    "report": "write docs/results/performance.md from the stored results of the others",
}


def bench_command(argv: list[str]) -> int:
    """Run a benchmark by its name; progress goes to standard error, the result to standard output."""
    if not argv or argv[0] in ("-h", "--help"):
        print("usage: oelm bench NAME [options]      oelm bench NAME --help explains a benchmark\n")
        print("\n".join(f"  {name:16}  {what}" for name, what in BENCHES.items()))
        print("\nFor example:\n\n  oelm bench step --precision auto")
        return 0
    name, *rest = argv
    if name not in BENCHES:
        raise UnknownName("benchmark", name, BENCHES)
    own = name.replace("-", "_")
    module = importlib.import_module(f"oelm.bench.{own}")
    bench = parse(getattr(module, f"{name.title().replace('-', '')}Bench"), rest, f"oelm bench {name}")
    result = getattr(module, f"bench_{own}")(bench, lambda line: print(line, file=sys.stderr, flush=True))
    if result is not None:
        print(json.dumps(result, indent=None if bench.json else 1))
    return 0
