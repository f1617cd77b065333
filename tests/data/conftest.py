"""Fixtures of the tests of data: real text and tokenizers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from oelm.data.tokenizer import Tokenizer, gpt2_tokenizer


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of real data next to the project. It is not part of the project, so it may be absent."""
    root = Path(os.environ.get("OELM_SHARED", Path(__file__).parents[3] / "shared")) / "data"
    if not root.is_dir():
        pytest.skip(f"no real data at {root}; OELM_SHARED names another place")
    return root


@pytest.fixture(scope="session")
def gpt2() -> Tokenizer:
    return gpt2_tokenizer()
