"""Every setting of a published run with the source of its value: a report, a command, the public code, or none.

The values are those of the run itself, so they are never written twice. `published.json` says where each comes from,
and a test refuses a setting without a source. `settings_page` writes docs/published-settings.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from oelm.errors import UnknownName
from oelm.published.claims import SettingBasis, SettingSource, published, published_run
from oelm.spec.model import GPTSpec
from oelm.spec.run import RunSpec
from oelm.spec.value import Spec

NAMES = frozenset({"arm", "label", "scores_test"})
"""Fields of a run that are not settings: its names, and whether it is scored."""

BASES: dict[SettingBasis, str] = {
    "report": "a report states it",
    "command": "the launch command sets it",
    "code": "the public code has it",
    "library": "the default of a library",
    "ours": "only this program has it",
    "assumed": "assumed",
}


@dataclass(frozen=True)
class PublishedSetting:
    """One setting of a run, with the source of its value."""

    field: str
    value: str
    basis: SettingBasis
    where: str
    differs: str | None


def published_settings(run: RunSpec) -> tuple[PublishedSetting, ...]:
    """Return every setting of a run that is labelled as a published one; nothing for other runs.

    Raises:
        UnknownName: a setting has no source.

    """
    known = published_run(run)
    if known is None:
        return ()
    found = []
    for field, value in setting_values(run):
        source = _source(field, known.id)
        found.append(PublishedSetting(field, value, source.basis, source.where, source.differs))
    return tuple(found)


def setting_values(run: RunSpec) -> Iterator[tuple[str, str]]:
    """Yield the name and value of each setting, defaults included: `train.steps`, `method.init`, `seed`."""
    for name in type(run).model_fields:
        value = getattr(run, name)
        if isinstance(value, Spec):
            for inner in type(value).model_fields:
                if inner == "kind":  # it only says which class of spec this is
                    continue
                yield f"{name}.{inner}", _format(getattr(value, inner))
        elif name not in NAMES:
            yield name, _format(value)


def _format(value: object) -> str:
    if isinstance(value, Spec):
        changed = [f"{name}={_format(inner)}" for name, inner in value.meaning().items()]
        return ", ".join(changed) or "default"
    if isinstance(value, list | tuple):
        return " ".join(map(_format, value)) or "none"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _source(field: str, run: str) -> SettingSource:
    matching = [
        source
        for source in published().settings
        if field in source.fields and any(fnmatchcase(run, pattern) for pattern in source.runs)
    ]
    if not matching:
        raise UnknownName(
            f"source of {run}'s setting", field, {name for each in published().settings for name in each.fields}
        )
    return matching[-1]


def settings_page(runs: Sequence[RunSpec]) -> str:
    """Return docs/published-settings.md: every setting of every published run, in a table for each family."""
    sources = "; ".join(f"*{basis}* ({text})" for basis, text in BASES.items())
    lines = [
        "# The settings of the published runs",
        "",
        "Every setting of `studies/published.py`, where its value comes from, and what the public code or a report",
        "says instead. The file is generated from the study and from `src/oelm/published/published.json`; a test keeps",
        "it current. `oelm plan studies/published.py --only XNLI-02 --settings` prints the same for one run.",
        "",
        f"Sources: {sources}.",
    ]
    for title, is_gpt in (("GPT", True), ("BERT", False)):
        members = [run for run in runs if isinstance(run.model, GPTSpec) == is_gpt]
        lines += ["", f"## {title}", "", *_family_table(members)]
    return "\n".join(lines) + "\n"


def _family_table(runs: Sequence[RunSpec]) -> Iterator[str]:
    yield "| setting | runs | value here | source | differs |"
    yield "| --- | --- | --- | --- | --- |"
    for setting, whose in group_settings(runs):
        cells = (f"`{setting.field}`", whose, setting.value, f"*{setting.basis}*: {setting.where}", setting.differs)
        yield f"| {' | '.join((cell or '').replace('|', ',') for cell in cells)} |"


def group_settings(runs: Sequence[RunSpec]) -> Iterator[tuple[PublishedSetting, str]]:
    """Yield each setting of some published runs of one family, once for all runs that agree in value and source."""
    settings = {run.label or "": published_settings(run) for run in runs}
    for of_field in zip(*settings.values(), strict=True):
        groups: dict[PublishedSetting, list[str]] = {}
        for label, setting in zip(settings, of_field, strict=True):
            groups.setdefault(setting, []).append(_short(label))
        for setting, labels in groups.items():
            yield setting, "all" if len(groups) == 1 else ", ".join(labels)


def _short(label: str) -> str:
    """Return the id of a run, with its method if the id has two."""
    name, _, method = label.partition("_")
    known = next(run for run in published().runs if run.id == name)
    return f"{name} ({method})" if known.or_method else name
