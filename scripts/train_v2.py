#!/usr/bin/env python3
"""The training command of the published study, with the same flags.

    python3 scripts/train_v2.py --model_type oelm_v2 --dataset tinystories --max_lr 1e-3 --out_dir outputs/GPT-02
    torchrun --nproc_per_node=2 scripts/train_v2.py --model_type oelm_v2 --dataset tinystories

Flags and defaults are the published ones, and so are training.log, timing_stats.json, best.pt and latest.pt in
--out_dir. Next to them are the record and our own checkpoints, from which the same command continues.
"""
# ruff: noqa: E402  (OpenMP reads its settings when torch is loaded)

import argparse
import functools
import json
import sys
from pathlib import Path
from typing import Any

from oelm.cores import wait_without_spinning

wait_without_spinning()

from oelm.errors import INTERRUPTED, OelmError
from oelm.files import write_atomically
from oelm.published.checkpoints import (
    PublishedCheckpoints,
    parser,
    published_folder,
    published_timing,
    read_published,
    translate_flags,
)
from oelm.record.folder import RECORD, TIMING, read_record
from oelm.record.record import RunRecord
from oelm.runs.execute import execute
from oelm.runs.resolve import resolve
from oelm.train.loop import Interrupted


def _recorded_threads(directory: Path) -> int | None:
    """Return the number of threads of the run in a folder, with which it continues on any machine."""
    return read_record(directory).spec.train.threads if (directory / RECORD).exists() else None


def _keep(made: list[PublishedCheckpoints], *place: Any, flags: argparse.Namespace) -> PublishedCheckpoints:
    made.append(PublishedCheckpoints(*place, flags=flags))
    return made[0]


def _write_timing(out: Path, checkpoints: PublishedCheckpoints, record: RunRecord) -> None:
    """Write timing_stats.json in its published form; short runs keep our statistics next to the published note."""
    ours = json.loads((out / TIMING).read_text())
    wall = record.seconds.total if record.seconds else 0.0
    theirs = published_timing(checkpoints, wall, ours["epoch_times"])
    write_atomically(out / TIMING, json.dumps(ours | theirs, indent=2))


def main() -> int:
    """Run the published command."""
    flags = parser().parse_args()
    try:
        if flags.resume is not None:
            read_published(flags.resume)  # checked first, so that a wrong file leaves no output folder
        out = published_folder(flags)
        run, tokens = resolve(translate_flags(flags, _recorded_threads(out)))
        made: list[PublishedCheckpoints] = []
        record = execute(run, tokens, out, make_checkpoints=functools.partial(_keep, made, flags=flags))
        if made and made[0].times:  # the leading process, if it trained
            _write_timing(out, made[0], record)
    except Interrupted as interruption:
        print(f"{interruption}; the same command continues it", file=sys.stderr)
        return INTERRUPTED
    except OelmError as error:
        print(f"train_v2.py: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
