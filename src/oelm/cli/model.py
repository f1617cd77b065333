"""`oelm evaluate`, `oelm generate`, `oelm predict` and `oelm export`: use the model of a run."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from pydantic import Field

from oelm.cli import say
from oelm.cli.terminal import Count, Seed, parse
from oelm.errors import BadData, UsageError
from oelm.record.test_split import note_look
from oelm.spec.run import Split


@dataclass
class GenerateArguments:
    """Continue a text with a trained model, token by token.

    For example:

      oelm generate runs/demo/baseline-seed0_1f0c --prompt "Once upon a time" --tokens 60
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of a run or of one checkpoint."""
    prompt: str = ""
    """Text to continue. By default the model begins a new document."""
    tokens: Count = 128
    """Largest number of tokens. The end of a document stops the text earlier."""
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.8
    """Temperature of the draw: 0 always takes the likeliest token, 1 draws from the model's own distribution."""
    top_k: Count | None = None
    """Draw only among the k likeliest tokens."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Draw only among the likeliest tokens that together have this probability."""
    seed: Seed = 0
    """Random seed of the draw."""
    data: Path | None = None
    """Folder with the tokenizer. By default that of the run's data."""
    checkpoint: Literal["latest", "best"] = "latest"
    """Checkpoint at the end of training, or the one with the lowest validation loss."""


def generate_command(argv: list[str]) -> int:
    """Load a run and print the text while it is generated."""
    arguments = parse(GenerateArguments, argv, "oelm generate")

    from oelm.data.meta import META
    from oelm.data.tokenizer import TOKENIZER, VOCABULARY, load_tokenizer
    from oelm.models.gpt import generate_tokens
    from oelm.runs.restore import load_run
    from oelm.tasks.language import refuse_other_vocabulary

    restored = load_run(arguments.run, arguments.checkpoint)
    entries = restored.gpt.token_embedding.num_embeddings
    if arguments.data:
        if not any((arguments.data / name).is_file() for name in (META, TOKENIZER, VOCABULARY, "train.bin")):
            raise BadData(f"{arguments.data} has neither a tokenizer nor tokens. Give the folder of prepared data.")
        refuse_other_vocabulary(restored.run, restored.tokenizer_sha256, arguments.data)
    tokenizer = load_tokenizer(arguments.data) if arguments.data else restored.tokenizer()
    if tokenizer.vocab_size > entries:
        raise BadData(
            f"{arguments.data or arguments.run} does not have the tokenizer of this model, which knows {entries} "
            "tokens. Give --data with the tokens that the run was trained on."
        )
    prompt = [int(token) for token in tokenizer.encode_batch([arguments.prompt])[0]] or [tokenizer.end_of_text]
    drawn = generate_tokens(
        restored.gpt,
        prompt,
        new_tokens=arguments.tokens,
        temperature=arguments.temperature,
        top_k=arguments.top_k,
        top_p=arguments.top_p,
        seed=arguments.seed,
        stop=tokenizer.end_of_text,
    )
    say(arguments.prompt, end="")
    ids: list[int] = []
    shown = ""
    for token in drawn:
        if token == tokenizer.end_of_text:
            break
        ids.append(token)
        text = tokenizer.decode(ids)
        # A character may span several tokens. Print it when it is complete.
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):
            say(text[len(shown) :], end="")
            shown = text
    print()
    return 0


@dataclass
class EvaluateArguments:
    """Measure a trained model on every token, or every labelled text, of a split.

    For example:

      oelm evaluate runs/demo/baseline-seed0_1f0c --split val --json
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of a run or of one checkpoint."""
    split: Split = "test"
    """Split to measure. Every look at test is written to test_looks.jsonl in the run folder, and reports count it."""
    data: Path | None = None
    """Token files or labelled texts to measure on. By default the run's own. A table of texts is read with the run's
    columns, labels and vocabulary: a file is the requested split, a folder has files named after the splits."""
    checkpoint: Literal["latest", "best"] = "latest"
    """Checkpoint at the end of training, or the best on validation: lowest loss, or highest accuracy for labels."""
    threads: Count | None = None
    """Number of CPU threads. By default that of the run."""
    json: bool = False
    """Print the result as JSON."""


