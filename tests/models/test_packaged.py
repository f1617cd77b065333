"""Weights from a package have the checksum of their name."""

from types import SimpleNamespace

import pytest

from oelm.errors import BadData
from oelm.models import build as packaged


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Pretend that a package with other weights is installed."""
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"other weights")
    files = [SimpleNamespace(name=weights.name, locate=lambda: weights)]
    monkeypatch.setattr(packaged.importlib.metadata, "files", lambda _: files)
    packaged.package_directory.cache_clear()
    yield weights
    packaged.package_directory.cache_clear()


def test_other_weights_under_the_name_of_a_package_are_refused(installed):
    with pytest.raises(BadData, match=rf"{installed} has the sha256 [0-9a-f]+, but 'minilm' has"):
        packaged.package_directory("minilm")


def test_a_package_without_weights_is_as_good_as_none(installed):
    installed.unlink()
    assert packaged.package_directory("minilm") is None
    assert packaged.packaged_location("minilm") == packaged.PACKAGES["minilm"].hub
