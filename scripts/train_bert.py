#!/usr/bin/env python3
"""The BERT training command of the published study, with the same flags.

    python3 scripts/train_bert.py --dataset xnli --freeze_mode false --init_method normal --lr 2e-5 --batch_size 16

Flags and defaults are the published ones. Rows are read from data/<dataset> (`oelm prepare --task`), else from the hub.
--output_dir gets our record, training.log, timing_stats.json and checkpoints; the same command continues a run that was
stopped. --model_name also takes the folder of a model.
"""
# ruff: noqa: E402  (OpenMP reads its settings when torch is loaded)

import sys

from oelm.cores import wait_without_spinning

wait_without_spinning()

from oelm.errors import INTERRUPTED, OelmError
from oelm.published.bert import bert_parser, translate_bert_flags
from oelm.record.folder import RECORD, read_record
from oelm.runs.execute import execute
from oelm.runs.resolve import resolve
from oelm.train.loop import Interrupted


def main() -> int:
    """Run the published command."""
    flags = bert_parser().parse_args()
    out = flags.output_dir
    try:
        threads = read_record(out).spec.train.threads if (out / RECORD).exists() else None
        execute(*resolve(translate_bert_flags(flags, threads)), out)
    except Interrupted as interruption:
        print(f"{interruption}; the same command continues it", file=sys.stderr)
        return INTERRUPTED
    except OelmError as error:
        print(f"train_bert.py: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