def evaluate_command(argv: list[str]) -> int:
    """Measure a run on a split and print the result."""
    arguments = parse(EvaluateArguments, argv, "oelm evaluate")

    import torch

    from oelm.runs.resolve import resolve
    from oelm.runs.restore import load_run
    from oelm.tasks import make_task, task_class

    restored = load_run(arguments.run, arguments.checkpoint)
    run, split = restored.run, arguments.split
    torch.set_num_threads(arguments.threads or run.train.threads)
    data = (
        task_class(run).open_other_data(run, arguments.data, split, restored.tokenizer_sha256)
        if arguments.data
        else resolve(run).data
    )
    task = make_task(run, data, torch.device("cpu"))
    task.refuse_unreadable(restored.model, split)
    if arguments.data:
        for note in task.data_record().notes:
            say(note, stderr=True)
    if split == "test" and "test" in task.splits:
        note_look(arguments.run, data.checksum, arguments.checkpoint)
    measured = task.measure(restored.model, split)
    result = {
        "split": split,
        "loss": measured.loss,
        **task.describe(measured, split),
        "step": restored.state["progress"]["step"],
        "checksum": data.checksum,
    }
    say(json.dumps(result) if arguments.json else "\n".join(f"{name:10}  {value}" for name, value in result.items()))
    return 0


@dataclass
class PredictArguments:
    """Predict the labels of texts with a fine-tuned model; an encoder-decoder writes its answers.

    The run's own data are not needed. Each line has the label, its probability and the text, separated by tabs.

      oelm predict runs/oelm-from-current-seed0_93ab --text "A fine film." --text "Dull."
      oelm predict runs/oelm-from-current-seed0_93ab --from reviews.tsv --json
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of a run or of one checkpoint."""
    text: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Text to label; give it several times for several texts. For a task of pairs, the two texts of each row follow
    one another."""
    source: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """Table (.tsv, .csv, .jsonl, .parquet) with the text columns of the run, or a file with one text per line."""
    checkpoint: Literal["latest", "best"] = "latest"
    """Checkpoint at the end of training, or the best on validation: lowest loss, or highest accuracy for labels."""
    json: bool = False
    """Print one JSON object per text: texts, label, and the probability of every label."""


def predict_command(argv: list[str]) -> int:
    """Predict the labels of texts and print them."""
    arguments = parse(PredictArguments, argv, "oelm predict")
    if bool(arguments.text) == (arguments.source is not None):
        raise UsageError("Give the texts either with --text, once for each, or as a file with --from.")

    from oelm.runs.restore import group_texts, load_run, predict_texts, read_texts

    restored = load_run(arguments.run, arguments.checkpoint)
    if arguments.source is not None:
        rows = read_texts(restored, arguments.source)
    else:
        rows = group_texts(restored, arguments.text)
    for found in predict_texts(restored, rows):
        if arguments.json:
            print(json.dumps(asdict(found), ensure_ascii=False))
        else:
            share = found.probabilities.get(found.label)
            flat = (" ".join(text.split()) for text in found.texts)
            print("\t".join([found.label, "" if share is None else f"{share:.4f}", *flat]))
    return 0


@dataclass
class ExportArguments:
    """Write the model of a run as a Hugging Face folder, with its tokenizer and a model card.

    Our GPT becomes a plain GPT-2, Starcoder2 or Arcee with the same logits, which transformers, lm_eval and others
    load. With parts that none of them has (position features, for example) it becomes the model type `oelm-gpt`, which
    `oelm.load` reads. A fine-tuned Hugging Face model keeps its class.

      oelm export runs/demo/baseline-seed0_1f0c exported
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of a run or of one checkpoint."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """Folder to write. It must not exist yet."""
    checkpoint: Literal["latest", "best"] = "latest"
    """Checkpoint at the end of training, or the best on validation: lowest loss, or highest accuracy for labels."""


def export_command(argv: list[str]) -> int:
    """Write the model of a run as a Hugging Face folder."""
    arguments = parse(ExportArguments, argv, "oelm export")

    from oelm.runs.restore import export_run, load_run

    how = export_run(load_run(arguments.run, arguments.checkpoint), arguments.out)
    say(f"{arguments.out}: load it with {how}; README.md is its model card")
    return 0
