"""A linear map that only reads coordinates.

Rows that are signed unit vectors of consecutive coordinates need no matrix product, forward or backward: the
output is the input turned round by some places and multiplied by signs. The dense weight stays as the parameter,
frozen, so that counting, hashing, saving and exporting see an ordinary linear layer.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class SlicedLinear(nn.Linear):
    """An `nn.Linear` without bias whose frozen rows read consecutive coordinates, round the end, with signs."""

    places: Tensor

    def __init__(self, dense: nn.Linear) -> None:
        super().__init__(dense.in_features, dense.out_features, bias=False, device="meta")
        self.weight = dense.weight
        columns = self.weight.detach().abs().argmax(dim=1)
        self.first = int(columns[0])
        places = (self.first + torch.arange(dense.out_features, device=columns.device)) % dense.in_features
        if not torch.equal(columns, places) or int(self.weight.count_nonzero()) != dense.out_features:
            raise ValueError("the rows are not signed unit vectors of consecutive coordinates")
        self.register_buffer("places", places, persistent=False)
        self.has_trained = False

    def forward(self, x: Tensor) -> Tensor:
        """Read the coordinates; once the weight has trained it is no slice any more, frozen again or not."""
        if self.weight.requires_grad:
            self.has_trained = True
        if self.has_trained:
            return super().forward(x)
        # Read from the weight each time, so that weights loaded later are the ones that count.
        signs = self.weight.gather(1, self.places[:, None])[:, 0].to(x.dtype)
        if self.out_features == self.in_features:
            return torch.roll(x, -self.first, dims=-1) * signs
        if self.first + self.out_features <= self.in_features:
            return x.narrow(-1, self.first, self.out_features) * signs
        return x[..., self.places] * signs
