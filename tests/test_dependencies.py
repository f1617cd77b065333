"""The licences of what we depend on: nothing that would bind a user of this project."""

from __future__ import annotations

import importlib.metadata
import re

from packaging.requirements import Requirement

NOTED = {
    "certifi": "MPL",
    "chardet": "LGPL",
    "fqdn": "MPL",
    "hypothesis": "MPL",
    "orjson": "MPL",
    "pathspec": "MPL",
    "pytest-rerunfailures": "MPL",
    "tqdm": "MPL",
}
"""Packages under a weak copyleft licence, which binds changes to them and not their users."""
COPYLEFT = re.compile(r"\b(A?L?GPL|GNU|MPL|Mozilla|EUPL|SSPL|CDDL)", re.IGNORECASE)
STRONG = re.compile(r"(?<!L)(?<!Lesser )\b(A?GPL|GNU (Affero )?General|SSPL|EUPL)", re.IGNORECASE)


def installed_dependencies() -> dict[str, importlib.metadata.Distribution]:
    """Return what an installation of this project brings along, with all extras that are installed here."""
    found: dict[str, importlib.metadata.Distribution] = {}
    waiting = ["oelm"]
    while waiting:
        for line in importlib.metadata.distribution(waiting.pop()).requires or ():
            requirement = Requirement(line)
            name = requirement.name.lower().replace("_", "-")
            extras = requirement.marker is not None and "extra" in str(requirement.marker)
            if name in found or (extras and found and waiting == [] and name == "oelm"):
                continue
            try:
                found[name] = importlib.metadata.distribution(name)
            except importlib.metadata.PackageNotFoundError:
                continue  # of an extra that is not installed, or for another system
            waiting.append(name)
    return found


def licence_of(package: importlib.metadata.Distribution) -> str:
    meta = package.metadata
    classifiers = [line for line in meta.get_all("Classifier") or () if line.startswith("License")]
    plain = (meta.get("License") or "").strip().split("\n")[0][:100]
    return "; ".join(filter(None, [meta.get("License-Expression"), plain, *classifiers]))


def test_no_dependency_has_a_licence_that_binds_our_users():
    found = {name: licence_of(package) for name, package in installed_dependencies().items()}
    assert len(found) > 30
    strong = {name: text for name, text in found.items() if STRONG.search(text) and " OR " not in text}
    assert not strong
    weak = {name for name, text in found.items() if COPYLEFT.search(text)}
    assert weak <= set(NOTED) | {name for name in weak if " OR " in found[name]}, {name: found[name] for name in weak}
