"""A second test split that is sealed: read once, by one study, when everything else is done.

`oelm prepare --seal` sets the documents of `sealed.bin` aside. Training, `oelm evaluate` and every other verb refuse
the file. `oelm report --unseal` first writes `sealed.opened.json` next to it, whole and once: which study opened it,
when, and the hash of every weight that it will score. A process that finds this file may only finish that opening.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from oelm.data.meta import META, SplitMeta, read_meta
from oelm.errors import BadData, Sealed
from oelm.files import sha256_of, write_once
from oelm.spec.base import Spec

if TYPE_CHECKING:
    from oelm.data.tokens import TokenData

SEALED_FILE, OPENED = "sealed.bin", "sealed.opened.json"


class Opening(Spec):
    """The content of `sealed.opened.json`."""

    schema_version: int = 1
    study: str
    digest: str
    """Of the study as registered."""
    opened: str
    """When, in UTC."""
    commit: str | None
    sha256: str
    """Of the sealed file."""
    weights: dict[str, str]
    """Fingerprint of a run -> sha256 of the final weights that are scored."""

    def is_same_as(self, other: Opening) -> bool:
        """Whether both are of one study with the same weights, whenever and from whichever commit."""
        moment = {"opened": "", "commit": None}
        return self.model_copy(update=moment) == other.model_copy(update=moment)


def refuse_sealed(path: Path) -> None:
    """Raise Sealed if a path names a sealed file."""
    if path.name == SEALED_FILE:
        raise Sealed(
            f"{path} is sealed: no run may read it. `oelm report STUDY --unseal` scores a finished study on it, once."
        )


def sealed_split(directory: Path) -> SplitMeta:
    """Return what is stated of the sealed split in a data folder, after checking that the file is whole.

    Raises:
        Sealed: the data have no sealed split.
        BadData: the file is not the one that was prepared.

    """
    meta = read_meta(directory)
    if meta is None or meta.sealed is None:
        raise Sealed(
            f"{directory} has no sealed split. Prepare the corpus with `oelm prepare ... --seal 0.05` into a folder of "
            "its own, and run a new study on it: what has been trained on cannot be sealed afterwards."
        )
    path = directory / SEALED_FILE
    if not path.is_file() or sha256_of(path) != meta.sealed.sha256:
        raise BadData(f"{path} is missing, or not the file that {META} describes. Restore it.")
    return meta.sealed


def read_opening(directory: Path) -> Opening | None:
    """Read who has opened the sealed split of a folder; None: it is sealed."""
    path = directory / OPENED
    try:
        return Opening.model_validate(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, ValidationError) as error:
        raise Sealed(f"{path} says that the split was opened, but cannot be read ({error}). Restore it.") from error


def refuse_opened(directory: Path, wanted: Opening) -> Opening | None:
    """Return the opening that may be finished, None where the split is sealed; raise Sealed for any other opening."""
    found = read_opening(directory)
    if found is None or found.is_same_as(wanted):
        return found
    whose = "this study, with other weights or another declaration" if found.study == wanted.study else found.study
    raise Sealed(
        f"the sealed split in {directory} was opened by {whose} on {found.opened[:10]}, and it is opened once. Prepare "
        "new data with --seal for a new study."
    )


def open_seal(directory: Path, wanted: Opening) -> Opening:
    """Write down that a sealed split is opened, before it is read; return the opening that counts.

    Several processes may try at once: one opens it, the others are refused, unless they are of the same study.
    """
    try:
        write_once(directory / OPENED, wanted.model_dump_json(indent=1) + "\n")
    except OSError as error:
        raise Sealed(
            f"the opening is written to {directory / OPENED} first, which cannot be written ({error.strerror}). "
            "Get write access to the data folder."
        ) from error
    return refuse_opened(directory, wanted) or wanted


def with_sealed_as_test(tokens: TokenData, opening: Opening) -> TokenData:
    """Return token data whose test split is the sealed one, for who has opened it."""
    if read_opening(tokens.directory) != opening:
        raise Sealed(f"{tokens.directory / SEALED_FILE} has not been opened.")
    return replace(tokens, files={**tokens.files, "test": tokens.directory / SEALED_FILE})
