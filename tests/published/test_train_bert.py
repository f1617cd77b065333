"""The published BERT commands, as they were launched."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from oelm.published.bert import bert_parser, translate_bert_flags
from oelm.record.folder import read_record
from oelm.spec.method import named_method
from oelm.spec.run import fingerprint
from oelm.spec.study import load_study

pytestmark = pytest.mark.programs

ROOT = Path(__file__).parents[2]
LAUNCHED = {
    "XNLI-01": "--dataset xnli --freeze_mode false --init_method normal --lr 2e-5 --batch_size 16 --epochs 3 "
    "--max_length 128 --validate_steps 500 --output_dir outputs/xnli/baseline --seed 42",
    "XNLI-02": "--dataset xnli --freeze_mode true --init_method orthogonal --lr 1e-4 --batch_size 8 "
    "--gradient_accumulation_steps 2 --epochs 3 --max_length 128 --validate_steps 500 --output_dir out --seed 42",
    "SST-2-01": "--freeze_mode false --lr 2e-5 --dataset sst2 --output_dir outputs/sst2_baseline",
    "SST-2-02": "--freeze_mode true --lr 1e-4 --dataset sst2 --init_method orthogonal --output_dir outputs/sst2_oelm",
    "SST-2-03": "--freeze_mode true --lr 1e-4 --dataset sst2 --init_method normal --output_dir outputs/oelm_random",
    "MNLI-01": "--freeze_mode false --lr 2e-5 --dataset mnli --output_dir outputs/mnli_baseline",
    "MNLI-02": "--freeze_mode true --lr 1e-4 --dataset mnli --init_method orthogonal --output_dir outputs/mnli_oelm",
}


@pytest.mark.parametrize("name", LAUNCHED)
def test_a_launch_command_is_the_run_of_the_study(name):
    """On the same device, number of threads and labels: the command line does not name them."""
    declared = next(run for run in load_study(ROOT / "studies/published.py").listed if run.label.startswith(name))
    run = translate_bert_flags(bert_parser().parse_args(shlex.split(LAUNCHED[name])), threads=1)
    run = run.model_copy(
        update={
            "train": run.train.model_copy(update={"device": declared.train.device}),
            "model": run.model.model_copy(update={"labels": declared.model.labels}),
        }
    )
    assert fingerprint(run) == fingerprint(declared)


def test_the_command_trains_on_local_rows(tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film", *map(str, range(40))]
    config = transformers.BertConfig(
        vocab_size=len(words), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16,
    )  # fmt: skip
    transformers.BertForMaskedLM(config).save_pretrained(tmp_path / "bert")
    vocabulary = {word: number for number, word in enumerate(words)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token=words[1]))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    special = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), words, strict=False))
    transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **special).save_pretrained(tmp_path / "bert")
    data = tmp_path / "data" / "sst2"
    data.mkdir(parents=True)
    for split, count in (("train", 40), ("dev", 8)):
        rows = [f"{('bad', 'good')[n % 2]} film {n}\t{n % 2}" for n in range(count)]
        (data / f"{split}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    flags = "--model_name bert --freeze_mode true --lr 1e-3 --batch_size 4 --gradient_accumulation_steps 2 "
    flags += "--epochs 2 --max_length 8 --validate_steps 5 --output_dir out"
    command = [sys.executable, str(ROOT / "scripts" / "train_bert.py"), *shlex.split(flags)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    record = read_record(tmp_path / "out")
    assert record.spec.method == named_method("oelm-from-current")
    assert (record.step, record.spec.train.schedule_steps, record.data.rows["train"]) == (10, 20, 40)
    assert len(record.frozen_hashes) == 4
