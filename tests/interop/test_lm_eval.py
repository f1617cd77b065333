"""lm_eval on an exported model, offline, with a task of local files."""

import json
import math
import os
import subprocess
import sys

import pytest
import torch

from oelm.data.tokenizer import load_tokenizer
from oelm.interop.export import export
from oelm.models.gpt import GPT
from oelm.spec.run import GPTSpec

pytestmark = pytest.mark.programs

pytest.importorskip("lm_eval", reason="the extra 'eval' is not installed")

TASK = """
task: local_text
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list:
  - metric: bits_per_byte
"""


@pytest.mark.timeout(600)
def test_its_bits_per_byte_are_those_of_our_own_model(tiny_data, tmp_path):
    tokenizer = load_tokenizer(tiny_data)
    model = GPT(GPTSpec(context=128, model_dim=32, num_layers=1, num_heads=4, vocab_size=tokenizer.vocab_size)).eval()
    with torch.no_grad():
        model.token_embedding.weight.mul_(20)  # far from uniform, so that a wrong model is noticed
    export(model, tmp_path / "gpt2", tokenizer)
    texts = ["Tom went to the park.", "Emma had the red ball. Where was it?"]
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (tmp_path / "local_text.yaml").write_text(TASK.format(file=tmp_path / "text.jsonl"))
    command = [sys.executable, "-m", "lm_eval", "--model", "hf", "--model_args", f"pretrained={tmp_path / 'gpt2'}",
               "--tasks", "local_text", "--include_path", str(tmp_path), "--device", "cpu", "--batch_size", "1",
               "--output_path", str(tmp_path / "out")]  # fmt: skip
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=offline, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads(next((tmp_path / "out").rglob("results*.json")).read_text())["results"]["local_text"]
    nats = 0.0
    for text in texts:  # each document is scored after the end-of-text token
        ids = [tokenizer.end_of_text, *map(int, tokenizer.encode_batch([text])[0])]
        with torch.no_grad():
            loss = model(torch.tensor([ids[:-1]]), torch.tensor([ids[1:]]))
        nats += float(loss) * (len(ids) - 1)
    expected = nats / math.log(2) / sum(len(text.encode()) for text in texts)
    assert results["bits_per_byte,none"] == pytest.approx(expected, rel=1e-4)
