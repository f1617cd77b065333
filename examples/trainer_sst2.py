"""Do what `oelm train --task sst2` does with the Hugging Face Trainer: freeze Q and K, fine-tune, verify.

    python examples/trainer_sst2.py FOLDER --model MODEL --method oelm-from-current

FOLDER has train.tsv and dev.tsv of GLUE's SST-2 (a header, then sentence and label). MODEL is a folder or hub name of
transformers. Only the three numbered lines are ours; everything else is in any Trainer script.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    set_seed,
)

import oelm


def rows(path: Path, tokenizer: Any, limit: int | None = None) -> list[dict[str, Any]]:
    """Read and encode a file. The collator pads each batch to its longest text later."""
    with path.open(newline="") as file:
        table = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[:limit]
    texts = tokenizer([row["sentence"] for row in table], truncation=True, max_length=128)
    return [
        {"input_ids": ids, "attention_mask": mask, "labels": int(row["label"])}
        for ids, mask, row in zip(texts["input_ids"], texts["attention_mask"], table, strict=True)
    ]


def accuracy(prediction: Any) -> dict[str, float]:
    """Return the metric that the Trainer reports."""
    return {"accuracy": float(np.mean(prediction.predictions.argmax(-1) == prediction.label_ids))}


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Train, measure and return the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="sentence-transformers/all-MiniLM-L6-v2")
    parser.add_argument("--method", default="oelm-from-current")
    parser.add_argument("--rows", type=int, default=None, help="number of training rows, from the first on")
    parser.add_argument("--epochs", type=float, default=2)
    parser.add_argument("--learning-rate", type=float, default=1.5e-4)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="runs/trainer-sst2")
    asked = parser.parse_args(argv)

    set_seed(asked.seed)
    tokenizer = AutoTokenizer.from_pretrained(asked.model)
    model = AutoModelForSequenceClassification.from_pretrained(asked.model, num_labels=2)
    audit = oelm.apply(model, asked.method, seed=asked.seed)  # 1: after the weights are loaded
    trainer = Trainer(
        model,
        TrainingArguments(
            asked.out,
            num_train_epochs=asked.epochs,
            per_device_train_batch_size=asked.batch_size,
            learning_rate=asked.learning_rate,
            lr_scheduler_type="linear",
            weight_decay=0.01,
            train_sampling_strategy="group_by_length",
            seed=asked.seed,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
        ),
        train_dataset=rows(asked.folder / "train.tsv", tokenizer, asked.rows),
        eval_dataset=rows(asked.folder / "dev.tsv", tokenizer),
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=accuracy,
        callbacks=[oelm.OelmCallback()],  # 2: applies schedules and rates, if the method has any
    )
    trainer.train()
    result = {
        "accuracy": trainer.evaluate()["eval_accuracy"],
        "trainable": audit.trainable,
        "frozen": audit.frozen,
        "hashes": oelm.verify_frozen(model),  # 3: raises an error if a frozen weight changed
    }
    print(json.dumps({**result, "hashes": len(result["hashes"])}))
    return result


if __name__ == "__main__":
    main()
