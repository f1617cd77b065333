"""Blocks that are kept: fewer page faults for the same work."""

import subprocess
import sys

import pytest

from oelm.train.device import keep_large_blocks

COUNT = """
import resource, sys, torch
from oelm.train.device import keep_large_blocks
torch.set_num_threads(1)
if sys.argv[1] == "keep":
    assert keep_large_blocks()
torch.ones(2**24)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    torch.ones(2**24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(mode):
    return int(subprocess.run([sys.executable, "-c", COUNT, mode], capture_output=True, text=True, check=True).stdout)


def test_large_tensors_made_again_and_again_cost_fewer_new_pages():
    if not keep_large_blocks():
        pytest.skip("the C library is not glibc")
    # Not none: glibc before 2.38 often cannot give an aligned block back into the place it came from.
    assert faults("keep") < faults("as it is")
