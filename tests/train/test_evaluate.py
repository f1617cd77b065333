"""The loss of a split."""

import pytest
import torch
from torch import nn

from oelm.train.loop import mean_loss


class Constant(nn.Module):
    def forward(self, ids, targets):
        assert not self.training
        return targets.float().mean()


def test_batches_count_by_their_tokens_and_the_mode_is_put_back():
    batches = [(torch.zeros(2, 3), torch.full((2, 3), 1.0)), (torch.zeros(1, 2), torch.full((1, 2), 5.0))]
    model = Constant().train()
    assert mean_loss(model, batches, torch.device("cpu")) == pytest.approx((6 * 1 + 2 * 5) / 8)
    assert model.training
