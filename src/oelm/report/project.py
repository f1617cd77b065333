"""The project in numbers: how many runs, how long, how large, when, and where everything lies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from oelm.analysis.compare import Found
from oelm.record.attention import ATTENTION, LOGIT_VARIANCE
from oelm.record.imported import UNKNOWN
from oelm.record.keep import LIGHT
from oelm.record.losses import TEST_LOSSES
from oelm.record.stages import CHOICE
from oelm.record.store import LOOKS, METRICS, RECORD, REGISTERED, SAMPLES, STUDY, TIMING, UNSEALED
from oelm.record.window_losses import WINDOW_LOSSES
from oelm.report.document import Column, Line, Remark, Section, Table
from oelm.report.numbers import shown_bytes
from oelm.report.wording import Say
from oelm.study import AnyStudy


def project_section(found: Sequence[Found], say: Say) -> Section:
    """Count the runs, their hours and their sizes."""
    records = [record for _, record in found]
    seconds = sum(record.seconds.total for record in records if record.seconds)
    sizes = sum(
        (path / name).stat().st_size for path, _ in found for name in (RECORD, *LIGHT) if (path / name).is_file()
    )
    counts = {
        "stat_runs": f"{len(records):,}",
        "stat_complete": f"{sum(record.status == 'complete' for record in records):,}",
        "stat_failed": f"{sum(record.status == 'failed' for record in records):,}",
        "stat_imported": f"{sum(record.imported for record in records):,}",
        "stat_hours": f"{seconds / 3600:,.1f}",
        "stat_tokens": f"{sum(record.result.train_tokens for record in records if record.result):,}",
        "stat_largest": f"{max((record.parameters.total for record in records if record.parameters), default=0):,}",
        "stat_bytes": shown_bytes(sizes, say),
    }
    columns = (Column("name", say("heading_project")), Column("count", ""))
    table = Table("project", columns, tuple(Line((say(key), value)) for key, value in counts.items()))
    return Section("project", say("heading_project"), table=table)


def timeline_section(studies: Sequence[tuple[Path, AnyStudy]], found: Sequence[Found], say: Say) -> Iterator[Section]:
    """Tell when each study's runs were made, the first study first."""
    entries = []
    for folder, study in studies:
        own = [record for path, record in found if path.is_relative_to(folder)]
        moments = [moment for record in own for moment in (record.started, record.finished)]
        days = sorted(moment[:10] for moment in moments if moment not in (None, UNKNOWN))
        if days:
            text = say("timeline_study", first=days[0], last=days[-1], runs=len(own))
            entries.append((days[0], Remark(study.name, text)))
    if entries:
        ordered = tuple(remark for _, remark in sorted(entries, key=lambda item: item[0]))
        yield Section("timeline", say("heading_timeline"), remarks=ordered)


def files_section(say: Say) -> Section:
    """Tell what the files of a folder of runs are."""
    files = {
        STUDY: "file_study", RECORD: "file_record", METRICS: "file_metrics",
        TIMING: "file_timing", ATTENTION: "file_attention", SAMPLES: "file_samples",
        TEST_LOSSES: "file_losses", WINDOW_LOSSES: "file_window_losses", LOGIT_VARIANCE: "file_logit_variance",
        CHOICE: "file_choice", REGISTERED: "file_registered", LOOKS: "file_looks",
        UNSEALED: "file_unsealed", "report/": "file_report",
    }  # fmt: skip
    return Section("files", say("heading_files"), remarks=tuple(Remark(name, say(key)) for name, key in files.items()))
