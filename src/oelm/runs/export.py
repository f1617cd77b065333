"""Write the model of a run as a Hugging Face folder, with its tokenizer and a model card."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from oelm import __version__
from oelm.files import write_atomically
from oelm.interop.export import export, export_decoder, export_labelled
from oelm.models import apply as surgery
from oelm.models.gpt import GPT
from oelm.record.record import RunRecord
from oelm.runs.restore import Restored
from oelm.spec.data import ExamplesSpec
from oelm.spec.model import HuggingFaceSpec
from oelm.spec.run import RunSpec, fingerprint


def export_run(restored: Restored, directory: Path) -> str:
    """Write the model of any run; return the Python expression that loads it."""
    data = restored.run.data
    if isinstance(data, ExamplesSpec):
        encoder, labels = restored.text_encoder()
        own_labels = labels if data.answers == "label" else ()
        export_labelled(restored.model, directory, encoder, own_labels, data.max_length)
    else:
        tokenizer = None if data.probe else restored.tokenizer()
        if isinstance(restored.run.model, HuggingFaceSpec):
            export_decoder(restored.model, directory, tokenizer)
        else:
            export(restored.gpt, directory, tokenizer)
    how = _how_to_load(directory)
    write_atomically(directory / "README.md", "\n".join(_card(restored, how)) + "\n")
    return how


def _how_to_load(directory: Path) -> str:
    config = json.loads((directory / "config.json").read_text())
    if config.get("model_type") == "oelm-gpt" or config.get("attn_implementation"):
        return f"oelm.load({str(directory.name)!r})"
    cls = config["architectures"][0]
    kinds = {"Classification": "SequenceClassification", "ConditionalGeneration": "Seq2SeqLM"}
    auto = next((name for end, name in kinds.items() if cls.endswith(end)), "CausalLM")
    return f"transformers.AutoModelFor{auto}.from_pretrained({str(directory.name)!r})"


def _card(restored: Restored, how: str) -> Iterator[str]:
    """Yield the lines of a model card: method, results, data, frozen tensors, and how to load it."""
    run = restored.run
    yield from ("---", "library_name: transformers", "tags:", "- oelm", f"- {run.data.task}", "---", "")
    yield from (f"# {run.arm} on {run.data.corpus}", "")
    yield f"Trained with oelm {__version__}, run `{fingerprint(run)}`, seed {run.seed}, {_length(restored)}."
    yield from ("", "## Load it", "", f"```python\n{how}\n```", "")
    if how.startswith("transformers") and run.method.freeze.roles:
        again = "" if isinstance(restored.model, GPT) else " `oelm.load` freezes the same tensors again."
        yield from (f"Nothing is frozen in the loaded model: plain transformers trains all weights.{again}", "")
    yield from ("## Method", "", "```json", run.method.model_dump_json(indent=1, exclude_defaults=True), "```", "")
    if restored.record is not None:
        yield from _results(restored.record, run)
    hashes = surgery.verify_frozen(restored.model)
    yield from (
        "## Frozen tensors",
        "",
        f"{len(hashes)} tensors are frozen. SHA-256 of their bytes during training:",
        "",
    )
    yield from (f"- `{name}` {digest}" for name, digest in hashes.items())


def _length(restored: Restored) -> str:
    return f"step {restored.state['progress']['step']} of {restored.run.train.steps}"


def _results(record: RunRecord, run: RunSpec) -> Iterator[str]:
    yield from ("## Results", "")
    if record.result is None:
        yield from (f"The run is {record.status} and has no results.", "")
    else:
        names = ("val_loss", "test_loss", "test_perplexity", "val_accuracy", "test_accuracy", "test_f1")
        values = {name: getattr(record.result, name) for name in names}
        yield from ("| figure at the end of training | value |", "| --- | --- |")
        yield from (
            f"| {name.replace('_', ' ')} | {value:.4f} |" for name, value in values.items() if value is not None
        )
        yield ""
    if record.parameters is not None:
        yield f"{record.parameters.trainable:,} of {record.parameters.total:,} parameters were trained."
    if record.data is not None:
        labels = f" Labels: {', '.join(record.data.labels)}." if record.data.labels else ""
        yield f"Data: {run.data.corpus}, checksum `{record.data.checksum[:16]}`.{labels}"
    yield ""
