"""What several processes share. Real torchrun runs are in tests/runner."""

import torch

from oelm.train.device import World


def test_the_rows_of_all_processes_and_parts_are_the_batch_once_and_in_order():
    rows = [
        number
        for rank in range(3)
        for part in range(2)
        for number in range(12)[World(rank, 3, torch.device("cpu")).rows(12, part, 2)]
    ]
    assert rows == list(range(12))


def test_alone_everything_is_as_it_is():
    world = World(0, 1, torch.device("cpu"))
    assert world.leads
    assert world.any(flag=True)
    assert not world.any(flag=False)
    assert world.mean(torch.tensor(3.0)) == 3
