"""What may be asked of Slurm."""

import pytest
from pydantic import ValidationError

from oelm.spec.slurm import SlurmSpec


@pytest.mark.parametrize("bad", [{"time": 4}, {"memory": 0}, {"memory": -1}, {"partitions": "gpu"}])
def test_what_no_cluster_could_grant_is_refused(bad):
    with pytest.raises(ValidationError):
        SlurmSpec(**bad)
