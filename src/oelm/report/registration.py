"""What a report says about the registration of a study, and about how its test split was spent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from oelm.analysis.compare import Comparison
from oelm.analysis.evidence import shown
from oelm.record.looks import SplitLooks, StudyLooks, looks_at
from oelm.record.registration import RegistrationRecord
from oelm.record.store import REGISTERED
from oelm.report.certificates import link
from oelm.report.document import Remark, Section
from oelm.report.wording import Say


def registration_lines(comparison: Comparison, say: Say) -> Iterator[str]:
    """Say whether a study is as registered, and how many of its runs are older. A screen is not registered."""
    found = comparison.registration
    if found is None or comparison.study.is_screen:
        return
    if found.record is None:
        yield say("not_registered")
        return
    place = {"day": found.record.day, "commit": commit_in_words(found.record, say)}
    if found.changed:
        changes = (
            say("registered_field", field=field, before=shown(before), now=shown(now))
            for field, before, now in found.changed
        )
        yield say("registered_changed", changes=say("semicolon").join(changes), **place)
    else:
        yield say("as_registered", **place)
    if found.older:
        yield say("older_runs", count=len(found.older), whole=len(comparison.confirming))


def commit_in_words(record: RegistrationRecord, say: Say) -> str:
    """Name a commit, and say whether files had changed since."""
    commit = record.commit[:12] if record.commit else say("commit_unknown")
    return f"{commit} ({say('uncommitted')})" if record.dirty else commit


def registration_sections(
    comparison: Comparison, root: Path, out: Path, complaints: list[str], say: Say
) -> Iterator[Section]:
    """Name the registered digest and every older run, and count the looks at the test split."""
    found = comparison.registration
    if found and found.record and not comparison.study.is_screen:
        digest = say("registration_digest", digest=found.record.digest[:16], file=REGISTERED)
        older = tuple(
            Remark(
                say("samples_of", arm=run.spec.arm, seed=run.spec.seed),
                say("older_started", started=run.started),
                link(directory, out),
            )
            for directory, run in found.older
        )
        yield Section("registration", say("heading_registration"), (digest,), remarks=older)
    records = [*(run for _, run in comparison.confirming), *(item.record for item in comparison.tuning)]
    checksums = dict.fromkeys(run.data.checksum for run in records if run.data and run.data.tokens.get("test"))
    if looks := looks_at(root, comparison.study.name, checksums, complaints):
        own = comparison.study.name
        yield Section("looks", say("heading_looks"), tuple(_looks(split, own, say) for split in looks))


def _looks(split: SplitLooks, own: str, say: Say) -> str:
    by = say("comma").join(_by(item, own, say) for item in split.by)
    name = {"corpus": split.corpus, "checksum": split.checksum[:8]}
    return say("looks_once", by=by, **name) if split.total == 1 else say("looks", total=split.total, by=by, **name)


def _by(item: StudyLooks, own: str, say: Say) -> str:
    study = say("looks_this_study") if item.study == own else item.study or say("looks_no_study")
    runs = len(item.looks) - item.evaluations
    parts = []
    if item.seeds is not None:
        parts.append(say("looks_matrix" if item.seeds > 1 else "looks_one_seed", arms=item.arms, seeds=item.seeds))
    elif runs:
        parts.append(say("looks_runs", arms=item.arms, runs=runs))
    if item.evaluations:
        parts.append(say("looks_evaluations", count=item.evaluations))
    return say("looks_by", count=len(item.looks), study=study, what=say("comma").join(parts))
