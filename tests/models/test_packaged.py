"""Weights from a package are those that their name stands for."""

from types import SimpleNamespace

import pytest

from oelm.errors import BadData
from oelm.models import packaged


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Stand in for an installed package whose weights are other ones."""
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"other weights")
    files = [SimpleNamespace(name=weights.name, locate=lambda: weights)]
    monkeypatch.setattr(packaged.importlib.metadata, "files", lambda _: files)
    packaged.package_directory.cache_clear()
    yield weights
    packaged.package_directory.cache_clear()


def test_other_weights_under_the_name_of_a_package_are_refused(installed):
    with pytest.raises(BadData, match=rf"{installed} was to be 'minilm', but its sha256 is [0-9a-f]+"):
        packaged.package_directory("minilm")


def test_a_package_without_weights_is_as_good_as_none(installed):
    installed.unlink()
    assert packaged.package_directory("minilm") is None
    assert packaged.place_of("minilm") == packaged.PACKAGES["minilm"].hub
