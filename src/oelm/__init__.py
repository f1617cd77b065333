"""Freeze parts of a Transformer's attention, run the ablation, believe the answer.

Public names load on first use: importing `oelm` imports neither torch nor transformers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# name -> the module that defines it
_HOME = {
    "MethodSpec": "oelm.spec.method",
    "named_method": "oelm.spec.named",
    "GPTSpec": "oelm.spec.model",
    "ForeignSpec": "oelm.spec.model",
    "DataSpec": "oelm.spec.data",
    "ExamplesSpec": "oelm.spec.data",
    "TrainSpec": "oelm.spec.train",
    "RunSpec": "oelm.spec.run",
    "fingerprint": "oelm.spec.run",
    "Study": "oelm.study",
    "Listing": "oelm.study",
    "Arm": "oelm.study",
    "apply": "oelm.surgery",
    "inspect": "oelm.surgery",
    "freeze": "oelm.surgery",
    "unfreeze": "oelm.surgery",
    "verify_frozen": "oelm.surgery",
    "audit": "oelm.surgery",
    "print_trainable_parameters": "oelm.surgery",
    "load": "oelm.interop.pretrained",
    "OelmCallback": "oelm.interop.trainer_callback",
    "Architecture": "oelm.method.projection",
    "Projection": "oelm.method.projection",
    "Fused": "oelm.method.split",
    "register_architecture": "oelm.models.families",
    "OelmError": "oelm.errors",
}

__all__ = ["__version__", *_HOME]  # noqa: PLE0604  (the names are strings; ruff cannot see through the table)

if TYPE_CHECKING:
    from oelm.errors import OelmError as OelmError
    from oelm.interop.pretrained import load as load
    from oelm.interop.trainer_callback import OelmCallback as OelmCallback
    from oelm.method.projection import Architecture as Architecture
    from oelm.method.projection import Projection as Projection
    from oelm.method.split import Fused as Fused
    from oelm.models.families import register_architecture as register_architecture
    from oelm.spec.data import DataSpec as DataSpec
    from oelm.spec.data import ExamplesSpec as ExamplesSpec
    from oelm.spec.method import MethodSpec as MethodSpec
    from oelm.spec.model import ForeignSpec as ForeignSpec
    from oelm.spec.model import GPTSpec as GPTSpec
    from oelm.spec.named import named_method as named_method
    from oelm.spec.run import RunSpec as RunSpec
    from oelm.spec.run import fingerprint as fingerprint
    from oelm.spec.train import TrainSpec as TrainSpec
    from oelm.study import Arm as Arm
    from oelm.study import Listing as Listing
    from oelm.study import Study as Study
    from oelm.surgery import apply as apply
    from oelm.surgery import audit as audit
    from oelm.surgery import freeze as freeze
    from oelm.surgery import inspect as inspect
    from oelm.surgery import print_trainable_parameters as print_trainable_parameters
    from oelm.surgery import unfreeze as unfreeze
    from oelm.surgery import verify_frozen as verify_frozen


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'oelm' has no attribute {name!r}; it has {', '.join(_HOME)}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
