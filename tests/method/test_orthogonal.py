"""Head-wise orthogonal weights and the other draws."""

import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oelm.errors import BadShape, NotCarriedOut
from oelm.method.orthogonal import departure, draw, gaussian, orthonormal_rows
from oelm.spec.method import InitSpec
from oelm.spec.run import stream

ORTHOGONAL = [
    InitSpec(shape="orthogonal"),
    InitSpec(shape="orthogonal", scope="global"),
    InitSpec(shape="orthogonal", source="current"),
    InitSpec(shape="slice"),
    InitSpec(shape="hadamard"),
]


def draw_weight(init: InitSpec, shape=(4, 8, 32), seed=0, **more):
    current = gaussian(*shape, stream(99, "current"))
    return draw(init, shape, stream(seed, "test"), current_HKI=current, **more)


@pytest.mark.parametrize("init", ORTHOGONAL, ids=str)
@settings(max_examples=20, deadline=None)
@given(heads=st.integers(1, 4), size=st.integers(1, 12), seed=st.integers(0, 2**40))
def test_every_heads_gram_matrix_is_the_identity_in_float32(init, heads, size, seed):
    weight = draw_weight(init, (heads, size, 48), seed).float()
    gram = weight.double() @ weight.double().mT
    assert torch.allclose(gram, torch.eye(size, dtype=torch.float64).expand_as(gram), atol=1e-6, rtol=0)


@pytest.mark.parametrize("input_size", [24, 48, 96, 7, 1])
def test_hadamard_is_orthogonal_for_inputs_that_are_no_power_of_two(input_size):
    size = min(input_size, 5)
    assert departure(draw_weight(InitSpec(shape="hadamard"), (2, size, input_size))) < 1e-12


def test_hadamard_entries_are_flat_for_powers_of_two():
    weight = draw_weight(InitSpec(shape="hadamard"), (2, 8, 64))
    assert torch.allclose(weight.abs(), torch.full_like(weight, 1 / 8))


def test_global_heads_are_orthogonal_to_one_another_and_head_wise_ones_are_not():
    everywhere = draw_weight(InitSpec(shape="orthogonal", scope="global")).flatten(0, 1)
    by_head = draw_weight(InitSpec(shape="orthogonal")).flatten(0, 1)
    eye = torch.eye(32, dtype=torch.float64)
    assert torch.allclose(everywhere @ everywhere.T, eye, atol=1e-12)
    assert (by_head @ by_head.T - eye).abs().max() > 0.1


def test_the_draw_is_uniform_because_signs_come_from_r():
    # Haar measure has mean zero; LAPACK's own sign convention makes a 1 x 1 "rotation" always -1 or always +1.
    draws = torch.stack([draw_weight(InitSpec(shape="orthogonal"), (1, 1, 1), seed) for seed in range(200)])
    assert 60 < int((draws > 0).sum()) < 140


def test_entries_of_a_uniform_rotation_have_the_moments_of_haar_measure():
    size = 16
    weight = draw_weight(InitSpec(shape="orthogonal"), (2000, size, size))
    assert abs(float(weight[:, 0, 0].mean())) < 4 / math.sqrt(2000 * size)
    assert float((weight[:, 0, 0] ** 4).mean()) == pytest.approx(3 / (size * (size + 2)), rel=0.25)


def test_from_current_keeps_each_heads_row_space_and_drops_its_scale():
    current = gaussian(3, 4, 16, stream(1, "x")) * 7
    weight = orthonormal_rows(current)
    projector = weight.mT @ weight
    assert torch.allclose(current @ projector, current, atol=1e-10)
    assert departure(weight) < 1e-12


def test_a_head_with_orthonormal_rows_is_left_as_it_is():
    weight = draw_weight(InitSpec(shape="orthogonal"))
    assert torch.allclose(orthonormal_rows(weight), weight, atol=1e-12)


def test_a_random_head_from_current_keeps_the_row_space_but_not_the_rows():
    current = gaussian(3, 4, 16, stream(1, "x"))
    init = InitSpec(shape="normal", source="current", matched=True)
    weight = draw(init, (3, 4, 16), stream(0, "t"), current_HKI=current)
    frame = orthonormal_rows(current)
    assert torch.allclose(weight @ frame.mT @ frame, weight, atol=1e-10)
    assert departure(weight) > 0.05


def test_the_gaussian_has_the_deviation_asked_for():
    weight = draw_weight(InitSpec(shape="normal", deviation=0.02), (8, 64, 512))
    assert float(weight.std()) == pytest.approx(0.02, rel=0.01)


def test_a_matched_gaussian_has_the_norm_of_an_orthogonal_head():
    weight = draw_weight(InitSpec(shape="normal", matched=True), (3, 8, 32))
    assert torch.allclose(torch.linalg.matrix_norm(weight), torch.full((3,), math.sqrt(8), dtype=torch.float64))


def test_random_matched_and_orthogonal_start_from_the_same_gaussian():
    plain = draw_weight(InitSpec(shape="normal", deviation=1.0))
    matched = draw_weight(InitSpec(shape="normal", matched=True))
    ratio = matched / plain
    assert torch.allclose(ratio, ratio[:, :1, :1].expand_as(ratio))
    assert torch.allclose(draw_weight(InitSpec(shape="orthogonal")), orthonormal_rows(plain))


