"""Methods by name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oelm.errors import InvalidSpec, UnknownName
from oelm.spec.method import METHOD_FORMS, METHODS, PARTS, Change, ScheduleSpec, add_parts, named_method

ISSUE_NAMES = [
    "baseline",
    "oelm-freeze",
    "oelm-random",
    "oelm-random-matched",
    "oelm-global",
    "oelm-from-current",
    "orthogonal-trained",
    "orthogonal-from-current-trained",
    "random-trained",
    "oelm-q-only",
    "oelm-qk-ffn",
    "oelm-slice",
    "oelm-hadamard",
    "uniform",
    "oelm-shift",
    "baseline-shift",
    "oelm-core",
    "oelm-core-diagonal",
    "oelm-diagonal",
    "oelm-temperature",
    "oelm-qk-norm",
    "oelm-bias",
    "oelm-mix",
    "oelm-low-rank",
    "oelm-correlated",
    "baseline-core",
    "baseline-diagonal",
    "baseline-temperature",
    "baseline-qk-norm",
    "baseline-bias",
    "baseline-mix",
]


@pytest.mark.parametrize("name", ISSUE_NAMES)
def test_the_named_methods_exist(name):
    assert named_method(name) == METHODS[name]


def test_no_two_names_mean_the_same():
    meanings = [str(method.meaning()) for method in METHODS.values()]
    assert len(set(meanings)) == len(meanings)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("oelm-every:x", "oelm-every:N"),
        ("oelm-every:1", "oelm-every:N"),
        ("oelm-partial:", "oelm-partial:LAYERS"),
        ("oelm-every:0", r"e.g. oelm-every:10 \(every: Input should be greater than or equal to 2, found 0\)\.$"),
        ("oelm-progressive:0.5", "START-STOP"),
        ("oelm-progressive:0.8-0.2", "runs forward"),
        ("train-then-freeze:0.3:host", "is not 'orthogonal'"),
        ("train-then-freeze:1.5", "train-then-freeze:FRACTION"),
        ("train-then-freeze:30", "30 is not a fraction"),
        ("oelm-progressive:20-80", "20 is not a fraction"),
        ("unfreeze-late:soon", "unfreeze-late:FRACTION"),
        ("oelm+mix=2", "takes no value"),
        ("oelm+gain", "needs a value"),
        ("oelm-core+core", "is there twice"),
        ("baseline+features=0", "has no effect; leave it out"),
        ("oelm+low-rank=0", "has no effect; leave it out"),
        ("oelm+low-rank=x", "valid integer"),
        ("oelm+shift=2", "less than or equal to 1"),
        ("oelm+qk-norm+temperature", "trained factor per head already"),
        ("uniform+core", "leaves no Q or K"),
        ("oelm-progressive:0.2-0.8:up", "is not 'first' or 'last'"),
    ],
)
def test_a_parametrised_name_that_is_wrong_shows_its_form_and_never_how_it_was_checked(name, words):
    with pytest.raises(InvalidSpec, match=words) as caught:
        named_method(name)
    assert "validation error" not in str(caught.value)


parts = st.lists(st.sampled_from([name for name, (_, _, default) in PARTS.items() if default]), min_size=1, unique=True)


@given(parts, st.randoms())
def test_parts_can_be_added_in_any_order_and_the_method_is_the_same(chosen, random):
    shuffled = random.sample(chosen, len(chosen))
    try:
        method = add_parts(METHODS["oelm-freeze"], *chosen)
    except ValueError:
        with pytest.raises(ValueError, match="."):
            add_parts(METHODS["oelm-freeze"], *shuffled)
        return
    assert add_parts(METHODS["oelm-freeze"], *shuffled) == method
    assert named_method("+".join(["oelm", *shuffled])) == method


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("oelm+low-rank=8", "repair.low_rank", 8),
        ("baseline+shift=0.25", "repair.key_shift", 0.25),
        ("baseline+gain=3", "init.gain", 3.0),
        ("oelm+correlated=-0.5", "init.correlation", -0.5),
        ("oelm+layer-rates=0.8", "rates.layer_decay", 0.8),
        ("oelm-partial:-1+bias", "repair.position_bias", True),
    ],
)
def test_a_part_sets_its_field_and_leaves_the_method_otherwise_alone(name, field, value):
    section, inner = field.split(".")
    base, _, _ = name.partition("+")
    method = named_method(name)
    plain = named_method("oelm-freeze" if base == "oelm" else base)
    assert getattr(getattr(method, section), inner) == value
    assert method.model_copy(update={section: getattr(plain, section)}) == plain


def test_an_unknown_part_suggests_the_nearest():
    with pytest.raises(UnknownName, match="Did you mean 'core'"):
        named_method("oelm+cor")


def test_train_then_freeze_starts_from_the_weights_of_the_baseline_by_default():
    host, orthogonal = (named_method(f"train-then-freeze:0.3{way}") for way in ("", ":orthogonal"))
    assert host.init == METHODS["baseline"].init
    assert orthogonal.init == METHODS["oelm-freeze"].init
    assert host.schedule == orthogonal.schedule == ScheduleSpec(changes=(Change(action="freeze", at=0.3),))


def test_an_unknown_name_suggests_the_nearest_also_with_a_parameter():
    with pytest.raises(UnknownName, match="Did you mean 'oelm-global'"):
        named_method("oelm-globl")
    for form in METHOD_FORMS:
        with pytest.raises(UnknownName, match=rf"Did you mean '{form}:0\.5'"):
            named_method(f"{form[:-3]}{form[-2:]}:0.5")
