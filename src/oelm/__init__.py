"""Freeze parts of a Transformer's attention, run the ablation, believe the answer.

Public names load on first use: importing `oelm` imports neither torch nor transformers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# module -> the public names that it defines
_NAMES = {
    "oelm.models.apply": (
        "apply", "remove", "method_of", "inspect", "audit", "Audit", "freeze", "unfreeze", "verify_frozen",
        "print_trainable_parameters",
    ),
    "oelm.interop.own_loop": ("schedule", "Schedule", "parameter_groups"),
    "oelm.interop.trainer_callback": ("OelmCallback",),
    "oelm.interop.hugging_face_gpt": ("register_auto_model",),
    "oelm.method.projection": ("Architecture", "Projection"),
    "oelm.method.split": ("Fused",),
    "oelm.models.families": ("register_architecture",),
    "oelm.spec.method": (
        "MethodSpec", "InitSpec", "FreezeSpec", "ScheduleSpec", "Change", "Sweep", "RepairSpec", "RatesSpec",
        "NamesSpec", "named_method", "methods",
    ),
    "oelm.spec.run": (
        "RunSpec", "GPTSpec", "HuggingFaceSpec", "named_size", "DataSpec", "ExamplesSpec", "ProbeSpec", "TrainSpec",
        "ContinueSpec", "SlurmSpec", "fingerprint",
    ),
    "oelm.spec.study": ("Study", "Listing", "Arm", "load_study"),
    "oelm.api": ("run", "records", "compare", "load", "predict"),
    "oelm.runs.execute": ("continue_run",),
    "oelm.analysis.compare": ("Comparison",),
    "oelm.record.record": (
        "RunRecord", "MetricRecord", "ResultRecord", "DataRecord", "ParametersRecord", "CostRecord", "SecondsRecord",
        "EnvironmentRecord", "TimingRecord", "BranchRecord",
    ),
    "oelm.record.folder": (
        "RunFolder", "AttentionRecord", "LogitVarianceRecord", "TestLossesRecord", "WindowLossesRecord",
    ),
    "oelm.errors": (
        "OelmError", "UsageError", "UnknownName", "InvalidSpec", "NotCarriedOut", "BadShape", "BadData",
        "SlurmUnreachable", "StudyChanged", "Sealed", "IncomparableRuns", "MethodError", "AlreadyApplied",
        "UnusableWeight", "WrongOptimizer", "FrozenWeightsMoved", "CheckpointError", "RunFailed", "Diverged",
        "RunLocked", "BadRecord", "Damaged", "ScheduleWarning",
    ),
}  # fmt: skip
_HOME = {name: module for module, names in _NAMES.items() for name in names}

# `oelm.train` is the package with the training loop, and it can be called: see its docstring.
__all__ = ["__version__", "train", *_HOME]  # noqa: PLE0604  (the names are strings; ruff cannot see through the table)

if TYPE_CHECKING:
    # fmt: off
    # isort: off
    from oelm.models.apply import apply as apply, remove as remove, method_of as method_of, inspect as inspect
    from oelm.models.apply import audit as audit, Audit as Audit, freeze as freeze, unfreeze as unfreeze
    from oelm.models.apply import verify_frozen as verify_frozen
    from oelm.models.apply import print_trainable_parameters as print_trainable_parameters
    from oelm.interop.own_loop import schedule as schedule, Schedule as Schedule, parameter_groups as parameter_groups
    from oelm.interop.trainer_callback import OelmCallback as OelmCallback
    from oelm.interop.hugging_face_gpt import register_auto_model as register_auto_model
    from oelm.method.projection import Architecture as Architecture, Projection as Projection
    from oelm.method.split import Fused as Fused
    from oelm.models.families import register_architecture as register_architecture
    from oelm.spec.method import named_method as named_method, methods as methods
    from oelm.spec.method import MethodSpec as MethodSpec, InitSpec as InitSpec, FreezeSpec as FreezeSpec
    from oelm.spec.method import ScheduleSpec as ScheduleSpec, Change as Change, Sweep as Sweep
    from oelm.spec.method import RepairSpec as RepairSpec, RatesSpec as RatesSpec, NamesSpec as NamesSpec
    from oelm.spec.run import GPTSpec as GPTSpec, HuggingFaceSpec as HuggingFaceSpec, named_size as named_size
    from oelm.spec.run import DataSpec as DataSpec, ExamplesSpec as ExamplesSpec, ProbeSpec as ProbeSpec
    from oelm.spec.run import TrainSpec as TrainSpec
    from oelm.spec.run import RunSpec as RunSpec, ContinueSpec as ContinueSpec, SlurmSpec as SlurmSpec
    from oelm.spec.run import fingerprint as fingerprint
    from oelm.spec.study import Study as Study, Listing as Listing, Arm as Arm, load_study as load_study
    from oelm.api import run as run, records as records, compare as compare, load as load, predict as predict
    from oelm.runs.execute import continue_run as continue_run
    from oelm.analysis.compare import Comparison as Comparison
    from oelm.record.record import RunRecord as RunRecord, MetricRecord as MetricRecord, ResultRecord as ResultRecord
    from oelm.record.record import DataRecord as DataRecord, ParametersRecord as ParametersRecord
    from oelm.record.record import CostRecord as CostRecord, SecondsRecord as SecondsRecord
    from oelm.record.record import EnvironmentRecord as EnvironmentRecord, TimingRecord as TimingRecord
    from oelm.record.record import BranchRecord as BranchRecord
    from oelm.record.folder import RunFolder as RunFolder, AttentionRecord as AttentionRecord
    from oelm.record.folder import LogitVarianceRecord as LogitVarianceRecord, TestLossesRecord as TestLossesRecord
    from oelm.record.folder import WindowLossesRecord as WindowLossesRecord
    from oelm.errors import OelmError as OelmError, UsageError as UsageError, UnknownName as UnknownName
    from oelm.errors import InvalidSpec as InvalidSpec, NotCarriedOut as NotCarriedOut, BadShape as BadShape
    from oelm.errors import BadData as BadData, SlurmUnreachable as SlurmUnreachable, StudyChanged as StudyChanged
    from oelm.errors import Sealed as Sealed, IncomparableRuns as IncomparableRuns, MethodError as MethodError
    from oelm.errors import AlreadyApplied as AlreadyApplied, UnusableWeight as UnusableWeight
    from oelm.errors import WrongOptimizer as WrongOptimizer, FrozenWeightsMoved as FrozenWeightsMoved
    from oelm.errors import CheckpointError as CheckpointError, RunFailed as RunFailed, Diverged as Diverged
    from oelm.errors import RunLocked as RunLocked, BadRecord as BadRecord, Damaged as Damaged
    from oelm.errors import ScheduleWarning as ScheduleWarning
    # isort: on
    # fmt: on


def __getattr__(name: str) -> Any:
    if name == "train":
        return importlib.import_module("oelm.train")
    if name not in _HOME:
        raise AttributeError(f"module 'oelm' has no attribute {name!r}. dir(oelm) lists its names.")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