def test_slices_of_q_and_k_read_different_coordinates():
    q = draw_weight(InitSpec(shape="slice"))
    k = draw_weight(InitSpec(shape="slice"), first=8)
    assert set(q.abs().unique().tolist()) == {0.0, 1.0}
    assert not (q.abs().sum(1) * k.abs().sum(1)).any()


def test_gain_scales_the_draw_and_departure_knows_it():
    weight = draw_weight(InitSpec(shape="orthogonal", gain=2.0))
    assert departure(weight, gain=2.0) < 1e-12
    assert departure(weight) == pytest.approx(3.0)


def test_departure_sees_one_wrong_entry():
    weight = draw_weight(InitSpec(shape="orthogonal"))
    weight[2, 3, 5] += 1e-3
    assert departure(weight) > 1e-4


@pytest.mark.parametrize("init", [InitSpec(shape="orthogonal"), InitSpec(shape="slice"), InitSpec(shape="hadamard")])
def test_a_head_wider_than_its_input_is_refused(init):
    with pytest.raises(BadShape, match="input of size 8"):
        draw_weight(init, (2, 9, 8))


@settings(max_examples=30, deadline=None)
@given(b=st.floats(-1, 1), heads=st.integers(1, 4), size=st.integers(1, 12), gain=st.sampled_from([1.0, 3.0]))
def test_correlated_orthogonal_queries_stay_orthonormal_and_meet_their_keys_at_exactly_b(b, heads, size, gain):
    init = InitSpec(shape="orthogonal", correlation=b, gain=gain)
    keys = draw_weight(init, (heads, size, 24), seed=1)
    queries = draw_weight(init, (heads, size, 24), seed=2, keys_HKI=keys)
    assert departure(queries, gain) < 1e-12
    if b != 0:
        assert torch.allclose(queries @ keys.mT, gain**2 * b * torch.eye(size, dtype=torch.float64), atol=1e-11)


@pytest.mark.parametrize("b", [-0.7, 0.3, 0.9])
def test_correlated_gaussian_queries_keep_their_scale_and_correlate_by_b(b):
    shape = (8, 32, 256)
    matched = InitSpec(shape="normal", matched=True, correlation=b)
    keys = draw_weight(matched, shape, seed=1)
    queries = draw_weight(matched, shape, seed=2, keys_HKI=keys)
    assert torch.allclose(torch.linalg.matrix_norm(queries), torch.full((8,), math.sqrt(32), dtype=torch.float64))
    cosine = (queries * keys).sum((-2, -1)) / 32
    assert torch.allclose(cosine, torch.full_like(cosine, b), atol=0.05)
    loose = InitSpec(shape="normal", deviation=0.02, correlation=b)
    queries = draw_weight(loose, shape, seed=2, keys_HKI=draw_weight(loose, shape, seed=1))
    assert float(queries.std()) == pytest.approx(0.02, rel=0.02)


def test_no_correlation_is_the_draw_it_always_was():
    init = InitSpec(shape="orthogonal")
    assert torch.equal(draw_weight(init, keys_HKI=draw_weight(init, seed=1)), draw_weight(init))


def test_a_gain_scales_what_the_model_has():
    current = gaussian(4, 8, 32, stream(99, "current"))
    assert torch.equal(draw_weight(InitSpec(gain=3.0)), 3 * current)


def test_a_draw_from_what_is_there_needs_it():
    with pytest.raises(NotCarriedOut, match="none were given"):
        draw(InitSpec(gain=2.0), (1, 1, 2), stream(0, "x"))


_HASH = """
import sys, torch
torch.set_num_threads(int(sys.argv[1]))
from oelm.method.orthogonal import draw
from oelm.method.freeze import sha256
from oelm.spec.run import stream
from oelm.spec.method import InitSpec
inits = [InitSpec(shape="orthogonal"), InitSpec(shape="orthogonal", scope="global"), InitSpec(shape="hadamard"),
         InitSpec(shape="normal", matched=True)]
print([sha256(draw(init, (8, 64, 512), stream(7, "t")).float()) for init in inits], torch.get_num_threads())
"""


@pytest.mark.programs
def test_the_same_seed_gives_the_same_bytes_under_1_2_and_8_threads():
    outputs = {
        threads: subprocess.run(
            [sys.executable, "-c", _HASH, threads], capture_output=True, text=True, check=True
        ).stdout.rsplit(" ", 1)
        for threads in ("1", "2", "8")
    }
    assert {hashes for hashes, _ in outputs.values()} == {outputs["1"][0]}
    # The draw put the caller's thread count back.
    assert [count.strip() for _, count in outputs.values()] == ["1", "2", "8"]


def test_the_decomposition_runs_on_one_thread(monkeypatch):
    # Whether more threads change the last bits depends on the machine; that they are not used does not.
    seen = []
    decompose = torch.linalg.qr
    monkeypatch.setattr(torch.linalg, "qr", lambda x: (seen.append(torch.get_num_threads()), decompose(x))[1])
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        draw_weight(InitSpec(shape="orthogonal"))
        assert (seen, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(before)
