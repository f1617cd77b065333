#!/usr/bin/env python3
"""The published study's training command: a thin door to the same run.

    python3 scripts/train_v2.py --model_type oelm_v2 --dataset tinystories --max_lr 1e-3 --out_dir outputs/GPT-02
    torchrun --nproc_per_node=2 scripts/train_v2.py --model_type oelm_v2 --dataset tinystories

The flags and their defaults are the published ones, and so are training.log, timing_stats.json, best.pt and
latest.pt in --out_dir. Beside them are the record and our own checkpoints, from which the same command continues.
"""

import functools
import sys
from pathlib import Path

from oelm.errors import INTERRUPTED, OelmError
from oelm.interop.predecessor import PublishedCheckpoints, directory_of, parser, read_published, run_of
from oelm.record.store import RECORD, read_record
from oelm.runner.bind import bound
from oelm.runner.run import execute
from oelm.train.loop import Interrupted


def _threads_begun_with(directory: Path) -> int | None:
    """Return the threads of the run begun in a folder: it goes on as it was, on whatever cores."""
    return read_record(directory).spec.train.threads if (directory / RECORD).exists() else None


def main() -> int:
    """Run the published command."""
    flags = parser().parse_args()
    try:
        if flags.resume is not None:
            read_published(flags.resume)  # before anything is made: a wrong file leaves no trace
        run, tokens = bound(run_of(flags, _threads_begun_with(directory_of(flags))))
        execute(run, tokens, directory_of(flags), make_checkpoints=functools.partial(PublishedCheckpoints, flags=flags))
    except Interrupted as wish:
        print(f"{wish}; the same command continues it", file=sys.stderr)
        return INTERRUPTED
    except OelmError as error:
        print(f"train_v2.py: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
