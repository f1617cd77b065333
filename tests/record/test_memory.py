"""The peak of a process's memory: its own, not that of whoever started it."""

import resource
import subprocess
import sys

import pytest

from oelm.train.device import peak_resident_bytes

MIB = 2**20
CHILD = "from oelm.train.device import peak_resident_bytes; {first}; print(peak_resident_bytes())"
PARENT = """
import subprocess, sys
held = bytearray(600 * 2**20)
print(subprocess.run([sys.executable, "-c", sys.argv[1]], capture_output=True, text=True, check=True).stdout)
"""


def peak_of(first="pass"):
    """Start a small process from a large one, as a runner does; return the peak that the small one tells."""
    words = [sys.executable, "-c", PARENT, CHILD.format(first=first)]
    return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is ru_maxrss alone")
def test_a_process_does_not_begin_with_the_peak_of_its_parent():
    assert peak_of() < 500 * MIB  # importing torch takes about half of it


def test_the_peak_stays_when_the_memory_is_given_back():
    assert peak_of("held = bytearray(250 * 2**20); del held") > 250 * MIB


def test_where_the_kernel_does_not_tell_the_next_best_is_taken(tmp_path):
    (tmp_path / "status").write_text("Name:\tpython\n")
    for missing in (tmp_path / "status", tmp_path / "nothing"):
        told = peak_resident_bytes(missing)
        assert told / (1 if sys.platform == "darwin" else 1024) == resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
