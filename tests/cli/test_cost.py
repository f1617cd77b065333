"""`oelm cost`."""

import json

import pytest

from oelm.cli import dispatch


def counted(capsys, *argv):
    assert dispatch(["cost", *argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("argv", "percent"),
    [
        (["medium-512", "--length", "512"], 2.2),
        (["medium-512"], 2.2),
        (["bert-base", "--labels", "3", "--length", "128"], 5.4),
    ],
)
def test_freezing_removes_the_published_share(capsys, argv, percent):
    found = counted(capsys, *argv, "--method", "oelm-freeze")
    assert round(100 * found["flop_share"], 1) == percent
    assert found["removed_flops"] == sum(found["forward_flops"][role] for role in "qk")


@pytest.mark.parametrize(("method", "mib", "trained"), [("baseline", 514, 44896768), ("oelm-freeze", 490, 41751040)])
def test_checkpoint_and_parameters_are_the_published_ones(capsys, method, mib, trained):
    found = counted(capsys, "medium-512", "--method", method, "--length", "8", "--batch", "1")
    assert round(found["checkpoint_mib"]) == mib
    assert found["parameters"] == {"total": 44896768, "trained": trained, "frozen": 44896768 - trained}
    assert found["optimizer_bytes"] == 8 * trained


def test_people_get_parts_bytes_and_the_share(capsys):
    assert dispatch(["cost", "nano", "--method", "oelm-freeze", "--batch", "4"]) == 0
    words = capsys.readouterr().out
    for expected in ("one step of 4 x 32", "attention", "29,344", "an estimate", "% of a step with all trained"):
        assert expected in words


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["medum-512"], "Did you mean 'medium-512'"),
        (["nano", "--length", "33"], "context of 32"),
        (["nano", "--batch", "0"], "at least 1"),
        (["bert-tiny", "--length", "600"], "within its positions"),
        (["bert-base", "--labels", "0"], "labels=0 was given"),
        (["bert-tiny", "--labels", "-3"], "labels=-3 was given"),
    ],
)
def test_bad_input_is_refused_with_the_reason(capsys, argv, words):
    assert dispatch(["cost", *argv]) == 2
    assert words in capsys.readouterr().err
