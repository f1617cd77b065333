"""GPUs by a stand-in for NVML: busy, freed, hidden. The real library is asked by the same names."""
# ruff: noqa: N802  (the names are NVML's)

from types import SimpleNamespace

import pytest

from oelm.errors import UsageError
from oelm.runs.local import Gpus

GIB = 2**30


class FakeNvml:
    """A machine with some GPUs, each (memory used in GiB, utilisation, pids)."""

    class NVMLError(Exception):
        pass

    def __init__(self, *gpus, driver=True):
        self.gpus, self.driver = list(gpus), driver

    def nvmlInit(self):
        if not self.driver:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlDeviceGetCount(self):
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetMemoryInfo(self, index):
        return SimpleNamespace(used=self.gpus[index][0] * GIB, total=24 * GIB)

    def nvmlDeviceGetUtilizationRates(self, index):
        return SimpleNamespace(gpu=self.gpus[index][1])

    def nvmlDeviceGetUUID(self, index):
        return f"GPU-{index}{index}{index}{index}-abcd".encode()  # older bindings give bytes

    def nvmlDeviceGetName(self, index):
        return "NVIDIA RTX A5000"

    def nvmlDeviceGetComputeRunningProcesses(self, index):
        return [SimpleNamespace(pid=pid) for pid in self.gpus[index][2]]


IDLE, BUSY, FULL = (0.3, 0, ()), (0.5, 95, (1,)), (11, 0, (1,))


def uuids(gpus):
    return [gpu.uuid[4:8] for gpu in gpus]


def test_what_others_compute_on_or_fill_is_not_free_and_what_is_ours_is_not_taken_twice():
    gpus = Gpus(FakeNvml(IDLE, BUSY, FULL, IDLE), {})
    assert uuids(gpus.free(())) == ["0000", "3333"]
    assert uuids(gpus.free({"GPU-0000-abcd"})) == ["3333"]


def test_a_gpu_that_its_user_leaves_becomes_free():
    nvml = FakeNvml(FULL)
    gpus = Gpus(nvml, {})
    assert gpus.free(()) == []
    assert "11.0 GiB" in gpus.visible()[0].occupation
    assert "process 1" in gpus.visible()[0].occupation
    nvml.gpus[0] = IDLE
    assert uuids(gpus.free(())) == ["0000"]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("2,0", ["2222", "0000"]),
        (" 1 ", ["1111"]),
        ("GPU-3333,GPU-0", ["3333", "0000"]),
        ("1,7,0", ["1111"]),  # what follows an invalid entry is not seen, as in CUDA
        ("1,1", ["1111"]),
        ("GPU-", []),  # means four of them
    ],
)
def test_cuda_visible_devices_is_respected_by_number_and_by_uuid(visible, expected):
    machine = FakeNvml(IDLE, IDLE, IDLE, IDLE)
    if expected:
        assert uuids(Gpus(machine, {"CUDA_VISIBLE_DEVICES": visible}).visible()) == expected
    else:
        with pytest.raises(UsageError, match="allows no GPU"):
            Gpus(machine, {"CUDA_VISIBLE_DEVICES": visible})


def test_an_empty_list_and_a_missing_driver_are_told_in_words():
    with pytest.raises(UsageError, match="allows no GPU"):
        Gpus(FakeNvml(IDLE), {"CUDA_VISIBLE_DEVICES": ""})
    with pytest.raises(UsageError, match="Driver Not Loaded"):
        Gpus(FakeNvml(driver=False), {})


def test_the_real_library_has_the_functions_that_are_asked():
    import pynvml

    wanted = [name for name in vars(FakeNvml) if name.startswith("nvml")]
    assert all(callable(getattr(pynvml, name)) for name in wanted)
    assert issubclass(pynvml.NVMLError, Exception)
