"""Weights from a package have the checksum of their name."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from oelm.errors import BadData, UsageError
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


@pytest.fixture
def converted(tmp_path, monkeypatch):
    """Pretend that a GGUF file was converted before."""
    monkeypatch.setattr(packaged.platformdirs, "user_cache_path", lambda _: tmp_path)
    folder = tmp_path / f"model-{'0' * 16}"
    folder.mkdir()
    (folder / packaged.WEIGHTS).write_bytes(b"weights")
    (folder / f"{packaged.WEIGHTS}.sha256").write_text(packaged.sha256_of(folder / packaged.WEIGHTS))
    return folder


def test_a_quantised_model_is_converted_once(converted):
    assert packaged._find_converted(Path("model.gguf"), "0" * 64) == converted


def test_a_converted_model_that_has_changed_is_refused(converted):
    (converted / packaged.WEIGHTS).write_bytes(b"other weights")
    with pytest.raises(BadData, match="Delete the folder to convert again"):
        packaged._find_converted(Path("model.gguf"), "0" * 64)


def test_reading_a_quantised_model_without_its_reader_names_the_package(converted, monkeypatch):
    monkeypatch.setattr(packaged.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match="pip install gguf"):
        packaged._find_converted(Path("another.gguf"), "0" * 64)
