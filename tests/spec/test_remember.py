"""Results that are kept for as long as the value that they were computed from."""

import gc

from oelm.spec import remember
from oelm.spec.run import GPT_SIZES, RunSpec, TrainSpec, fingerprint


def test_a_result_is_computed_once_for_each_value_and_equal_values_are_told_apart():
    calls = []

    @remember
    def text(run):
        calls.append(run)
        return str(run.train.learning_rate)

    base = RunSpec(model=GPT_SIZES["nano"], train=TrainSpec(learning_rate=1.0))
    whole = base.model_copy(update={"train": base.train.model_copy(update={"learning_rate": 1})})
    assert base == whole
    assert [text(base), text(whole), text(base)] == ["1.0", "1", "1.0"]
    assert calls == [base, whole]
    assert fingerprint(base) != fingerprint(base.model_copy(update={"seed": 1}))


def test_a_result_goes_with_its_value():
    calls = []

    @remember
    def seed(run):
        calls.append(run.seed)
        return run.seed

    for number in range(50):  # later values may get the place of earlier ones in memory
        assert seed(RunSpec(model=GPT_SIZES["nano"], seed=number)) == number
        gc.collect(0)
    assert calls == list(range(50))
