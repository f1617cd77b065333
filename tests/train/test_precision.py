"""Precision as a switch."""

import pytest
import torch

from oelm.train.precision import autocast, scaler

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
