"""The method as a value."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from oelm.errors import InvalidSpec, UnknownName
from oelm.spec.method import (
    FORMS,
    METHODS,
    PARTS,
    Change,
    FreezeSpec,
    InitSpec,
    MethodSpec,
    ScheduleSpec,
    Sweep,
    composed,
    named_method,
)
from oelm.spec.repair import RepairSpec

ISSUE_NAMES = [
    "baseline",
    "oelm-freeze",
    "oelm-random",
    "oelm-random-matched",
    "oelm-global",
    "oelm-from-current",
    "orthogonal-trained",
    "orthogonal-from-current-trained",
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

inits = st.sampled_from([method.init for method in METHODS.values()])
freezes = st.builds(
    FreezeSpec,
    roles=st.lists(st.sampled_from(["q", "k", "v", "o", "ffn"]), unique=True).map(tuple),
    layers=st.none() | st.lists(st.integers(-3, 3), max_size=3).map(tuple),
    biases=st.booleans(),
)
moments = st.integers(0, 1000) | st.floats(0, 1)
changes = st.builds(Change, action=st.sampled_from(["freeze", "unfreeze"]), at=moments)
repairs = st.builds(RepairSpec, key_shift=st.floats(0, 1), temperature=st.booleans(), low_rank=st.integers(0, 4))


@given(inits, freezes, st.lists(changes, max_size=2), repairs, st.none() | st.integers(2, 50))
def test_every_valid_method_survives_the_round_trip_through_json(init, freeze, changes, repair, every):
    try:
        method = MethodSpec(
            init=init,
            freeze=freeze,
            repair=repair,
            schedule=ScheduleSpec(changes=tuple(changes), every=every),
        )
    except ValidationError:
        return
    again = MethodSpec.model_validate_json(method.model_dump_json())
    assert again == method
    assert again.meaning() == method.meaning()


@pytest.mark.parametrize("name", ISSUE_NAMES)
def test_the_named_methods_exist(name):
    assert named_method(name) == METHODS[name]


def test_no_two_names_mean_the_same():
    meanings = [str(method.meaning()) for method in METHODS.values()]
    assert len(set(meanings)) == len(meanings)


def test_a_moment_written_as_an_integer_is_a_step_and_as_a_float_a_fraction():
    one = Change(action="freeze", at=1)
    whole = Change.model_validate_json(Change(action="freeze", at=1.0).model_dump_json())
    assert isinstance(one.at, int)
    assert isinstance(whole.at, float)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("oelm-every:x", "oelm-every:N"),
        ("oelm-every:1", "oelm-every:N"),
        ("oelm-partial:", "oelm-partial:LAYERS"),
        ("oelm-progressive:0.5", "START-STOP"),
        ("oelm-progressive:0.8-0.2", "runs forward"),
        ("train-then-freeze:0.3:host", "is not 'orthogonal'"),
        ("train-then-freeze:1.5", "train-then-freeze:FRACTION"),
        ("unfreeze-late:soon", "unfreeze-late:FRACTION"),
        ("oelm+mix=2", "takes no value"),
        ("oelm+gain", "needs a value"),
        ("oelm-core+core", "stands twice"),
        ("oelm+low-rank=x", "valid integer"),
        ("oelm+shift=2", "less than or equal to 1"),
        ("oelm+qk-norm+temperature", "trained factor per head already"),
        ("uniform+core", "leaves no Q or K"),
        ("oelm-progressive:0.2-0.8:up", "is not 'first' or 'last'"),
    ],
)
def test_a_parametrised_name_that_is_wrong_shows_its_form(name, words):
    with pytest.raises(InvalidSpec, match=words):
        named_method(name)


parts = st.lists(st.sampled_from([name for name, (_, _, default) in PARTS.items() if default]), min_size=1, unique=True)


@given(parts, st.randoms())
def test_parts_can_be_added_in_any_order_and_the_method_is_the_same(chosen, random):
    shuffled = random.sample(chosen, len(chosen))
    try:
        method = composed(METHODS["oelm-freeze"], *chosen)
    except ValueError:
        with pytest.raises(ValueError, match="."):
            composed(METHODS["oelm-freeze"], *shuffled)
        return
    assert composed(METHODS["oelm-freeze"], *shuffled) == method
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


def test_train_then_freeze_starts_where_the_baseline_does_unless_told():
    host, orthogonal = (named_method(f"train-then-freeze:0.3{way}") for way in ("", ":orthogonal"))
    assert host.init == METHODS["baseline"].init
    assert orthogonal.init == METHODS["oelm-freeze"].init
    assert host.schedule == orthogonal.schedule == ScheduleSpec(changes=(Change(action="freeze", at=0.3),))


def test_an_unknown_name_suggests_the_nearest_and_shows_the_forms():
    with pytest.raises(UnknownName, match="Did you mean 'oelm-global'") as caught:
        named_method("oelm-globl")
    assert all(form in str(caught.value) for form in FORMS)


@pytest.mark.parametrize(
    "build",
    [
        lambda: InitSpec(shape="normal"),
        lambda: InitSpec(shape="normal", matched=True, deviation=0.1),
        lambda: InitSpec(shape="orthogonal", matched=True),
        lambda: InitSpec(shape="slice", source="current"),
        lambda: InitSpec(shape="hadamard", scope="global"),
        lambda: InitSpec(shape="absent", gain=2.0),
        lambda: InitSpec(shape="host", correlation=0.5),
        lambda: InitSpec(shape="slice", correlation=0.5),
        lambda: InitSpec(shape="orthogonal", scope="global", correlation=0.5),
        lambda: InitSpec(shape="orthogonal", source="current", correlation=0.5),
        lambda: InitSpec(shape="orthogonal", gain=float("nan")),
        lambda: FreezeSpec(roles=("q", "q")),
        lambda: FreezeSpec(roles=("w",)),
        lambda: Sweep(action="freeze", start=1, stop=0.5),
        lambda: Change(action="freeze", at=1.5),
        lambda: ScheduleSpec(every=1),
        lambda: MethodSpec(schedule=ScheduleSpec(every=2)),
        lambda: MethodSpec(init=InitSpec(shape="absent"), freeze=FreezeSpec(roles=("q",))),
        lambda: MethodSpec(init=InitSpec(shape="absent"), repair=RepairSpec(temperature=True)),
        lambda: MethodSpec(init=InitSpec(gain=2.0), repair=RepairSpec(qk_norm=True)),
        lambda: MethodSpec(freezing=FreezeSpec()),
    ],
)
def test_a_method_that_means_nothing_cannot_exist(build):
    with pytest.raises(ValidationError):
        build()


def test_specs_cannot_be_changed():
    with pytest.raises(ValidationError, match="frozen"):
        METHODS["baseline"].sites = ("self",)


def test_a_schedule_in_steps_and_fractions_is_refused_because_nobody_knows_which_comes_first():
    later = Change(action="freeze", at=500)
    with pytest.raises(ValidationError, match="which is first depends on how long training is"):
        ScheduleSpec(changes=(Change(action="unfreeze", at=0.1), later))
    assert ScheduleSpec(changes=(Change(action="unfreeze", at=0), later)).changes[1] == later
    assert ScheduleSpec(changes=(Change(action="unfreeze", at=0), Change(action="freeze", at=0.5))).moves
