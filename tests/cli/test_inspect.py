"""`oelm inspect`."""

import json
import subprocess
import sys

import pytest

from oelm.cli import dispatch


def inspected(capsys, *argv):
    assert dispatch(["inspect", *argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("argv", "counts"),
    [
        (["medium-512"], (44896768, 3145728, 41751040)),
        (["bert-base", "--labels", "3"], (109484547, 14174208, 95310339)),
    ],
)
def test_the_published_counts_come_out(capsys, argv, counts):
    found = inspected(capsys, *argv, "--method", "oelm-freeze")
    assert (found["total"], found["frozen"], found["trainable"]) == counts
    assert found["max_departure"] < 1e-6
    frozen = [row for row in found["projections"] if row["frozen"]]
    assert {row["role"] for row in frozen} == {"q", "k"}
    assert all(len(row["sha256"]) == 64 for row in frozen)


def test_people_get_a_table_totals_and_what_is_never_frozen(capsys):
    assert dispatch(["inspect", "nano", "--method", "oelm-freeze"]) == 0
    words = capsys.readouterr().out
    for expected in ("under oelm-freeze", "4 x 8 x 32", "q k", "v o ffn", "29,344", "token_embedding 3,104"):
        assert expected in words


def test_our_own_sizes_never_import_transformers():
    code = (
        "import sys; from oelm.cli import dispatch; dispatch(['inspect', 'nano']); "
        "sys.exit('transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["medum-512"], "Did you mean 'medium-512'"),
        (["nano", "--method", "oelm-freez"], "Did you mean 'oelm-freeze'"),
        (["no/such-model-anywhere-at-all"], "could not be read"),
        (["nano", "--method", "oelm-partial:7"], "has 2 layers"),
        (["mini", "--labels", "0"], "labels=0 was given"),
        (["mini", "--labels", "-1"], "labels=-1 was given"),
    ],
)
def test_bad_input_is_refused_with_the_reason(capsys, monkeypatch, argv, words):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert dispatch(["inspect", *argv]) == 2
    assert words in capsys.readouterr().err


def test_a_saved_model_is_shown_with_the_method_it_carries(capsys, tmp_path):
    transformers = pytest.importorskip("transformers")
    import oelm

    config = transformers.GPT2Config(vocab_size=61, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    model = transformers.GPT2LMHeadModel(config)
    audit = oelm.apply(model, "oelm-freeze")
    model.save_pretrained(tmp_path)
    found = inspected(capsys, str(tmp_path))
    assert (found["total"], found["frozen"]) == (audit.total, audit.frozen)


def test_the_folder_of_a_run_is_shown_with_its_method(capsys, write_run, study):
    run = next(run for run in study.runs() if run.method.freeze.roles)
    found = inspected(capsys, str(write_run(run)))
    assert (found["total"], found["frozen"]) == (29344, 4096)
