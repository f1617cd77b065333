"""Precision as a switch."""

import pytest
import torch

from oelm.train.device import allow_tf32, autocast, resolve_precision, scaler

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_products_run_in_the_type_asked_for(precision, dtype):
    with autocast(CPU, precision):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype


def test_only_fp16_scales_its_gradients():
    assert [scaler(CPU, precision).is_enabled() for precision in ("fp32", "bf16", "fp16")] == [
        False,
        False,
        True,
    ]


@pytest.mark.parametrize(("native", "expected"), [(True, "bf16"), (False, "fp32")])
def test_auto_is_bf16_where_the_cpu_has_it_and_fp32_elsewhere(monkeypatch, native, expected):
    monkeypatch.setattr("torch.cpu._is_avx512_bf16_supported", lambda: native)
    monkeypatch.setattr("torch.cpu._is_amx_tile_supported", lambda: False)
    assert resolve_precision("cpu", "auto") == expected
    with autocast(CPU, "auto"):
        assert torch.is_autocast_enabled("cpu") is native
    assert [resolve_precision("cpu", asked) for asked in ("fp32", "bf16", "fp16")] == ["fp32", "bf16", "fp16"]


@pytest.mark.parametrize(
    ("visible", "native", "expected"), [(True, True, "bf16"), (True, False, "fp32"), (False, False, "bf16")]
)
def test_auto_asks_the_gpu_if_one_is_visible(monkeypatch, visible, native, expected):
    monkeypatch.setattr("torch.cuda.is_available", lambda: visible)
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda including_emulation: native and not including_emulation)
    assert resolve_precision("cuda", "auto") == expected


@pytest.mark.parametrize(
    ("device", "allowed", "expected"), [("cuda", True, ["high"]), ("cuda", False, ["highest"]), ("cpu", True, [])]
)
def test_tf32_is_a_matter_of_gpus(monkeypatch, device, allowed, expected):
    asked = []
    monkeypatch.setattr("torch.set_float32_matmul_precision", asked.append)
    allow_tf32(torch.device(device), allowed=allowed)
    assert asked == expected
